"""Were two runs or recordings made under the same conditions? Compares the keys that must match.

Input: the result of each run, the config from run.json, and the facts about its hosts from environment.json;
or two recordings. Output: the keys, in order, that differ between the two, or that cannot be compared because
one of the two did not record them. Values shared by several GPUs are listed once. The duration and number of
measurements are not conditions; the workload, hardware and versions are.

>>> [unlike.key for unlike in differing_keys({"device": "H200", "stack.torch": "2.6"}, {"device": "H200"})]
['stack.torch']
>>> covers("stack", "stack.torch"), covers("model", "model_size")
(True, False)
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any, Final, Literal

import numpy as np

from gpuproof.base.groups import grouped
from gpuproof.readings.metric_text import quantity, title
from gpuproof.readings.recording import DeviceTrack, RecordingData
from gpuproof.records.metrics import METRICS
from gpuproof.records.result import Result
from gpuproof.records.work.command import value_text
from gpuproof.records.work.training import STORED_TYPES

NO_CONDITIONS = (
    *("suite", "run", "monitoring", "profiling", "distributed.timeout_s", "distributed.hang_timeout_s"),
    *("benchmark.measure_by", "benchmark.measure_steps", "benchmark.measure_seconds"),
    *("benchmark.target_precision", "benchmark.min_steps", "benchmark.log_step_times"),
    *("benchmark.min_seconds", "benchmark.power_cap_limit_s"),
    *("benchmark.count_flops", "benchmark.evaluate_after", "benchmark.own_compute"),
    *("suite_options.validate.rules_recipe", "suite_options.validate.rules_lines"),
)
"""Recipe keys that do not affect a step: names, lengths of windows, limits, monitoring. The suite that ran is
stored in the result."""
ECHOED = ("kind", "model", "data", "batch_size", "precision", "dtype")
"""Conditions in a result that are copied from the recipe."""
STACK = (
    *("python", "torch", "torch_cuda", "torch_hip", "cudnn", "nccl", "rccl", "miopen", "driver", "os"),
    *("tensorflow", "tensorflow_cuda", "tensorflow_cudnn"),
)
MACHINE = ("host", "memory_total_bytes")
CARD = ("power_limit_w", "clock_sm_max_mhz", "clock_sm_application_mhz", "mig_mode", "ecc_mode")
"""Settings of the devices used that change their speed; an administrator can change them between two runs."""
LATER: Mapping[str, tuple[tuple[str, ...], Any]] = {
    "training.weights": (("training", "load"), "fp32"),
    "inference.weights": (("inference", "serving", "load"), "fp32"),
    "inference.cuda_graphs": (("inference", "serving", "load"), False),
}
"""Keys that older configs lack → the kinds of run that use them, and the behaviour before the key existed."""
Weight = Literal["differs", "unknown", "note"]
"""Effect on validity: a difference rules out the comparison, an unrecorded value may rule it out, a note does
not."""
WORDS: Mapping[Weight, str] = {"differs": "", "unknown": "unknown: ", "note": "also differs: "}
ABSENT = "not set"
"""Shown as the value of a key that one of the two runs lacks."""
_MUST_BE_KNOWN: Final = ("driver_version", "clock_sm_max_mhz", "mig_mode", "ecc_mode")
_FREE_TO_DIFFER: Final = frozenset({"serial", "uuid", "pci_bus_id", "numa_node", "mig_uuid", "minor_number"})
"""Facts that only distinguish cards of the same kind; a difference is reported as a note."""
_LIMIT_TOLERANCE_W: Final = 1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class DifferingKey:
    """A key in which two runs or recordings differ, or may differ."""

    key: str
    a: str
    b: str
    weight: Weight = "differs"

    @property
    def text(self) -> str:
        """The key with both of its values."""
        return f"{WORDS[self.weight]}{self.key}: {self.a} against {self.b}"


def conditions_of(
    result: Result, config: Mapping[str, Any] | None, hosts: Mapping[str, Mapping[str, Any]] | None
) -> dict[str, Any]:
    """Return everything that must match, by key; None if the config or the hosts are unknown."""
    echoed = ECHOED if config is not None else ()
    conditions = {
        "suite": result.suite,
        **{key: value for key, value in result.conditions.items() if key not in echoed},
    }
    if config is not None:
        conditions |= {key: value for key, value in _flat(config) if not _is_left_out(key)}
        conditions |= _later_keys(config)
    return conditions | _of_hosts(hosts or {})


def _later_keys(config: Mapping[str, Any]) -> dict[str, Any]:
    """Return keys that older configs lack, with the old behaviour; None if the run does not use one.

    In fp32 precision, weights are fp32 regardless of their key; a sweep may use other precisions.
    """
    is_whole = (
        not config.get("matrix") and (config.get("training") or {}).get("precision") not in STORED_TYPES
    )

    def value(key: str, older: Any) -> Any:
        section, _, name = key.partition(".")
        is_older = is_whole and name == "weights"
        return older if is_older else (config.get(section) or {}).get(name, older)

    kind = config.get("kind")
    return {key: value(key, older) if kind in kinds else None for key, (kinds, older) in LATER.items()}


def _flat(values: Mapping[str, Any], above: str = "") -> Iterator[tuple[str, Any]]:
    for key, value in values.items():
        if isinstance(value, Mapping) and value:
            yield from _flat(value, f"{above}{key}.")
        else:
            yield f"{above}{key}", value


def _is_left_out(key: str) -> bool:
    return any(covers(prefix, key) for prefix in NO_CONDITIONS)


def covers(stated: str, key: str) -> bool:
    """Check whether a key is the given one, or nested below it."""
    return key == stated or key.startswith(f"{stated}.")


def _of_hosts(hosts: Mapping[str, Mapping[str, Any]]) -> dict[str, Any]:
    """Return the versions and machines; if hosts differ, all of their values."""
    by_host = [dict(_of_host(facts)) for facts in hosts.values()]
    keys = dict.fromkeys(key for facts in by_host for key in facts)
    return {key: _joined([facts.get(key) for facts in by_host]) for key in keys}


def _of_host(facts: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    yield from ((f"stack.{key}", facts[key]) for key in STACK if key in facts)
    yield from ((f"machine.{key}", facts[key]) for key in MACHINE if key in facts)
    yield from ((f"machine.cpu.{key}", value) for key, value in (facts.get("cpu") or {}).items())
    devices = facts.get("devices") or ()
    yield "machine.devices", [device.get("name") for device in devices]
    used = [device.get("uuid") for device in devices]
    cards = [
        card["static"]
        for card in (facts.get("accelerators") or {}).get("devices") or ()
        if card.get("uuid") in used and isinstance(card.get("static"), Mapping)
    ]
    yield from ((f"machine.devices.{key}", [card.get(key) for card in cards]) for key in CARD if cards)
    yield from ((f"environment.{key}", value) for key, value in (facts.get("environment") or {}).items())


def _joined(values: list[Any]) -> Any:
    first = values[0]
    return first if all(value == first for value in values) else sorted(map(str, values))


def differing_keys(a: Mapping[str, Any], b: Mapping[str, Any]) -> tuple[DifferingKey, ...]:
    """Return the keys in which two runs differ, in the order of the first run."""
    return tuple(
        DifferingKey(key=key, a=_setting(a.get(key)), b=_setting(b.get(key)))
        for key in dict.fromkeys([*a, *b])
        if a.get(key) != b.get(key)
    )


def _setting(value: Any) -> str:
    return ABSENT if value is None else value_text(value)


def differing_conditions(first: RecordingData, second: RecordingData) -> tuple[DifferingKey, ...]:
    """List every condition that differs or is unknown, the most important ones first.

    Devices are paired in order of their physical index.
    """
    pairs = zip(first.devices, second.devices, strict=False)
    of_devices = [(one.identity.physical_index, key) for one, other in pairs for key in _devices(one, other)]
    differing_keys = [*_recordings(first, second), *_joined_over_gpus(of_devices)]
    return tuple(sorted(differing_keys, key=lambda unlike: list(WORDS).index(unlike.weight)))


def _joined_over_gpus(of_devices: list[tuple[int, DifferingKey]]) -> Iterator[DifferingKey]:
    """Merge values shared by several GPUs, and values that only identify individual cards."""
    alike = grouped(
        ((key.key, key.weight, *(() if key.weight == "note" else (key.a, key.b))), (index, key))
        for index, key in of_devices
    )
    for group in alike.values():
        indices, keys = zip(*group, strict=True)
        named = f"GPU{'s' if len(group) > 1 else ''} {', '.join(map(str, indices))}, {keys[0].key}"
        joined = replace(keys[0], key=named)
        yield joined if len(set(keys)) == 1 else replace(joined, a="one each", b="others")


def _recordings(first: RecordingData, second: RecordingData) -> Iterator[DifferingKey]:
    counts = (len(first.devices), len(second.devices))
    if counts[0] != counts[1]:
        yield _mismatch("recording, number of GPUs", *map(str, counts), weight="differs")
    hosts = (first.recording.host, second.recording.host)
    if hosts[0] != hosts[1]:
        yield _mismatch("host, name", *hosts, weight="note")
    cpus = (first.recording.host_facts.get("cpu_model"), second.recording.host_facts.get("cpu_model"))
    if cpus[0] != cpus[1] or not (any(counts) or cpus[0]):
        yield _mismatch("host, CPU", *map(_text, cpus), weight="differs" if all(cpus) else "unknown")
    steps = (first.recording.fast_interval_s, second.recording.fast_interval_s)
    if steps[0] != steps[1]:
        yield _mismatch("recording, sampling interval", *(f"{s:g} s" for s in steps), weight="note")


def _devices(first: DeviceTrack, second: DeviceTrack) -> Iterator[DifferingKey]:
    if first.identity.name != second.identity.name:
        yield _mismatch("name", first.identity.name, second.identity.name, weight="differs")
    ids = (first.identity.uuid, second.identity.uuid)
    if ids[0] != ids[1]:
        yield _mismatch("UUID", *map(_text, ids), weight="note")
    yield from _limits(first, second)
    keys = dict.fromkeys((*_MUST_BE_KNOWN, *first.identity.static, *second.identity.static))
    for key in keys:
        if key != "power_limit_w":
            yield from _fact(key, first, second)


def _fact(key: str, first: DeviceTrack, second: DeviceTrack) -> Iterator[DifferingKey]:
    one, other = first.identity.static.get(key), second.identity.static.get(key)
    if one is None and other is None:
        explained = key in first.identity.unavailable and key in second.identity.unavailable
        if not explained:
            yield _mismatch(_name(key), _text(None), _text(None), weight="unknown")
    elif one != other:
        weight: Weight = "unknown" if one is None or other is None else "differs"
        if key in _FREE_TO_DIFFER:
            weight = "note"
        yield _mismatch(_name(key), _value(key, one), _value(key, other), weight=weight)


def _limits(first: DeviceTrack, second: DeviceTrack) -> Iterator[DifferingKey]:
    """Compare the power caps in force; they are sampled because a cap can change at any time."""
    one, other = _cap(first), _cap(second)
    texts = (_value("power_limit_w", one), _value("power_limit_w", other))
    if one is None or other is None:
        yield _mismatch("power limit", *texts, weight="unknown")
    elif abs(one - other) > _LIMIT_TOLERANCE_W:
        yield _mismatch("power limit", *texts, weight="differs")


def _cap(track: DeviceTrack) -> float | None:
    limits = track.readings("power_limit_w")
    return float(np.median(limits)) if len(limits) else track.identity.number("power_limit_w")


def _mismatch(key: str, a: str, b: str, *, weight: Weight) -> DifferingKey:
    return DifferingKey(key=key, a=a, b=b, weight=weight)


def _name(key: str) -> str:
    return title(key) if key in METRICS else key.replace("_", " ").replace("mig", "MIG").replace("ecc", "ECC")


def _value(key: str, value: Any) -> str:
    if isinstance(value, (int, float)) and not isinstance(value, bool):
        return quantity(key, float(value))
    return _text(value)


def _text(value: Any) -> str:
    return "not recorded" if value is None else str(value)

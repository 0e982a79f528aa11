"""Were two runs made alike? The keys that must agree before figures are held against each other.

In: of each run its result, the config as run.json has it, and the facts of its hosts as environment.json has
them. Out: keys in plain order, and those in which two runs differ. How long was measured, and how often, is
no condition; what was run, on what, and by which versions is.

>>> [unlike.key for unlike in unlike_keys({"device": "H200", "stack.torch": "2.6"}, {"device": "H200"})]
['stack.torch']
>>> covers("stack", "stack.torch"), covers("model", "model_size")
(True, False)
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Literal

from gpuproof.records.result import Result
from gpuproof.records.work.training import STORED_TYPES

NO_CONDITIONS = (
    *("suite", "run", "monitoring", "profiling", "distributed.timeout_s", "distributed.hang_timeout_s"),
    *("benchmark.measure_by", "benchmark.measure_steps", "benchmark.measure_seconds"),
    *("benchmark.target_precision", "benchmark.min_steps", "benchmark.log_step_times"),
    *("benchmark.count_flops", "benchmark.evaluate_after", "benchmark.own_compute"),
    *("suite_options.validate.rules_recipe", "suite_options.validate.rules_lines"),
)
"""Keys of a recipe that change no step: names, lengths of windows, limits, what is looked at beside. Which
suite ran is in the result."""
ECHOED = ("kind", "model", "data", "batch_size", "precision", "dtype")
"""Conditions of a result that say again what the recipe says."""
STACK = (
    *("python", "torch", "torch_cuda", "torch_hip", "cudnn", "nccl", "rccl", "miopen", "driver", "os"),
    *("tensorflow", "tensorflow_cuda", "tensorflow_cudnn"),
)
MACHINE = ("host", "memory_total_bytes")
LATER: Mapping[str, tuple[tuple[str, ...], Any]] = {
    "training.weights": (("training", "load"), "fp32"),
    "inference.weights": (("inference", "serving", "load"), "fp32"),
    "inference.cuda_graphs": (("inference", "serving", "load"), False),
}
"""Keys that older configs lack: the kinds of run that heed them, and what was done before."""
Weight = Literal["differs", "unknown", "note"]
"""Whether figures hold: a difference forbids it, what one side did not record may, a note does not."""
WORDS: Mapping[Weight, str] = {"differs": "", "unknown": "unknown: ", "note": "also differs: "}
ABSENT = "not set"
"""What a key is where one of two runs has none."""


@dataclass(frozen=True, slots=True, kw_only=True)
class UnlikeKey:
    """A key in which two runs or recordings differ, or are not known to agree."""

    key: str
    a: str
    b: str
    weight: Weight = "differs"

    @property
    def text(self) -> str:
        """The key with both values."""
        return f"{WORDS[self.weight]}{self.key}: {self.a} against {self.b}"


def conditions_of(
    result: Result, config: Mapping[str, Any] | None, hosts: Mapping[str, Mapping[str, Any]] | None
) -> dict[str, Any]:
    """Return everything that must agree, by key; None where the config or the hosts are not known."""
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
    """Return keys that older configs lack, with what those did; None where the kind of run does not heed one.

    In precisions of fp32 weights are fp32, whatever their key says; a sweep may have others.
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
    """Say whether a key is the stated one or lies under it."""
    return key == stated or key.startswith(f"{stated}.")


def _of_hosts(hosts: Mapping[str, Mapping[str, Any]]) -> dict[str, Any]:
    """Return versions and machines; where hosts differ among themselves, all their values."""
    by_host = [dict(_of_host(facts)) for facts in hosts.values()]
    keys = dict.fromkeys(key for facts in by_host for key in facts)
    return {key: _joined([facts.get(key) for facts in by_host]) for key in keys}


def _of_host(facts: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    yield from ((f"stack.{key}", facts[key]) for key in STACK if key in facts)
    yield from ((f"machine.{key}", facts[key]) for key in MACHINE if key in facts)
    yield from ((f"machine.cpu.{key}", value) for key, value in (facts.get("cpu") or {}).items())
    yield "machine.devices", [device.get("name") for device in facts.get("devices") or ()]
    yield from ((f"environment.{key}", value) for key, value in (facts.get("environment") or {}).items())


def _joined(values: list[Any]) -> Any:
    first = values[0]
    return first if all(value == first for value in values) else sorted(map(str, values))


def unlike_keys(a: Mapping[str, Any], b: Mapping[str, Any]) -> tuple[UnlikeKey, ...]:
    """Return the keys in which two runs differ, in the order of the first."""
    return tuple(
        UnlikeKey(key=key, a=str(a.get(key, ABSENT)), b=str(b.get(key, ABSENT)))
        for key in dict.fromkeys([*a, *b])
        if a.get(key) != b.get(key)
    )

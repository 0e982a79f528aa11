"""Were two recordings made under the same conditions?

In: two recordings. Out: every condition in which they differ, or in which nobody can tell because one of them
did not record it; what several GPUs have alike is told once.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any, Final

import numpy as np

from gpuproof.base.groups import grouped
from gpuproof.comparison.conditions import WORDS, UnlikeKey, Weight
from gpuproof.readings.metric_text import quantity, title
from gpuproof.readings.recording import DeviceTrack, RecordingData
from gpuproof.records.metrics import METRICS

_MUST_BE_KNOWN: Final = ("driver_version", "clock_sm_max_mhz", "mig_mode", "ecc_mode")
_FREE_TO_DIFFER: Final = frozenset({"serial", "uuid", "pci_bus_id", "numa_node", "mig_uuid", "minor_number"})
"""Facts that tell one card from another of the same kind: worth a note, no more."""
_LIMIT_TOLERANCE_W: Final = 1.0


def unlike_conditions(first: RecordingData, second: RecordingData) -> tuple[UnlikeKey, ...]:
    """Name every condition that differs or cannot be told, the weighty ones first.

    Devices are paired in order of their physical index.
    """
    pairs = zip(first.devices, second.devices, strict=False)
    of_devices = [(one.identity.physical_index, key) for one, other in pairs for key in _devices(one, other)]
    unlike_keys = [*_recordings(first, second), *_joined_over_gpus(of_devices)]
    return tuple(sorted(unlike_keys, key=lambda unlike: list(WORDS).index(unlike.weight)))


def _joined_over_gpus(of_devices: list[tuple[int, UnlikeKey]]) -> Iterator[UnlikeKey]:
    """Join what is the same of several GPUs, and what tells one card from another of its kind."""
    alike = grouped(
        ((key.key, key.weight, *(() if key.weight == "note" else (key.a, key.b))), (index, key))
        for index, key in of_devices
    )
    for group in alike.values():
        indices, keys = zip(*group, strict=True)
        named = f"GPU{'s' if len(group) > 1 else ''} {', '.join(map(str, indices))}, {keys[0].key}"
        joined = replace(keys[0], key=named)
        yield joined if len(set(keys)) == 1 else replace(joined, a="one each", b="others")


def _recordings(first: RecordingData, second: RecordingData) -> Iterator[UnlikeKey]:
    counts = (len(first.devices), len(second.devices))
    if counts[0] != counts[1]:
        yield _unlike("recording, number of GPUs", *map(str, counts), weight="differs")
    hosts = (first.recording.host, second.recording.host)
    if hosts[0] != hosts[1]:
        yield _unlike("host, name", *hosts, weight="note")
    cpus = (first.recording.host_facts.get("cpu_model"), second.recording.host_facts.get("cpu_model"))
    if cpus[0] != cpus[1] or not (any(counts) or cpus[0]):
        yield _unlike("host, CPU", *map(_text, cpus), weight="differs" if all(cpus) else "unknown")
    steps = (first.recording.fast_interval_s, second.recording.fast_interval_s)
    if steps[0] != steps[1]:
        yield _unlike("recording, sampling interval", *(f"{s:g} s" for s in steps), weight="note")


def _devices(first: DeviceTrack, second: DeviceTrack) -> Iterator[UnlikeKey]:
    if first.identity.name != second.identity.name:
        yield _unlike("name", first.identity.name, second.identity.name, weight="differs")
    ids = (first.identity.uuid, second.identity.uuid)
    if ids[0] != ids[1]:
        yield _unlike("UUID", *map(_text, ids), weight="note")
    yield from _limits(first, second)
    keys = dict.fromkeys((*_MUST_BE_KNOWN, *first.identity.static, *second.identity.static))
    for key in keys:
        if key != "power_limit_w":
            yield from _fact(key, first, second)


def _fact(key: str, first: DeviceTrack, second: DeviceTrack) -> Iterator[UnlikeKey]:
    one, other = first.identity.static.get(key), second.identity.static.get(key)
    if one is None and other is None:
        explained = key in first.identity.unavailable and key in second.identity.unavailable
        if not explained:
            yield _unlike(_name(key), _text(None), _text(None), weight="unknown")
    elif one != other:
        weight: Weight = "unknown" if one is None or other is None else "differs"
        if key in _FREE_TO_DIFFER:
            weight = "note"
        yield _unlike(_name(key), _value(key, one), _value(key, other), weight=weight)


def _limits(first: DeviceTrack, second: DeviceTrack) -> Iterator[UnlikeKey]:
    """Compare the power cap in force, which is sampled because it can be changed at any time."""
    one, other = _cap(first), _cap(second)
    texts = (_value("power_limit_w", one), _value("power_limit_w", other))
    if one is None or other is None:
        yield _unlike("power limit", *texts, weight="unknown")
    elif abs(one - other) > _LIMIT_TOLERANCE_W:
        yield _unlike("power limit", *texts, weight="differs")


def _cap(track: DeviceTrack) -> float | None:
    limits = track.readings("power_limit_w")
    return float(np.median(limits)) if len(limits) else track.identity.number("power_limit_w")


def _unlike(key: str, a: str, b: str, *, weight: Weight) -> UnlikeKey:
    return UnlikeKey(key=key, a=a, b=b, weight=weight)


def _name(key: str) -> str:
    return title(key) if key in METRICS else key.replace("_", " ").replace("mig", "MIG").replace("ecc", "ECC")


def _value(key: str, value: Any) -> str:
    if isinstance(value, (int, float)) and not isinstance(value, bool):
        return quantity(key, float(value))
    return _text(value)


def _text(value: Any) -> str:
    return "not recorded" if value is None else str(value)

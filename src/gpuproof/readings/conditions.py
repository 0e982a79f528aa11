"""Were two recordings made under the same conditions?

In: two recordings. Out: every condition in which they differ, or in which nobody can tell because one of them
did not record it; what several GPUs have alike is told once.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any, Final, Literal

import numpy as np

from gpuproof.readings.metric_text import quantity, title
from gpuproof.readings.recording import DeviceTrack, RecordingData
from gpuproof.records.metrics import METRICS

Weight = Literal["differs", "unknown", "note"]

_MUST_BE_KNOWN: Final = ("driver_version", "clock_sm_max_mhz", "mig_mode", "ecc_mode")
_FREE_TO_DIFFER: Final = frozenset({"serial", "uuid", "pci_bus_id", "numa_node", "mig_uuid", "minor_number"})
"""Facts that tell one card from another of the same kind: worth a note, no more."""
_LIMIT_TOLERANCE_W: Final = 1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Condition:
    """One condition that is not shown to be the same in both recordings."""

    where: str
    """`GPU 0`, `GPUs 0, 1`, `host` or `recording`."""
    fact: str
    first: str
    second: str
    weight: Weight


def unlike_conditions(first: RecordingData, second: RecordingData) -> tuple[Condition, ...]:
    """Name every condition that differs or cannot be told, the weighty ones first.

    Devices are paired in order of their physical index.
    """
    pairs = zip(first.devices, second.devices, strict=False)
    of_devices = [condition for one, other in pairs for condition in _devices(one, other)]
    found = [*_recordings(first, second), *_told_once(of_devices)]
    order = ("differs", "unknown", "note")
    return tuple(sorted(found, key=lambda condition: order.index(condition.weight)))


def _told_once(conditions: list[Condition]) -> Iterator[Condition]:
    """Join what is the same of several GPUs, and what tells one card from another of its kind."""
    alike: dict[tuple[str, ...], list[Condition]] = {}
    for item in conditions:
        texts = () if item.weight == "note" else (item.first, item.second)
        alike.setdefault((item.fact, item.weight, *texts), []).append(item)
    for first, *more in alike.values():
        places = [item.where.removeprefix("GPU ") for item in (first, *more)]
        joined = replace(first, where=f"GPUs {', '.join(places)}") if more else first
        differ = any((item.first, item.second) != (first.first, first.second) for item in more)
        yield replace(joined, first="one each", second="others") if differ else joined


def _recordings(first: RecordingData, second: RecordingData) -> Iterator[Condition]:
    counts = (len(first.devices), len(second.devices))
    if counts[0] != counts[1]:
        yield _condition("recording", "number of GPUs", *map(str, counts), weight="differs")
    hosts = (first.recording.host, second.recording.host)
    if hosts[0] != hosts[1]:
        yield _condition("host", "name", *hosts, weight="note")
    cpus = (first.recording.host_facts.get("cpu_model"), second.recording.host_facts.get("cpu_model"))
    if cpus[0] != cpus[1] or not (any(counts) or cpus[0]):
        yield _condition("host", "CPU", *map(_text, cpus), weight="differs" if all(cpus) else "unknown")
    steps = (first.recording.fast_interval_s, second.recording.fast_interval_s)
    if steps[0] != steps[1]:
        yield _condition("recording", "sampling interval", *(f"{s:g} s" for s in steps), weight="note")


def _devices(first: DeviceTrack, second: DeviceTrack) -> Iterator[Condition]:
    where = f"GPU {first.identity.physical_index}"
    if first.identity.name != second.identity.name:
        yield _condition(where, "name", first.identity.name, second.identity.name, weight="differs")
    ids = (first.identity.uuid, second.identity.uuid)
    if ids[0] != ids[1]:
        yield _condition(where, "UUID", *map(_text, ids), weight="note")
    yield from _limits(where, first, second)
    keys = dict.fromkeys((*_MUST_BE_KNOWN, *first.identity.static, *second.identity.static))
    for key in keys:
        if key != "power_limit_w":
            yield from _fact(where, key, first, second)


def _fact(where: str, key: str, first: DeviceTrack, second: DeviceTrack) -> Iterator[Condition]:
    one, other = first.identity.static.get(key), second.identity.static.get(key)
    if one is None and other is None:
        explained = key in first.identity.unavailable and key in second.identity.unavailable
        if not explained:
            yield _condition(where, _name(key), _text(None), _text(None), weight="unknown")
    elif one != other:
        weight: Weight = "unknown" if one is None or other is None else "differs"
        if key in _FREE_TO_DIFFER:
            weight = "note"
        yield _condition(where, _name(key), _value(key, one), _value(key, other), weight=weight)


def _limits(where: str, first: DeviceTrack, second: DeviceTrack) -> Iterator[Condition]:
    """Compare the power cap in force, which is sampled because it can be changed at any time."""
    one, other = _cap(first), _cap(second)
    texts = (_value("power_limit_w", one), _value("power_limit_w", other))
    if one is None or other is None:
        yield _condition(where, "power limit", *texts, weight="unknown")
    elif abs(one - other) > _LIMIT_TOLERANCE_W:
        yield _condition(where, "power limit", *texts, weight="differs")


def _cap(track: DeviceTrack) -> float | None:
    given = track.given("power_limit_w")
    return float(np.median(given)) if len(given) else track.identity.number("power_limit_w")


def _condition(where: str, fact: str, first: str, second: str, *, weight: Weight) -> Condition:
    return Condition(where=where, fact=fact, first=first, second=second, weight=weight)


def _name(key: str) -> str:
    return title(key) if key in METRICS else key.replace("_", " ").replace("mig", "MIG").replace("ecc", "ECC")


def _value(key: str, value: Any) -> str:
    if isinstance(value, (int, float)) and not isinstance(value, bool):
        return quantity(key, float(value))
    return _text(value)


def _text(value: Any) -> str:
    return "not recorded" if value is None else str(value)

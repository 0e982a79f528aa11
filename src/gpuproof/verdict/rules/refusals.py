"""Which rules cannot judge what was measured? Reasons, each with what to do; none where a rule can.

A floor that nothing which works at all could miss, one above what hardware can do, a unit that is another
one, a bandwidth of links where nothing moved: such a rule says nothing, and its outcome is an ERROR.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from statistics import median

from gpuproof.hardware import find_memory_peak, find_peak
from gpuproof.records.result import Measure
from gpuproof.units import bandwidth, flops, share, significant
from gpuproof.verdict.facts import FleetFacts, HostFacts, host_of
from gpuproof.verdict.rules.bounds import bus_bound, cards_bytes_per_s
from gpuproof.verdict.rules.model import Expected

VACUOUS_SHARE = 0.1
"""A floor under a tenth of what is measured, or of what the device can do: only what is broken outright
misses it, and it shows by itself. Floors that are shipped in use are 0.25 to 0.98 of what is measured."""
MOST_MEASURED = 0.25
"""A spread that lets a quarter be missing measures nothing that a tolerance could be taken from."""
PRECISIONS = {"fp16": "amp"}
"""The precision whose peak is that of a type."""


def with_unit(value: float, unit: str, *, beside: str = "") -> str:
    """Write a figure as people read it; a fraction in per cent where the figure `beside` it is.

    >>> with_unit(0.2, "1", beside="-35.9%"), with_unit(0.2, "1", beside="1.70 ×")
    ('20 %', '0.200')
    """
    if unit == "1" and "%" in beside:
        return share(value)
    if unit == "FLOP/s":
        return flops(value)
    if unit == "B/s":
        return bandwidth(value)
    return significant(value) if unit == "1" else f"{significant(value)} {unit}"


def why_it_cannot_judge(expected: Expected, matched: Sequence[Measure], facts: FleetFacts) -> str | None:
    """Return the first reason why a stated number cannot judge these measures."""
    if expected.form not in ("at_least", "at_most"):
        return None
    assert expected.number is not None
    assert expected.unit is not None
    units = sorted({measure.unit for measure in matched} - {expected.unit})
    if units:
        return f"it is in {expected.unit}, and the measure is in {', '.join(units)}"
    values = [measure.value for measure in matched if measure.value is not None]
    middle = median(values) if values else 0.0
    text = matched[0].text if matched else ""
    said = with_unit(expected.number, expected.unit, beside=text)
    if expected.form == "at_most":  # a share that is best at 0, such as drift, may be any part of its limit
        if expected.unit != "1" and 0 < middle < expected.number * VACUOUS_SHARE:
            return f"at most {said} is no limit where {with_unit(middle, expected.unit)} is measured"
        return None
    if expected.number < middle * VACUOUS_SHARE:
        return (
            f"a floor of {said} is no floor where {with_unit(middle, expected.unit, beside=text)} is measured"
        )
    return _beyond_hardware(expected.number, matched, facts)


def _beyond_hardware(floor: float, matched: Sequence[Measure], facts: FleetFacts) -> str | None:
    for measure in matched:
        bound = ceiling_of(measure, facts)
        if bound is not None and floor > bound[0]:
            most = with_unit(bound[0], measure.unit)
            return f"a floor of {with_unit(floor, measure.unit)} is over {most}, {bound[1]}"
        if bound is not None and floor < bound[0] * VACUOUS_SHARE and measure.value is None:
            return f"a floor of {with_unit(floor, measure.unit)} is no floor: {bound[1]}"
    return None


def why_implausible(measure: Measure, facts: FleetFacts) -> str | None:
    """Say why a figure cannot be: wholly over what hardware can do, or a bandwidth of a rank by itself."""
    if measure.labels.get("quantity") == "bus bandwidth" and measure.labels.get("num_ranks") == 1:
        return "one rank by itself moves nothing over any link: there is no bus bandwidth"
    bound = ceiling_of(measure, facts)
    lowest = measure.value if measure.interval is None else measure.interval.low
    if bound is None or lowest is None or lowest <= bound[0]:
        return None
    return f"{with_unit(lowest, measure.unit)} is over {with_unit(bound[0], measure.unit)}, {bound[1]}"


def ceiling_of(measure: Measure, facts: FleetFacts) -> tuple[float, str] | None:
    """Return what hardware can do at most and why; None where it is not known."""
    labels = measure.labels
    if "operation" in labels and "num_ranks" in labels:
        return _network_ceiling(measure, facts)
    name = device_of(measure, facts)
    if name is None:
        return None
    if labels.get("workload") == "gemm" and "dtype" in labels:
        dtype = str(labels["dtype"])
        peak = find_peak(name, PRECISIONS.get(dtype, dtype))
        most = None if peak is None else peak.at_clock(_clock(measure, facts))
        return None if peak is None or most is None else (most, f"the most of {name} ({peak.provenance})")
    if labels.get("workload") == "memory":
        memory = find_memory_peak(name)
        return None if memory is None else (memory.bytes_per_s, f"the most of {name} ({memory.provenance})")
    return None


def _network_ceiling(measure: Measure, facts: FleetFacts) -> tuple[float, str] | None:
    """Return what network cards allow between hosts, of boards that have no other way.

    NVLink can reach over hosts (GB200 racks): none of the boards whose peaks are known is of such a kind.
    """
    labels, name = measure.labels, device_of(measure, facts)
    if name is None or find_memory_peak(name) is None or labels.get("quantity") != "bus bandwidth":
        return None
    num_hosts, ranks = len(facts.hosts), labels["num_ranks"]
    cards = [cards_bytes_per_s(found) for found in facts.hosts.values()]
    if not isinstance(ranks, int) or num_hosts < 2 or ranks % num_hosts or None in cards:
        return None
    slowest = min(card for card in cards if card is not None)
    bound = bus_bound(
        str(labels["operation"]),
        num_hosts=num_hosts,
        ranks_per_host=ranks // num_hosts,
        cards_bytes_per_s=slowest,
    )
    why = f"which {num_hosts} hosts with {bandwidth(slowest)} of network cards each cannot exceed"
    return None if bound is None else (bound, why)


def device_of(measure: Measure, facts: FleetFacts) -> str | None:
    """Name the device of a measure as its driver does; None where there are several, or none is known."""
    gpu = measure.subject.partition("/gpu/")[2]
    named = host_of(measure.subject)
    hosts = facts.hosts.values() if named is None else [facts.hosts.get(named, {})]
    names = {str(device["name"]) for found in hosts for device in _devices(found, gpu) if device.get("name")}
    return names.pop() if len(names) == 1 else None


def _devices(facts: HostFacts, gpu: str) -> list[Mapping[str, object]]:
    devices = list(facts.get("devices") or ())
    return [d for d in devices if not gpu or gpu in (d.get("uuid"), str(d.get("index")))]


def _clock(measure: Measure, facts: FleetFacts) -> float | None:
    gpu = measure.subject.partition("/gpu/")[2]
    listed = (facts.hosts.get(host_of(measure.subject) or "", {}).get("accelerators") or {}).get("devices")
    clocks = [
        (device.get("static") or {}).get("clock_sm_max_mhz")
        for device in listed or ()
        if not gpu or gpu in (device.get("uuid"), str(device.get("physical_index")))
    ]
    known = [clock for clock in clocks if clock]
    return max(known) if known else None

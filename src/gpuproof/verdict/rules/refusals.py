"""Which rules cannot judge what was measured? Reasons, each with what to do; none where a rule can.

A floor that nothing which works at all could miss, one above what hardware can do, a unit that is another
one, a bandwidth of links where nothing moved: such a rule says nothing, and its outcome is an ERROR.
"""

from __future__ import annotations

from collections.abc import Sequence
from statistics import median

from gpuproof.records.result import Measure
from gpuproof.units import bandwidth, flops, share, significant
from gpuproof.verdict.facts import FleetFacts
from gpuproof.verdict.rules.bounds import ceiling_of
from gpuproof.verdict.rules.model import Expected

VACUOUS_SHARE = 0.1
"""A floor under a tenth of what is measured, or of what the device can do: only what is broken outright
misses it, and it shows by itself. Floors that are shipped in use are 0.25 to 0.98 of what is measured."""
MOST_MEASURED = 0.25
"""A spread that lets a quarter be missing measures nothing that a tolerance could be taken from."""


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

"""The roofline of a run as a picture: what the device could do, and where the run lies below it.

The solid line has the ceilings measured on the spot, the dashed one those of the data sheet. A run whose
bytes are not known has no place along the axis of intensity: it is a level line, not a point.
"""

from __future__ import annotations

from gpuproof import units
from gpuproof.records.page import Axis, Chart, Picture, Reference, Series
from gpuproof.verdict.summary import RunSummary

DECADES_BELOW, DECADES_ABOVE = 2.5, 3.0
"""Of intensity, around the ridge."""


def roofline_picture(summary: RunSummary) -> Picture | None:
    """Return the picture; None where not both ceilings were measured."""
    roofline = summary.roofline
    if roofline is None or roofline.compute is None or roofline.memory is None:
        return None
    setup, case = summary.launches[0].setup, summary.launches[0].case
    flops_per_s, bytes_per_s = roofline.compute.value_per_s, roofline.memory.value_per_s
    ridge = flops_per_s / bytes_per_s
    ends = _intensities(summary, ridge)
    roof = _roof(ends, flops_per_s, bytes_per_s)
    series = [Series(name=_named("measured", flops_per_s, bytes_per_s), points=roof, form="line")]
    if summary.peak is not None and summary.memory_peak is not None:
        peaks = summary.peak.flops_per_s, summary.memory_peak.bytes_per_s
        sheet = Series(
            name=_named("data sheet", *peaks), points=_roof(ends, *peaks), form="dashed", colour="axis"
        )
        series.append(sheet)
    point, level = _place_of_the_run(summary)
    chart = Chart(
        title="",
        kind="line",
        x=Axis(label="arithmetic intensity", unit="FLOP/byte", is_logarithmic=True, reach=ends),
        y=Axis(label="arithmetic per device", unit="FLOP/s", is_logarithmic=True),
        series=(*series, *point),
        references=(Reference(label=f"they meet at {units.significant(ridge)} FLOP/byte", x=ridge), *level),
    )
    return Picture(
        title=f"Roofline of {setup.device.name}, {setup.precision}",
        subtitle=f"{case.model_work.model.name} {case.kind}, per device; ceilings measured after the window",
        charts=(chart,),
    )


def _named(what: str, flops_per_s: float, bytes_per_s: float) -> str:
    return f"{what}: products {units.flops(flops_per_s)}, memory {units.bandwidth(bytes_per_s)}"


def _intensities(summary: RunSummary, ridge: float) -> tuple[float, float]:
    """Choose the ends of the axis, such that the ridge and the run lie between them."""
    low, high = ridge / 10**DECADES_BELOW, ridge * 10**DECADES_ABOVE
    flops, traffic = summary.flops_per_s_per_device, summary.bytes_per_s_per_device
    if flops and traffic:
        low, high = min(low, flops / traffic / 10), max(high, flops / traffic * 10)
    return low, high


def _roof(
    ends: tuple[float, float], flops_per_s: float, bytes_per_s: float
) -> tuple[tuple[float, float], ...]:
    low, high = ends
    return (low, low * bytes_per_s), (flops_per_s / bytes_per_s, flops_per_s), (high, flops_per_s)


def _place_of_the_run(summary: RunSummary) -> tuple[tuple[Series, ...], tuple[Reference, ...]]:
    """Return the run as a point, or as a level line; neither where nothing is known of its arithmetic."""
    flops, traffic = summary.flops_per_s_per_device, summary.bytes_per_s_per_device
    if not flops:
        return (), ()
    name = f"this run: {units.flops(flops)}"
    if not traffic:
        return (), (Reference(label=f"{name}, its intensity is not known", y=flops),)
    return (Series(name=name, points=((flops / traffic, flops),), form="points"),), ()

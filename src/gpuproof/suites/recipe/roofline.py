"""The roofline of a run: what the device could do, and where the run lies below it.

The solid line has the ceilings measured on the spot, the dashed one those of the data sheet. A run whose
bytes are not known has no place along the axis of intensity: it is a level line, not a point.
"""

from __future__ import annotations

from dataclasses import dataclass

from gpuproof.base import units
from gpuproof.records.page import Axis, Chart, Picture, Reference, Series
from gpuproof.verdict.measure_charts import plain_chart
from gpuproof.verdict.summary import RunSummary

DECADES_BELOW, DECADES_ABOVE = 2.5, 3.0
"""Of intensity, around the ridge."""
Points = tuple[tuple[float, float], ...]


@dataclass(frozen=True, slots=True)
class Ceiling:
    """What limits a device, and who says so."""

    source: str
    flops_per_s: float
    bytes_per_s: float

    @property
    def ridge(self) -> float:
        """The arithmetic intensity at which both limits meet, in FLOP/byte."""
        return self.flops_per_s / self.bytes_per_s

    @property
    def name(self) -> str:
        """Source and limits, for a legend."""
        compute, memory = units.flops(self.flops_per_s), units.bandwidth(self.bytes_per_s)
        return f"{self.source}: products {compute}, memory {memory}"

    def roof(self, ends: tuple[float, float]) -> Points:
        """Return the line that nothing lies above, between two intensities."""
        low, high = ends
        return (low, low * self.bytes_per_s), (self.ridge, self.flops_per_s), (high, self.flops_per_s)


def roofline_picture(summary: RunSummary) -> Picture | None:
    """Return the picture; None where not both ceilings were measured."""
    roofline = summary.roofline
    if roofline is None or roofline.compute is None or roofline.memory is None:
        return None
    setup, case = summary.launches[0].setup, summary.launches[0].case
    measured = Ceiling("measured", roofline.compute.value_per_s, roofline.memory.value_per_s)
    sheet = None
    if summary.peak is not None and summary.memory_peak is not None:
        sheet = Ceiling("data sheet", summary.peak.flops_per_s, summary.memory_peak.bytes_per_s)
    flops, traffic = summary.flops_per_s_per_device, summary.bytes_per_s_per_device
    intensity = flops / traffic if flops and traffic else None
    return Picture(
        title=f"Roofline of {setup.device.name}, {setup.precision}",
        subtitle=f"{case.model_work.model.name} {case.kind}, per device; ceilings measured after the window",
        charts=(roofline_chart(measured, flops, intensity, sheet=sheet),),
    )


def roofline_chart(
    measured: Ceiling,
    flops_per_s: float | None,
    intensity: float | None,
    *,
    sheet: Ceiling | None = None,
    title: str = "",
) -> Chart:
    """Return a run below the ceilings of its device: a point, a level line where its bytes are not known."""
    low, high = measured.ridge / 10**DECADES_BELOW, measured.ridge * 10**DECADES_ABOVE
    ends = (min(low, intensity / 10), max(high, intensity * 10)) if intensity else (low, high)
    series = [Series(name=measured.name, points=measured.roof(ends), form="line")]
    if sheet is not None:
        series.append(Series(name=sheet.name, points=sheet.roof(ends), form="dashed", colour="axis"))
    level: tuple[Reference, ...] = ()
    if flops_per_s:
        name = f"this run: {units.flops(flops_per_s)}"
        if intensity:
            series.append(Series(name=name, points=((intensity, flops_per_s),), form="points"))
        else:
            level = (Reference(label=f"{name}, its intensity is not known", y=flops_per_s),)
    meet = f"they meet at {units.significant(measured.ridge)} FLOP/byte"
    x = Axis(label="arithmetic intensity", unit="FLOP/byte", is_logarithmic=True, reach=ends)
    y = Axis(label="arithmetic per device", unit="FLOP/s", is_logarithmic=True)
    return plain_chart(title, "line", x, y, series, Reference(label=meet, x=measured.ridge), *level)

"""The page of a recipe with charts: launches, phases of a step, memory parts, and the roofline.

In a roofline, the solid line shows the measured ceilings, and the dashed line shows the data-sheet ceilings.
A run with an unknown number of bytes has no position on the intensity axis, so it is drawn as a horizontal
line instead of a point.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from gpuproof.base import units
from gpuproof.launches.point_measures import STEP, STEPS, THROUGHPUT, WINDOW
from gpuproof.records.codec import from_json
from gpuproof.records.page import Axis, Chart, Page, Picture, Pivot, Reference, Section, Series, Table
from gpuproof.records.page.tables import Column, by_launch, table
from gpuproof.records.result import WHOLE, Measure, Result
from gpuproof.suites.recipe.conclude import OptionsInEffect, RecipeDetail
from gpuproof.suites.recipe.measures import PART, PHASE
from gpuproof.suites.recipe.ranks import sections_of_ranks
from gpuproof.suites.sections import benchmark_page
from gpuproof.verdict.page import bars, chart_of_launches, plain_chart, titled
from gpuproof.verdict.summary import RunSummary

DECADES_BELOW, DECADES_ABOVE = 2.5, 3.0
"""Decades of intensity shown below and above the ridge."""
Points = tuple[tuple[float, float], ...]


def page(result: Result) -> Page:
    """Lay out results, options, launches, readings and the trace."""
    detail = from_json(RecipeDetail, result.detail, place="result.json: detail")
    ranks, of_ranks = detail.ranks, [measure for measure in result.measures if "rank" in measure.labels]
    return benchmark_page(
        result,
        detail.common,
        *recipe_charts(result.measures),
        *([] if detail.options is None else [_options(detail.options)]),
        *([_launches(result)] if result.num_launches > 1 else []),
        *([] if ranks is None else sections_of_ranks(ranks, of_ranks, num_launches=result.num_launches)),
        after=_profile(detail.profile),
        num_measures=detail.num_shown,
    )


def _profile(profile: Mapping[str, Any] | None) -> Iterator[Section]:
    if profile is not None:
        from gpuproof.suites.recipe.profile import Profiled, sections_of_profile

        yield from sections_of_profile(from_json(Profiled, profile, place="result.json: detail"))


def _options(options: OptionsInEffect) -> Table:
    return table(
        "Options in effect",
        [("options", options.summary), ("observed", options.observed)],
        Column.of("", lambda row: row[0], align="left"),
        Column.of("", lambda row: row[1], align="left", folds=True),
    )


def _launches(result: Result) -> Pivot:
    by_name = {measure.name: measure for measure in result.measures if measure.subject == WHOLE}
    texts: Mapping[str, tuple[str, Callable[[float], str]]] = {
        THROUGHPUT: ("throughput", lambda value: units.amount(value, by_name[THROUGHPUT].unit)),
        STEP: ("mean step", partial(units.seconds, digits=4)),
        STEPS: ("steps", lambda value: units.count(int(value))),
        WINDOW: ("window", units.seconds),
    }
    columns = [(title, by_name[name], text) for name, (title, text) in texts.items() if name in by_name]
    return by_launch("Launches", columns)


def recipe_charts(measures: Sequence[Measure]) -> Iterator[Chart]:
    """Yield a chart for each aspect that the measures cover."""
    whole = [measure for measure in measures if measure.subject == WHOLE]
    by_name = {measure.name: measure for measure in reversed(whole)}
    if whole and (launches := chart_of_launches(f"{titled(whole[0].name)} of each launch", {"": whole[0]})):
        yield launches
    phases = [measure for measure in whole if PHASE in measure.labels]
    if chart := bars("Phases of a step", [(str(m.labels[PHASE]), m) for m in phases], "a step"):
        yield chart
    parts = [(str(measure.labels[PART]), measure) for measure in whole if PART in measure.labels]
    peak = [("peak that was measured", by_name["peak memory"])] if "peak memory" in by_name else []
    if parts and (chart := bars("Memory of a rank: estimated parts", [*parts, *peak], "memory")):
        yield chart
    compute, memory = by_name.get("GEMM ceiling"), by_name.get("memory ceiling")
    if compute is not None and memory is not None and compute.value and memory.value:
        reached, intensity = by_name.get("model FLOP/s"), by_name.get("arithmetic intensity")
        yield roofline_chart(
            Ceiling("measured", compute.value, memory.value),
            None if reached is None else reached.value,
            None if intensity is None else intensity.value,
            title="Roofline of a device",
        )


@dataclass(frozen=True, slots=True)
class Ceiling:
    """A device's performance limits and their source."""

    source: str
    flops_per_s: float
    bytes_per_s: float

    @property
    def ridge(self) -> float:
        """The arithmetic intensity at which the two limits meet, in FLOP/byte."""
        return self.flops_per_s / self.bytes_per_s

    @property
    def name(self) -> str:
        """Source and limits, for a legend."""
        compute, memory = units.flops(self.flops_per_s), units.bandwidth(self.bytes_per_s)
        return f"{self.source}: matrix products {compute}, memory {memory}"

    def roof(self, ends: tuple[float, float]) -> Points:
        """Return the upper bound on performance between two intensities, as a line."""
        low, high = ends
        return (low, low * self.bytes_per_s), (self.ridge, self.flops_per_s), (high, self.flops_per_s)


def roofline_picture(summary: RunSummary) -> Picture | None:
    """Return the picture; None unless both ceilings have been measured."""
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
    """Return a run's point on the roofline, or a horizontal line if the bytes are unknown."""
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
            level = (Reference(label=f"{name}, its intensity is unknown", y=flops_per_s),)
    meet = f"the ceilings meet at {units.significant(measured.ridge)} FLOP/byte"
    x = Axis(label="arithmetic intensity", unit="FLOP/byte", is_logarithmic=True, reach=ends)
    y = Axis(label="arithmetic per device", unit="FLOP/s", is_logarithmic=True)
    return plain_chart(title, "line", x, y, series, Reference(label=meet, x=measured.ridge), *level)

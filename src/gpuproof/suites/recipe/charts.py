"""The pictures of a recipe's measures: launches, what a step and the memory are made of, and the roofline."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from gpuproof.records.page import Axis, Chart, Series
from gpuproof.records.result import WHOLE, Measure
from gpuproof.suites.recipe.measures import PART, PHASE
from gpuproof.suites.recipe.roofline import Ceiling, roofline_chart
from gpuproof.verdict.measure_charts import axis_of, bars, chart_of_launches, titled


def recipe_charts(measures: Sequence[Measure]) -> Iterator[Chart]:
    """Yield a chart of each question that the measures answer."""
    whole = [measure for measure in measures if measure.subject == WHOLE]
    by_name = {measure.name: measure for measure in reversed(whole)}
    if whole and (launches := chart_of_launches(f"{titled(whole[0].name)} of each launch", {"": whole[0]})):
        yield launches
    phases = [measure for measure in whole if PHASE in measure.labels]
    if chart := bars("Phases of a step", [(str(m.labels[PHASE]), m) for m in phases], "a step"):
        yield chart
    yield from _memory([measure for measure in whole if PART in measure.labels], by_name.get("peak memory"))
    compute, memory = by_name.get("GEMM ceiling"), by_name.get("memory ceiling")
    if compute is not None and memory is not None and compute.value and memory.value:
        reached, intensity = by_name.get("model FLOP/s"), by_name.get("arithmetic intensity")
        yield roofline_chart(
            Ceiling("measured", compute.value, memory.value),
            None if reached is None else reached.value,
            None if intensity is None else intensity.value,
            title="Roofline of a device",
        )


def _memory(parts: Sequence[Measure], peak: Measure | None) -> Iterator[Chart]:
    """Yield what a rank's memory is estimated to be made of, beside the peak that was measured."""
    if not parts:
        return
    names = ("estimated", *(["measured peak"] if peak is not None else []))
    series = [
        Series(name=str(m.labels[PART]), points=((0.0, m.value),)) for m in parts if m.value is not None
    ]
    if peak is not None and peak.value is not None:
        series.append(Series(name="all of a rank, in the window", points=((1.0, peak.value),), colour="axis"))
    yield Chart(
        title="Memory of a rank",
        kind="bar",
        x=Axis(label="", names=names),
        y=axis_of(parts[0], "memory"),
        series=tuple(series),
        is_stacked=True,
        is_in_a_table=True,
    )

"""The pictures of a recipe's measures: launches, what a step and the memory are made of, and the roofline."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from gpuproof.records.page import Chart
from gpuproof.records.result import WHOLE, Measure
from gpuproof.suites.recipe.measures import PART, PHASE
from gpuproof.suites.recipe.roofline import Ceiling, roofline_chart
from gpuproof.verdict.measure_charts import bars, chart_of_launches, titled


def recipe_charts(measures: Sequence[Measure]) -> Iterator[Chart]:
    """Yield a chart of each question that the measures answer."""
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

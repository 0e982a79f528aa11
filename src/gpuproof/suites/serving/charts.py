"""The pictures of serving: latency and answers in time against the rate offered, a mark a window."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from gpuproof.groups import grouped
from gpuproof.records.page import Axis, Chart, Reference, Series
from gpuproof.records.result import Measure
from gpuproof.suites.serving.windows import LIMIT, RATE, WINDOW
from gpuproof.verdict.measure_charts import axis_of

LATENCIES = {"p50": "p50 of a window", "p99": "p99 of a window"}
RATES = {"answered": "answered", "goodput": "within all bounds"}
OFFERED = "requests offered a second"


def serving_charts(measures: Sequence[Measure]) -> Iterator[Chart]:
    """Yield latency, with its bounds, and goodput against the rate; none where one rate was offered."""
    windows = [m for m in measures if WINDOW in m.labels and m.labels["offered_per_s"] is not None]
    limits = {m.labels["bound"]: m for m in measures if RATE in m.labels and m.labels["quantity"] == LIMIT}
    if len({measure.labels["offered_per_s"] for measure in windows}) < 2:
        return
    bounds = [
        Reference(label=f"{name} under {limit.text}", y=limit.value)
        for name, limit in limits.items()
        if limit.unit == "s"
    ]
    if chart := _against_rate("Latency against the rate offered", windows, LATENCIES, bounds, is_far=True):
        yield chart
    if chart := _against_rate("Requests answered against the rate offered", windows, RATES, []):
        yield chart


def _against_rate(
    title: str,
    windows: Sequence[Measure],
    names: Mapping[str, str],
    bounds: Sequence[Reference],
    *,
    is_far: bool = False,
) -> Chart | None:
    by_quantity = grouped((m.labels["quantity"], m) for m in windows if m.value is not None)
    drawn = [measure for name in names for measure in by_quantity.get(name, ())]
    if not drawn:
        return None
    titles = {names[name]: of for name in names if (of := by_quantity.get(name))}
    series = (
        Series(name=title_of, points=tuple(sorted((m.labels["offered_per_s"], m.value or 0.0) for m in of)))
        for title_of, of in titles.items()
    )
    return Chart(
        title=title,
        kind="scatter",
        x=Axis(label=OFFERED, reach=(0.0, max(m.labels["offered_per_s"] for m in drawn))),
        y=axis_of(drawn[0], ", ".join(titles), is_logarithmic=is_far),
        series=tuple(series),
        references=tuple(bounds),
        is_in_a_table=True,
    )

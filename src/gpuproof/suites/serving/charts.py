"""The pictures of serving: latency and answers in time against the rate offered, a mark a window."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from gpuproof.base.groups import grouped
from gpuproof.records.page import Axis, Chart, Reference
from gpuproof.records.result import Measure
from gpuproof.suites.serving.windows import LIMIT, RATE, WINDOW
from gpuproof.verdict.measure_charts import curve, plain_chart

LATENCIES = {"p50": "p50 of a window", "p99": "p99 of a window"}
RATES = {"answered": "answered", "goodput": "within all bounds"}
OFFERED = "requests offered a second"


def serving_charts(measures: Sequence[Measure]) -> Iterator[Chart]:
    """Yield latency, with its bounds, and goodput against the rate; none where one rate was offered."""
    windows = [m for m in measures if WINDOW in m.labels and m.labels["offered_per_s"] is not None]
    rates = {measure.labels["offered_per_s"] for measure in windows}
    of_rates = [m for m in measures if RATE in m.labels and m.labels["quantity"] == LIMIT and m.unit == "s"]
    limits = {measure.labels["bound"]: measure for measure in of_rates}
    bounds = [Reference(label=f"{name} under {limit.text}", y=limit.value) for name, limit in limits.items()]
    by_quantity = grouped((m.labels["quantity"], (m.labels["offered_per_s"], m)) for m in windows)
    for title, names, lines in (("Latency", LATENCIES, bounds), ("Requests answered", RATES, [])):
        series = [curve(names[name], of) for name in names if (of := by_quantity.get(name))]
        drawn = [one for one in series if one.points]
        if len(rates) > 1 and drawn:
            is_latency = names is LATENCIES
            unit = "s" if is_latency else "requests/s"
            y = Axis(label=", ".join(x.name for x in drawn), unit=unit, is_logarithmic=is_latency)
            x = Axis(label=OFFERED, reach=(0.0, max(rates)))
            yield plain_chart(f"{title} against the rate offered", "scatter", x, y, drawn, *lines)

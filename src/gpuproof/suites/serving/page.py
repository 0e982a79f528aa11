"""The page of a serving run: its rates and windows, and latency and goodput by offered rate."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from gpuproof.base import units
from gpuproof.base.groups import grouped
from gpuproof.records.codec import from_json
from gpuproof.records.page import Axis, Chart, Page, Pivot, Reference
from gpuproof.records.page.tables import Column, measure_cell, measure_column, pivot, pivot_of_rows
from gpuproof.records.result import Measure, Result
from gpuproof.suites.sections import benchmark_page
from gpuproof.suites.serving.conclude import ServingDetail
from gpuproof.suites.serving.exports import LIMIT, OF_A_WINDOW, RATE, WINDOW
from gpuproof.suites.serving.measures import OUTCOMES
from gpuproof.verdict.page import curve, plain_chart

RATE_OUTCOMES = {**OUTCOMES, "met": "confirmed", "missed": "refuted"}
OF_A_RATE = {"share at most": "at most", "percentile at most": "at most"}
"""Metrics of a rate with a shorter column title, since the related column is next to them."""
BEFORE_GOODPUT = ("launches within", "requests", "worth", "over", "share at most", "percentile")
LATENCIES = {"p50": "p50 of a window", "p99": "p99 of a window"}
RATES = {"answered": "answered", "goodput": "within all bounds"}
OFFERED = "requests offered per second"


def page(result: Result) -> Page:
    """Lay out the rate found, and every window."""
    detail = from_json(ServingDetail, result.detail, place="result.json: detail")
    others = result.measures[detail.num_headlines :]
    rates = _rates(measure for measure in others if RATE in measure.labels)
    windows = _windows(measure for measure in others if WINDOW in measure.labels)
    charts = serving_charts(others)
    return benchmark_page(result, detail.common, *charts, rates, windows, num_measures=detail.num_headlines)


def _windows(measures: Iterable[Measure]) -> Pivot:
    windows = grouped((measure.labels[WINDOW], measure) for measure in measures)
    titles = [title for title, _, _ in OF_A_WINDOW.values()]

    def column(title: str) -> Column:
        place = titles.index(title)
        return Column.of(title, lambda window: measure_cell(window[place]), is_optional=title == "goodput")

    return pivot_of_rows(
        "Requests",
        list(windows.values()),
        Column.of("offered", lambda window: _offered_rate(window[0])),
        *map(column, titles),
        Column.of("bound", lambda window: window[0].labels["bound"] or ""),
        Column.of("arrival seed", lambda window: _seed(window[0].labels["arrival_seed"]), is_optional=True),
    )


def _rates(measures: Iterable[Measure]) -> Pivot:
    """For each rate, show the combined result of its launches, and what is still needed to decide."""
    quantities = (*BEFORE_GOODPUT, "percentile at most", "goodput", "to decide")
    return pivot(
        "Rates, by all launches at each",
        measures,
        (
            Column.of("offered", lambda measure: f"{units.significant(measure.labels[RATE])}/s"),
            Column.of("bound", lambda measure: measure.labels["bound"], align="left"),
            Column.of("", lambda measure: RATE_OUTCOMES[measure.labels["outcome"]]),
        ),
        *(measure_column(OF_A_RATE.get(quantity, quantity), quantity) for quantity in quantities),
    )


def _seed(value: int | None) -> str:
    return units.MISSING if value is None else str(value)


def _offered_rate(measure: Measure) -> str:
    offered_per_s = measure.labels["offered_per_s"]
    if offered_per_s is None:
        return str(measure.labels["scenario"]).replace("_", " ")
    return f"{units.significant(offered_per_s)}/s"


def serving_charts(measures: Sequence[Measure]) -> Iterator[Chart]:
    """Yield latency (with its bounds) and goodput, each against rate; nothing for a single rate."""
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

"""The page: whether the pair retains enough, the rates of hosts and pair, and a chart per round."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from gpuproof.records.codec import from_json
from gpuproof.records.page import Axis, Chart, Notice, Notices, Page, Series
from gpuproof.records.page.tables import Column, measure_column, pivot
from gpuproof.records.result import Measure, Result
from gpuproof.suites.sections import benchmark_page
from gpuproof_example_toy.conclude import ToyDetail


def page(result: Result) -> Page:
    """Lay out the result."""
    detail = from_json(ToyDetail, result.detail, place="result.json: detail")
    notices = Notices(title="The pair", notices=tuple(_notices(detail)))
    rates = [measure for measure in result.measures if "num_hosts" in measure.labels]
    where = Column.of("where", lambda rate: rate.name, align="left", folds=True)
    table = pivot(
        "Hosts and pair", rates, [where], measure_column("throughput", "rate"), key=lambda _: "rate"
    )
    sections = (notices, table, _chart(rates)) if rates else (notices,)
    return benchmark_page(result, detail.common, *sections)


def _notices(detail: ToyDetail) -> Iterator[Notice]:
    if not detail.chosen:
        yield Notice(word="none", tone="warn", text=detail.why, advice="Specify two hosts or more")
        return
    hosts = " and ".join(detail.chosen)
    yield Notice(word="chosen", tone="plain", text=f"{hosts}: {detail.why}")
    if detail.is_slow:
        text = "one job over them keeps less than toy.least_kept of their individual throughput"
        yield Notice(word="slow", tone="warn", text=text, advice="Check the link between them")


def _chart(rates: Sequence[Measure]) -> Chart:
    """Plot the value of every launch."""
    points = {
        rate.name: tuple((launch.replicate + 1.0, launch.value) for launch in rate.launches) for rate in rates
    }
    return Chart(
        title="Throughput round by round",
        kind="line",
        x=Axis(label="round"),
        y=Axis(label="throughput", unit=rates[0].unit),
        series=tuple(Series(name=name, points=of_rate) for name, of_rate in points.items()),
    )

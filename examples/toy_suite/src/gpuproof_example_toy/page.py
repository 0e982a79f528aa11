"""The page: whether the pair keeps enough, a table and a chart of rounds, and what every benchmark says."""

from __future__ import annotations

from collections.abc import Iterator

from gpuproof import units
from gpuproof.records.codec import from_json
from gpuproof.records.page import Axis, Chart, Column, Notice, Notices, Page, Series, Table, table
from gpuproof.records.result import Result
from gpuproof.suites.sections import benchmark_page
from gpuproof_example_toy.conclude import Round, ToyDetail


def page(result: Result) -> Page:
    """Lay out the result."""
    detail = from_json(ToyDetail, result.detail, place="result.json: detail")
    notices = Notices(title="The pair", notices=tuple(_notices(detail)))
    sections = (notices, _table(detail), _chart(detail)) if detail.rounds else (notices,)
    return benchmark_page(result, detail.common, *sections)


def _notices(detail: ToyDetail) -> Iterator[Notice]:
    if not detail.chosen:
        yield Notice(word="none", tone="warn", text=detail.why, advice="Name two hosts or more")
        return
    hosts = " and ".join(detail.chosen)
    yield Notice(word="chosen", tone="plain", text=f"{hosts}: {detail.why}")
    if detail.is_slow:
        text = "one job over them keeps less than toy.least_kept of what they do alone"
        yield Notice(word="slow", tone="warn", text=text, advice="Look at the link between them")


def _table(detail: ToyDetail) -> Table:
    return table(
        "Rounds",
        detail.rounds,
        Column.of("where", lambda row: row.where, align="left", folds=True),
        Column.of("round", lambda row: str(row.round)),
        Column.of("throughput", lambda row: units.rate(row.items_per_s, detail.item)),
    )


def _chart(detail: ToyDetail) -> Chart:
    rows: dict[str, list[Round]] = {}
    for row in detail.rounds:
        rows.setdefault(row.where, []).append(row)
    series = (
        Series(name=name, points=tuple((float(row.round), row.items_per_s) for row in own))
        for name, own in rows.items()
    )
    return Chart(
        title="Throughput round by round",
        kind="line",
        x=Axis(label="round"),
        y=Axis(label="throughput", unit=f"{detail.item}/s"),
        series=tuple(series),
    )

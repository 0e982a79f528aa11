"""The page of a serving run."""

from __future__ import annotations

from collections.abc import Sequence
from math import inf

from gpuproof import units
from gpuproof.records.codec import from_json
from gpuproof.records.page import Column, Page, Table, table
from gpuproof.records.result import Result
from gpuproof.suites.sections import benchmark_page
from gpuproof.suites.serving.conclude import RateRow, RequestsRow, ServingDetail
from gpuproof.suites.serving.measures import bound_value

RATE_OUTCOMES = {"met": "confirmed", "missed": "refuted", "undecided": "undecided"}


def page(result: Result) -> Page:
    """Lay out the rate that was found, and every window."""
    detail = from_json(ServingDetail, result.detail, place="result.json: detail")
    requests = table(
        "Requests",
        detail.requests,
        Column.of("offered", _offered_rate),
        Column.of("answered", lambda row: f"{units.significant(row.answered_per_s)}/s"),
        Column.of("requests", lambda row: units.count(row.num_requests)),
        Column.of("failed", lambda row: units.count(row.num_failed)),
        Column.of("p50", lambda row: units.seconds(row.p50_latency_s)),
        Column.of("p99", lambda row: units.seconds(row.p99_latency_s)),
        Column.of("batch", lambda row: _number(row.mean_batch)),
        Column.of("busy", lambda row: units.share(row.busy_share)),
        Column.of("goodput", lambda row: _per_s(row.goodput_per_s), is_optional=True),
        Column.of("bound", lambda row: row.bound or ""),
        Column.of("arrival seed", lambda row: _seed(row.arrival_seed), is_optional=True),
    )
    return benchmark_page(result, detail.common, _rates(detail.rates), requests)


def _rates(rows: Sequence[RateRow]) -> Table:
    """Say of each rate what all launches at it come to, and what would be needed for more."""
    return table(
        "Rates, by all launches at each",
        rows,
        Column.of("offered", lambda row: f"{units.significant(row.rate_per_s)}/s"),
        Column.of("bound", lambda row: f"p{row.standing.q:g} {row.standing.name}", align="left"),
        Column.of("", lambda row: RATE_OUTCOMES[row.standing.outcome]),
        Column.of("launches within", lambda row: f"{row.standing.num_confirming} of {row.launches}"),
        Column.of("requests", lambda row: units.count(row.standing.num_requests)),
        Column.of("worth", lambda row: _whole(row.standing.effective_requests)),
        Column.of("over", lambda row: units.share(row.standing.num_over / row.standing.num_requests)),
        Column.of("at most", lambda row: units.share(row.standing.largest_share_over)),
        Column.of("percentile", lambda row: bound_value(row.standing.percentile, row.standing)),
        Column.of("at most", lambda row: bound_value(row.standing.percentile_at_most, row.standing)),
        Column.of("goodput", lambda row: _per_s(row.goodput_per_s)),
        Column.of("to decide", lambda row: _whole(row.standing.needed_requests)),
    )


def _per_s(value: float | None) -> str:
    return units.MISSING if value is None else f"{units.significant(value)}/s"


def _whole(value: float | None) -> str:
    return units.MISSING if value is None or value == inf else units.count(round(value))


def _seed(value: int | None) -> str:
    return units.MISSING if value is None else str(value)


def _offered_rate(row: RequestsRow) -> str:
    if row.offered_per_s is None:
        return row.scenario.replace("_", " ")
    return f"{units.significant(row.offered_per_s)}/s"


def _number(value: float | None) -> str:
    return units.MISSING if value is None else units.significant(value)

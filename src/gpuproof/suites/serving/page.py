"""The page of a serving run."""

from __future__ import annotations

from gpuproof import units
from gpuproof.records.codec import from_json
from gpuproof.records.page import Column, Page, table
from gpuproof.records.result import Result
from gpuproof.suites.sections import benchmark_page
from gpuproof.suites.serving.conclude import RequestsRow, ServingDetail


def page(result: Result) -> Page:
    """Lay out the rate that was found, and every window."""
    detail = from_json(ServingDetail, result.detail, place="result.json: detail")
    requests = table(
        "Requests",
        detail.requests,
        Column.of("offered", _offered),
        Column.of("answered", lambda row: f"{units.significant(row.answered_per_s)}/s"),
        Column.of("requests", lambda row: units.count(row.num_requests)),
        Column.of("failed", lambda row: units.count(row.num_failed)),
        Column.of("p50", lambda row: units.seconds(row.p50_latency_s)),
        Column.of("p99", lambda row: units.seconds(row.p99_latency_s)),
        Column.of("batch", lambda row: _number(row.mean_batch)),
        Column.of("busy", lambda row: units.share(row.busy_share)),
        Column.of("bound", lambda row: row.bound or ""),
    )
    return benchmark_page(result, detail.common, requests)


def _offered(row: RequestsRow) -> str:
    if row.offered_per_s is None:
        return row.scenario.replace("_", " ")
    return f"{units.significant(row.offered_per_s)}/s"


def _number(value: float | None) -> str:
    return units.MISSING if value is None else units.significant(value)

"""fleet.json: every host and all together, and the aggregate of their tests in lambdactl's form.

Of one recipe a row a host; of several points or tests, each of them on each host.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from gpuproof.analysis.hosts import (
    FleetSummary,
    SuiteSummary,
    cost_per_million,
    summarize_fleet,
    summarize_suite,
)
from gpuproof.analysis.points import PointFigures
from gpuproof.readings.evidence import Evidence
from gpuproof.records.codec import to_json
from gpuproof.records.result import Result, Validity
from gpuproof.records.run import Failure, is_host_failure
from gpuproof.suites.base import Export, JsonContent
from gpuproof.suites.by_host.host import HostConclusion
from gpuproof.suites.by_host.plan import folder_name
from gpuproof.suites.exports import json_export

FLEET_FILE = "fleet.json"
HOSTS_FOLDER = "hosts"
PER_TABLE = 6
"""Points beside each other; as many as there are tests of a kind in the load suite."""
NOT_BEGUN = "nothing was launched there"
NOT_ENDED = "it did not go through all that was asked for"


@dataclass(frozen=True, slots=True, kw_only=True)
class HostRow:
    """One host of a fleet that ran one recipe."""

    host: str
    gpu_type: str | None
    """None where nothing was measured and the inventory does not say."""
    num_devices: int | None
    num_launches: int
    num_planned: int
    items_per_s_total: float | None
    items_per_s_per_device: float | None
    energy_j_per_item: float | None
    cost_per_million_items: float | None
    validity: Validity | None
    stage: str | None
    """Where it failed: setup, deploy, execute, download, parse or exception; None where it did not."""
    failure: str | None
    sentences: tuple[str, ...]
    """What stood out in the readings beside its launches."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FleetReport:
    """One recipe host by host, and together."""

    item: str
    currency: str
    hosts: tuple[HostRow, ...]
    """In the order of the inventory."""
    summary: FleetSummary


@dataclass(frozen=True, slots=True, kw_only=True)
class SuiteColumn:
    """One test, or one point."""

    name: str
    """As its launches are called."""
    group: str
    """Of columns that stand in one table."""
    label: str
    """Short, above its column."""
    item: str


@dataclass(frozen=True, slots=True, kw_only=True)
class SuiteCell:
    """One test on one host."""

    success: bool | None
    """None where it was not run to an end."""
    items_per_s_total: float | None
    """Of all devices of the host."""
    items_per_s_per_device: float | None
    mean_step_s: float | None
    energy_j_per_item: float | None
    cost_per_million_items: float | None
    validity: Validity | None
    outcome: str
    """Why there are no figures; empty where there are."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SuiteHost:
    """One host with all its tests."""

    host: str
    gpu_type: str | None
    """None where nothing was measured and the inventory does not say."""
    num_devices: int | None
    num_successful: int
    num_failed: int
    num_not_run: int
    relative_to_type: float | None
    """Its rate over the median of its type, as a mean over tests; None without others to compare with."""
    energy_j_per_item: float | None
    """Over all tests, which weigh as many items as they have; None unless every test succeeded."""
    cost_per_million_items: float | None
    """Likewise, of the time in the windows."""
    best: str | None
    """The point of the highest throughput; None for tests, which are not ranked."""
    validity: Validity | None
    stage: str | None
    """Where it failed: setup, deploy, execute, download, parse or exception; None where it did not."""
    failure: str | None
    cells: tuple[SuiteCell, ...]
    """In the order of the columns."""
    sentences: tuple[str, ...]
    """What stood out in the readings beside its launches."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FleetSuite:
    """Every test on every host."""

    what: Literal["tests", "points"]
    currency: str
    columns: tuple[SuiteColumn, ...]
    hosts: tuple[SuiteHost, ...]
    """In the order of the inventory."""
    summary: SuiteSummary


def report_of_recipe(hosts: Sequence[HostConclusion], *, currency: str) -> FleetReport:
    """Put one recipe's hosts in rows."""
    measured = [found for host in hosts for name in host.points if (found := host.measured(name))]
    items = [point.item for host in hosts for point in host.points.values() if point.launches]
    return FleetReport(
        item=items[0] if items else "samples",
        currency=currency,
        hosts=tuple(_host_row(host) for host in hosts),
        summary=summarize_fleet(measured, num_hosts=len(hosts)),
    )


def _host_row(host: HostConclusion) -> HostRow:
    (point,) = host.points.values()
    measured = host.figures(point)
    failure = host.unreached or next(iter(point.failures), None)
    return HostRow(
        host=host.name,
        gpu_type=measured.gpu_type if measured else host.host.get("gpu_type"),
        num_devices=measured.num_devices if measured else host.host.get("gpus"),
        num_launches=len(point.launches),
        num_planned=point.num_planned,
        items_per_s_total=measured.items_per_s_total if measured else None,
        items_per_s_per_device=measured.items_per_s_per_device if measured else None,
        energy_j_per_item=measured.energy_j_per_item if measured else None,
        cost_per_million_items=measured.cost_per_million_items if measured else None,
        validity=point.validity,
        stage=None if failure is None else stage_of(failure),
        failure=None if failure is None else failure.message,
        sentences=tuple(host.sentences()),
    )


def stage_of(failure: Failure) -> str:
    """Name the stage of a failure; what a rank itself tells of happened while it ran."""
    return failure.phase if is_host_failure(failure) else "execute"


def report_of_points(hosts: Sequence[HostConclusion], *, currency: str) -> FleetSuite:
    """Put points or tests beside each other, host by host."""
    names = list(hosts[0].points)
    measured = {name: [x for host in hosts if (x := host.measured(name)) is not None] for name in names}
    summary = summarize_suite(measured, num_hosts=len(hosts))
    return FleetSuite(
        what="points" if hosts[0].common.is_ranked else "tests",
        currency=currency,
        columns=tuple(_columns(hosts)),
        hosts=tuple(_suite_host(host, summary) for host in hosts),
        summary=summary,
    )


def _columns(hosts: Sequence[HostConclusion]) -> Iterator[SuiteColumn]:
    points = [point for host in hosts for point in host.points.values() if point.launches]
    items = {point.case_id: point.item for point in reversed(points)}
    labels = {label.case_id: label for label in hosts[0].common.labels}
    num_points = len(hosts[0].points)
    for place, name in enumerate(hosts[0].points):
        first = place - place % PER_TABLE
        group, label = f"Points {first + 1} to {min(first + PER_TABLE, num_points)}", str(place + 1)
        if name in labels:
            group, label = labels[name].group, labels[name].label
        yield SuiteColumn(name=name, group=group, label=label, item=items.get(name, "samples"))


def _suite_host(host: HostConclusion, summary: SuiteSummary) -> SuiteHost:
    ended = [point.success for point in host.points.values()]
    validities = [point.validity for point in host.points.values() if point.validity is not None]
    gravest: Validity | None = next((v for v in ("INVALID", "SUSPECT", "VALID") if v in validities), None)
    speed = next((speed for speed in summary.hosts if speed.host == host.name), None)
    tests = tests_of_host(host, {})
    energy, cost = _of_all_points(host) if all(ended) else (None, None)
    return SuiteHost(
        host=host.name,
        gpu_type=host.gpu_type,
        num_devices=host.num_devices,
        num_successful=ended.count(True),
        num_failed=ended.count(False),
        num_not_run=ended.count(None),
        relative_to_type=None if speed is None else speed.relative_to_type,
        energy_j_per_item=energy,
        cost_per_million_items=cost,
        best=host.best,
        validity=gravest,
        stage=tests.stage,
        failure=tests.error,
        cells=tuple(_cell(host, point) for point in host.points.values()),
        sentences=tuple(host.sentences()),
    )


def _of_all_points(host: HostConclusion) -> tuple[float | None, float | None]:
    """Return energy of an item and cost of a million over all points; None of what is not known."""
    points = list(host.points.values())
    if len({point.item for point in points}) != 1:
        return None, None
    items, window_s = sum(p.items_total for p in points), sum(p.window_s for p in points)
    known_j = [point.energy_j for point in points if point.energy_j is not None]
    price = host.host.get("price_per_hour")
    return (
        sum(known_j) / items if len(known_j) == len(points) else None,
        None if price is None else cost_per_million(price, items / window_s),
    )


def _cell(host: HostConclusion, point: PointFigures) -> SuiteCell:
    measured = host.measured(point.case_id)
    outcome = "" if point.success else "not run"
    if point.success is False:
        outcome = f"failed: {point.failures[0].cause.replace('_', ' ')}"
    return SuiteCell(
        success=point.success,
        items_per_s_total=measured.items_per_s_total if measured else None,
        items_per_s_per_device=measured.items_per_s_per_device if measured else None,
        mean_step_s=point.mean_step_s if measured else None,
        energy_j_per_item=measured.energy_j_per_item if measured else None,
        cost_per_million_items=measured.cost_per_million_items if measured else None,
        validity=point.validity if measured else None,
        outcome=outcome,
    )


def exports_of_hosts(
    evidence: Evidence, hosts: Sequence[HostConclusion], report: FleetReport | FleetSuite, result: Result
) -> Iterator[Export]:
    """Yield the aggregate, the summary, and what the inner suite wrote for each host."""
    documents = [_document(host) for host in hosts]
    tests = [tests_of_host(host, document) for host, document in zip(hosts, documents, strict=True)]
    timestamp = evidence.description["created"]
    yield json_export(FLEET_FILE, {**aggregate(tests, timestamp=timestamp), "fleet": to_json(report)})
    kind = {} if isinstance(report, FleetReport) else {"kind": evidence.config.kind}
    yield json_export(
        "run_summary.json",
        {
            "experiment_name": evidence.config.run.experiment_name,
            "run_id": evidence.description["run_id"],
            **kind,
            "num_hosts": report.summary.num_hosts,
            "num_hosts_measured": report.summary.num_measured,
            "num_planned": result.num_planned,
            "num_launches": result.num_launches,
            "validity": result.validity,
            "details": FLEET_FILE,
        },
    )
    for host, document in zip(hosts, documents, strict=True):
        for export in host.conclusion.exports:
            if export.is_of_host and document["results"]:
                name = f"{HOSTS_FOLDER}/{folder_name(host.name)}/{export.name}"
                yield Export(name=name, content=export.content)


def _document(host: HostConclusion) -> dict[str, Any]:
    """Return a host's tests in S0's form: as the inner suite writes them, else made of its figures."""
    for export in host.conclusion.exports:
        if export.is_of_host and isinstance(export.content, JsonContent):
            return dict(export.content.value)
    return {"results": [test for point in host.points.values() for test in _tests(host, point)]}


def _tests(host: HostConclusion, point: PointFigures) -> Iterator[dict[str, Any]]:
    """Yield the launches of a point as tests in S0's form; of one that failed, that it did."""
    about = {
        "test_name": point.case_id,
        "test_type": point.kind,
        "model_name": point.model,
        "batch_size": point.batch_size,
    }
    if point.success is False and not host.is_single:
        failure = point.failures[0]
        yield {
            **about,
            "throughput_samples_per_second": None,
            "success": False,
            "error_message": failure.message or failure.cause,
            "error_cause": failure.cause,
        }
        return
    for launch in point.launches:
        yield {
            **about,
            "replicate": launch.replicate,
            "throughput_samples_per_second": launch.value / point.items_per_sample,
            "success": True,
        }


def tests_of_host(host: HostConclusion, document: Mapping[str, Any]) -> HostTests:
    """Return a host's tests for the aggregate, and the stage at which it failed, if it did.

    A host that went through the suite is successful, though tests of it may have failed, unless it measured
    nothing.
    """
    points = list(host.points.values())
    if host.is_single:
        failures = list(points[0].failures)
        num_planned, num_measured = points[0].num_planned, len(points[0].launches)
    else:
        failures = host.first_failures
        num_planned, num_measured = len(points), sum(bool(point.success) for point in points)
    of_host = host.host_failure
    told = of_host or next(iter(failures), None)
    if num_measured and num_measured + len(failures) >= num_planned and of_host is None:
        return HostTests(host=host.name, document=document)
    missing = NOT_ENDED if num_measured else NOT_BEGUN
    return HostTests(
        host=host.name,
        document=document if document.get("results") else None,
        stage=None if told is None else stage_of(told),
        error=missing if told is None else told.message or told.cause,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class HostTests:
    """What one host gave back of a suite of tests, in S0's form; or where it failed, and why."""

    host: str
    document: Mapping[str, Any] | None
    """S0's JSON: its `results` are tests with test_type, success and throughput_samples_per_second. Of a
    host that failed, those that ended before."""
    stage: str | None = None
    error: str | None = None
    """Why the suite did not come to its end there; None where it did."""

    @property
    def is_whole(self) -> bool:
        """Say whether the host went through the whole suite."""
        return self.document is not None and self.error is None


def aggregate(hosts: Sequence[HostTests], *, timestamp: str) -> dict[str, Any]:
    """Put the tests of many hosts together, in the form of lambdactl's aggregate.

    A host is successful when it went through the suite. One that failed on the way keeps what it measured:
    its tests count in `performance_summary`, and stand beside its error. Each test gains `source_hostname`.
    Throughput is of tests that succeeded and have one; null where there is none.
    """
    documents = [None if host.document is None else _with_source(host) for host in hosts]
    tests = [test for document in documents if document is not None for test in document["results"]]
    told = list(zip(hosts, documents, strict=True))
    failed = [
        {"hostname": host.host, "stage": host.stage, "error": host.error, **(document or {})}
        for host, document in told
        if not host.is_whole
    ]
    return {
        "summary": {
            "total_instances": len(hosts),
            "successful_instances": len(hosts) - len(failed),
            "failed_instances": len(failed),
            "success_rate": (len(hosts) - len(failed)) / len(hosts) if hosts else None,
            "timestamp": timestamp,
        },
        "performance_summary": _performance(tests),
        "successful_results": [
            {"hostname": host.host, **(document or {})} for host, document in told if host.is_whole
        ],
        "failed_results": failed,
    }


def _with_source(host: HostTests) -> dict[str, Any]:
    document = host.document or {}
    tests = [{**test, "source_hostname": host.host} for test in document.get("results", ())]
    return {**document, "results": tests}


def _performance(tests: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    kinds = {
        kind: [test for test in tests if test["test_type"] == kind] for kind in ("training", "inference")
    }
    return {
        "total_tests": len(tests),
        **{f"{kind}_tests": len(of_kind) for kind, of_kind in kinds.items()},
        **{kind: _throughputs(of_kind) for kind, of_kind in kinds.items()},
    }


def _throughputs(tests: Sequence[Mapping[str, Any]]) -> dict[str, float | None]:
    rates = [
        test["throughput_samples_per_second"]
        for test in tests
        if test["success"] and test["throughput_samples_per_second"] is not None
    ]
    return {
        "avg_throughput": sum(rates) / len(rates) if rates else None,
        "max_throughput": max(rates, default=None),
        "min_throughput": min(rates, default=None),
    }

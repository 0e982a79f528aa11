"""Write fleet.json: each host and all hosts together, with tests in lambdactl's aggregate format."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from gpuproof.launches.point_measures import STEP, PointMeasures
from gpuproof.readings.evidence import Evidence
from gpuproof.records.result import Result
from gpuproof.suites.base import Export, JsonContent
from gpuproof.suites.by_host.host import HostConclusion
from gpuproof.suites.by_host.report import HostsReport, HostState
from gpuproof.suites.cases import folder_name
from gpuproof.suites.results import HOSTS_FOLDER, json_export

FLEET_FILE = "fleet.json"


def exports_of_hosts(
    evidence: Evidence, hosts: Sequence[HostConclusion], report: HostsReport, result: Result
) -> Iterator[Export]:
    """Yield the files with the aggregate and the summary, and the inner suite's files for each host."""
    documents = [_document(host) for host in hosts]
    tests = [_host_tests(host, document) for host, document in zip(hosts, documents, strict=True)]
    timestamp = evidence.description["created"]
    yield json_export(
        FLEET_FILE, {**aggregate(tests, timestamp=timestamp), "fleet": fleet_json(hosts, report)}
    )
    kind = {} if report.what == "launches" else {"kind": evidence.config.kind}
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
            if document["results"] or (not host.points and host.result.num_launches):
                name = f"{HOSTS_FOLDER}/{folder_name(host.name)}/{export.name}"
                yield Export(name=name, content=export.content)


def fleet_json(hosts: Sequence[HostConclusion], report: HostsReport) -> dict[str, Any]:
    """Return hosts side by side: with one recipe, a row per host; otherwise, a row per test and host."""
    pairs = list(zip(hosts, report.states, strict=True))
    if report.what == "launches":
        summary = report.summary.tests[0].summary
        rows = [_recipe_row(host, state) for host, state in pairs]
        return {"item": report.item, "currency": report.currency, "hosts": rows, "summary": summary}
    speeds = {x.host: x.relative_to_type for x in report.summary.hosts if report.what != "figures"}
    return {
        "what": report.what,
        "currency": report.currency,
        "columns": report.columns,
        "hosts": [_suite_row(host, state, speeds.get(host.name)) for host, state in pairs],
        "summary": report.summary,
    }


def _recipe_row(host: HostConclusion, state: HostState) -> dict[str, Any]:
    (point,) = host.points.values()
    return {
        "host": host.name,
        "gpu_type": state.gpu_type,
        "num_devices": state.num_devices,
        "num_launches": point.num_launches,
        "num_planned": point.num_planned,
        **_values(host, point),
        "validity": state.validity,
        "stage": state.stage,
        "failure": state.failure,
        "sentences": state.sentences,
    }


def _suite_row(host: HostConclusion, state: HostState, relative_to_type: float | None) -> dict[str, Any]:
    energy, cost = host.energy_and_cost if host.points else (None, None)
    return {
        "host": host.name,
        "gpu_type": state.gpu_type,
        "num_devices": state.num_devices,
        "num_successful": state.num_successful,
        "num_failed": state.num_failed,
        "num_not_run": state.num_not_run,
        "relative_to_type": relative_to_type,
        "energy_j_per_item": energy,
        "cost_per_million_items": cost,
        "best": state.best,
        "validity": state.validity,
        "stage": state.stage,
        "failure": state.failure,
        "cells": [_cell(host, point) for point in host.points.values()],
        "sentences": state.sentences,
    }


def _cell(host: HostConclusion, point: PointMeasures) -> dict[str, Any]:
    """Return one test on one host: its results, or the reason why there are none."""
    outcome = "" if point.success else "not run"
    if point.success is False:
        outcome = f"failed: {point.failures[0].cause.replace('_', ' ')}"
    total, of_device, energy, cost = _values(host, point).items()
    return dict(
        [
            ("success", point.success),
            total,
            of_device,
            ("mean_step_s", point.value(STEP) if point.success else None),
            energy,
            cost,
            ("validity", point.validity if point.success else None),
            ("outcome", outcome),
        ]
    )


def _values(host: HostConclusion, point: PointMeasures) -> dict[str, float | None]:
    measured = host.measured(point.case_id)
    return {
        "items_per_s_total": measured.items_per_s_total if measured else None,
        "items_per_s_per_device": measured.items_per_s_per_device if measured else None,
        "energy_j_per_item": measured.energy_j_per_item if measured else None,
        "cost_per_million_items": measured.cost_per_million_items if measured else None,
    }


def _document(host: HostConclusion) -> dict[str, Any]:
    """Return a host's tests in S0's form: as the inner suite wrote them, or built from its results.

    Results other than tests are stored next to the tests.
    """
    if not host.points:
        figures = [(m.name, m.value, m.unit) for m in host.headlines.values()]
        return {
            "results": [],
            "figures": [dict(zip(("name", "value", "unit"), f, strict=True)) for f in figures],
        }
    for export in host.conclusion.exports:
        if isinstance(export.content, JsonContent):
            return dict(export.content.value)
    return {"results": [test for point in host.points.values() for test in _tests(host, point)]}


def _tests(host: HostConclusion, point: PointMeasures) -> Iterator[dict[str, Any]]:
    """Yield the launches at a point as tests in S0's form; a failed launch is marked as failed."""
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


@dataclass(frozen=True, slots=True, kw_only=True)
class HostTests:
    """The results of a test suite on one host, in S0's format; or where and why the suite failed."""

    host: str
    document: Mapping[str, Any] | None
    """Content of S0's JSON, in which `results` are tests with test_type, success and
    throughput_samples_per_second. For a failed host, these are only the tests that finished before the
    failure."""
    stage: str | None = None
    error: str | None = None
    """Reason why the suite did not finish on the host; None if it did."""

    @property
    def is_whole(self) -> bool:
        """Report whether the host completed the whole suite."""
        return self.document is not None and self.error is None


def _host_tests(host: HostConclusion, document: Mapping[str, Any]) -> HostTests:
    missing = host.incomplete()
    if missing is None:
        return HostTests(host=host.name, document=document)
    stage, error = missing
    return HostTests(
        host=host.name,
        document=document if document["results"] or document.get("figures") else None,
        stage=stage,
        error=error,
    )


def aggregate(hosts: Sequence[HostTests], *, timestamp: str) -> dict[str, Any]:
    """Combine the tests of many hosts in lambdactl's aggregate format.

    A host is successful if it completed the suite. If it failed midway, its results are kept: its tests count
    in `performance_summary`, and are listed next to its error. Each test gains `source_hostname`. Throughput
    covers successful tests that report one and are not INVALID; it is null if there are none.
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
        if test["success"]
        and test["throughput_samples_per_second"] is not None
        and test.get("validity") != "INVALID"
    ]
    return {
        "avg_throughput": sum(rates) / len(rates) if rates else None,
        "max_throughput": max(rates, default=None),
        "min_throughput": min(rates, default=None),
    }

"""Conclude a suite of tests, or a sweep, on a fleet: every host by itself as on one machine, then together.

In: the launches of all hosts, and the inventory as run.json holds it. Out: the report, fleet.json with the
whole and with lambdactl's aggregate, and for the load suite a host's results in S0's form. Needs no host.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from gpuproof.analysis.fleet import aggregate
from gpuproof.analysis.fleet_suite import SuiteSummary, summarize_suite
from gpuproof.analysis.launch import Launch
from gpuproof.analysis.validity import Finding, worst
from gpuproof.config.models import RunConfig
from gpuproof.records.codec import to_json
from gpuproof.records.collected import CaseRecords
from gpuproof.records.run import Environment
from gpuproof.report.explanations import LaunchExplanation
from gpuproof.report.fleet_story import (
    FLEET,
    FLEET_FILE,
    hosts_and_types,
    notes_of,
    together,
    without_effect,
    write_environments,
)
from gpuproof.report.fleet_suite_host import SuiteOnHost, suite_on_host
from gpuproof.report.fleet_suite_model import FleetSuite, SuiteColumn
from gpuproof.report.load_results import advised, as_load, how_run
from gpuproof.report.loadtest_format import RESULTS_FILE, loadtest_json
from gpuproof.report.model import ReportModel, launch_rows, next_commands
from gpuproof.report.sweep import findings_of_sweep, what_is_swept
from gpuproof.store.run import RunDirectory
from gpuproof.suites.fleet import folder_name, on_host
from gpuproof.suites.loadtest import TESTS
from gpuproof.suites.matrix import Point
from gpuproof.suites.plan import points_of

HOSTS_FOLDER = "hosts"
PER_TABLE = 6
"""Points beside each other; as many as there are tests of a kind in the load suite."""
GROUPS = {"training": "Training", "inference": "Inference"}


@dataclass(frozen=True, slots=True, kw_only=True)
class _Fleet:
    """All hosts of a run with what they left."""

    config: RunConfig
    description: Mapping[str, Any]
    hosts: tuple[SuiteOnHost, ...]
    summary: SuiteSummary

    @property
    def launches(self) -> list[Launch]:
        return [launch for host in self.hosts for launch in host.launches]


def conclude_fleet_suite(run: RunDirectory, config: RunConfig, cases: Sequence[CaseRecords]) -> ReportModel:
    """Make the report of a suite on a fleet, and its derived files."""
    fleet = _fleet(run, config, cases)
    shown = FleetSuite(
        what="tests" if config.kind == "load" else "points",
        currency=fleet.description[FLEET]["currency"],
        columns=tuple(_columns(config, fleet)),
        hosts=tuple(host.shown(fleet.summary) for host in fleet.hosts),
        summary=fleet.summary,
    )
    findings = together(_findings(fleet))
    failures = tuple(failure for host in fleet.hosts for failure in host.told_failures())
    launches, num_planned = fleet.launches, sum(host.sweep.num_planned for host in fleet.hosts)
    write_environments(run, cases)
    validity = worst(findings) if launches else None
    _write_files(run, fleet, shown, validity=validity, num_planned=num_planned)
    commands = next_commands(failures, run=str(run.root), is_complete=len(launches) >= num_planned)
    return ReportModel(
        schema_version=1,
        title=_title(fleet),
        run=str(run.root),
        validity=validity,
        measures=(),
        launches=launch_rows(launches),
        num_planned=num_planned,
        findings=findings,
        failures=failures,
        explanations=tuple(_explanations(fleet)),
        not_applied=without_effect((host.launches for host in fleet.hosts), fleet.description["origins"]),
        notes=(*notes_of(launches, cases), *_missing(fleet.summary)),
        files=tuple(sorted(path.name for path in run.root.iterdir() if not path.name.startswith("."))),
        next_commands=tuple(map(as_load, commands)) if config.kind == "load" else commands,
        fleet=shown,
    )


def _fleet(run: RunDirectory, config: RunConfig, cases: Sequence[CaseRecords]) -> _Fleet:
    description = run.description()
    hosts = tuple(suite_on_host(run, host, config, cases) for host in description[FLEET]["hosts"])
    names = [point.case_id for point in points_of(config, ())]
    return _Fleet(
        config=config,
        description=description,
        hosts=hosts,
        summary=summarize_suite(
            {name: [found for host in hosts if (found := host.measured(name))] for name in names},
            num_hosts=len(hosts),
        ),
    )


def _columns(config: RunConfig, fleet: _Fleet) -> Iterator[SuiteColumn]:
    items = {launch.case.case_id: launch.setup.item for launch in fleet.launches}
    if config.kind == "load":
        for test in TESTS:
            label = f"{test.model.removeprefix('simple_')} {test.batch_size}"
            group = GROUPS[test.test_type]
            yield SuiteColumn(name=test.name, group=group, label=label, item=items.get(test.name, "samples"))
        return
    points: Sequence[Point] = points_of(config, ())
    for place, point in enumerate(points):
        first = place - place % PER_TABLE
        group = f"Points {first + 1} to {min(first + PER_TABLE, len(points))}"
        item = items.get(point.case_id, "samples")
        yield SuiteColumn(name=point.case_id, group=group, label=str(place + 1), item=item)


def _findings(fleet: _Fleet) -> Iterator[tuple[str, Finding]]:
    for host in fleet.hosts:
        for finding in findings_of_sweep(host.sweep):
            yield host.name, advised(finding) if fleet.config.kind == "load" else finding


def _explanations(fleet: _Fleet) -> Iterator[LaunchExplanation]:
    """Name each explanation's case with its host, as its folder is called."""
    for host in fleet.hosts:
        for launch, found in host.explained:
            yield replace(found, case_id=on_host(launch.case, host.name, nproc=None).case_id)


def _title(fleet: _Fleet) -> str:
    launch = next(iter(fleet.launches), None)
    summary = fleet.summary
    if fleet.config.kind == "load":
        parts = [f"load suite, {len(TESTS)} tests", *([how_run(launch)] if launch else [])]
    else:
        parts = [what_is_swept(fleet.hosts[0].sweep)]
    types = (kind.gpu_type for kind in summary.types)
    return ", ".join([*parts, hosts_and_types(summary.num_measured, summary.num_hosts, types)])


def _missing(summary: SuiteSummary) -> Iterator[str]:
    """Say once why figures are not there that a fleet is asked for."""
    measured = [test for test in summary.tests if test.summary.num_measured]
    for what, reasons in (
        ("energy", [(test.name, test.summary.energy_missing) for test in measured]),
        ("cost", [(test.name, test.summary.cost_missing) for test in measured]),
    ):
        told = [(name, reason) for name, reason in reasons if reason is not None]
        if told:
            name, reason = told[0]
            more = f" and {len(told) - 1} more" if len(told) > 1 else ""
            yield f"no {what} of {name}{more}: {reason}"
    if summary.types_missing is not None:
        yield f"types of GPU are not compared: {summary.types_missing}"


def _write_files(
    run: RunDirectory, fleet: _Fleet, shown: FleetSuite, *, validity: str | None, num_planned: int
) -> None:
    documents = [_document(run, host, fleet) for host in fleet.hosts]
    tests = [host.tests_with(document) for host, document in zip(fleet.hosts, documents, strict=True)]
    created = fleet.description["created"]
    run.write_json(FLEET_FILE, {**aggregate(tests, timestamp=created), FLEET: to_json(shown)})
    run.write_json(
        "run_summary.json",
        {
            "experiment_name": fleet.description["config"]["run"]["experiment_name"],
            "run_id": fleet.description["run_id"],
            "kind": fleet.config.kind,
            "num_hosts": fleet.summary.num_hosts,
            "num_hosts_measured": fleet.summary.num_measured,
            "num_planned": num_planned,
            "num_launches": len(fleet.launches),
            "validity": validity,
            "details": FLEET_FILE,
        },
    )


def _document(run: RunDirectory, host: SuiteOnHost, fleet: _Fleet) -> dict[str, Any]:
    """Return a host's tests in S0's form; of the load suite the whole of it, which is a file, too."""
    if fleet.config.kind != "load":
        return {"results": host.points_as_tests()}
    facts = {told.host: told.facts for records in host.cases for told in records.of(Environment)}
    document = loadtest_json(
        host.tests,
        config=fleet.config,
        description=fleet.description,
        environment=facts or None,
        cases=host.cases,
    )
    if document["results"]:
        folder = f"{HOSTS_FOLDER}/{folder_name(host.name)}"
        (run.root / folder).mkdir(parents=True, exist_ok=True)
        run.write_json(f"{folder}/{RESULTS_FILE}", document)
    return document

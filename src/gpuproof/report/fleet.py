"""Conclude a fleet's run: every host by itself as any run, then all together.

In: the launches of all hosts, and the inventory as run.json holds it. Out: the report, and fleet.json with
the whole and with lambdactl's aggregate. Needs no host.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from gpuproof import units
from gpuproof.analysis.fleet import FleetSummary, HostMeasured, HostTests, aggregate, summarize_fleet
from gpuproof.analysis.launch import launch_of
from gpuproof.analysis.run_summary import RunSummary, summarize
from gpuproof.analysis.validity import Finding, worst
from gpuproof.config.models import RunConfig
from gpuproof.errors import ExitCode
from gpuproof.hardware import peak_of
from gpuproof.records.codec import to_json
from gpuproof.records.collected import CaseRecords
from gpuproof.records.run import Environment
from gpuproof.report.explanations import LaunchExplanation, explain_launch
from gpuproof.report.fleet_model import FleetReport, HostRow
from gpuproof.report.measure import Measure
from gpuproof.report.model import ReportModel, launch_rows
from gpuproof.store import RunDirectory, resume_command

FLEET = "fleet"
"""The key of run.json that holds the hosts."""
STAGES = ("setup", "deploy", "execute", "download", "parse", "exception")


@dataclass(frozen=True, slots=True, kw_only=True)
class _HostStory:
    """One host with everything that it left."""

    host: Mapping[str, Any]
    summary: RunSummary
    explanations: tuple[LaunchExplanation, ...]

    @property
    def name(self) -> str:
        return str(self.host["name"])

    @property
    def energy_j(self) -> float | None:
        """Of all launches, None where one of them is not known."""
        energies = [found.energy_j for found in self.explanations if found.energy_j is not None]
        whole = bool(self.summary.launches) and len(energies) == len(self.summary.launches)
        return sum(energies) if whole else None

    def measured(self) -> HostMeasured | None:
        """Return what it measured; None where that is nothing."""
        if self.summary.items_per_s_total is None:
            return None
        setup = self.summary.launches[0].setup
        return HostMeasured(
            host=self.name,
            gpu_type=self.host.get("gpu_type") or setup.device.name,
            num_devices=self.summary.launches[0].world_size,
            items_per_s_total=self.summary.items_per_s_total,
            items_total=self.summary.items_total,
            energy_j=self.energy_j,
            price_per_hour=self.host.get("price_per_hour"),
        )


def is_fleet(description: Mapping[str, Any]) -> bool:
    """Say whether a run was one on each of several hosts, rather than one job."""
    return FLEET in description and description["config"]["distributed"].get("nodes", 1) == 1


def conclude_fleet(run: RunDirectory, config: RunConfig, cases: Sequence[CaseRecords]) -> ReportModel:
    """Make the report of a fleet, and its derived files."""
    description = run.description()
    stories = [_story(run, host, cases, config) for host in description[FLEET]["hosts"]]
    measured = [found for story in stories if (found := story.measured()) is not None]
    summary = summarize_fleet(measured, num_hosts=len(stories))
    launches = [launch for story in stories for launch in story.summary.launches]
    fleet = FleetReport(
        item=launches[0].setup.item if launches else "samples",
        currency=description[FLEET]["currency"],
        hosts=tuple(_row(story) for story in stories),
        summary=summary,
    )
    environment = {records.case.host: found.facts for records in cases for found in records.of(Environment)}
    if environment:
        run.write_json("environment.json", environment)
    findings = _together(stories)
    _write_summaries(run, description, stories, fleet, findings)
    return ReportModel(
        schema_version=1,
        title=_title(config, summary),
        run=str(run.root),
        validity=worst(findings) if launches else None,
        measures=tuple(_measures(fleet)),
        launches=tuple(row for story in stories for row in launch_rows(story.summary.launches)),
        num_planned=config.run.repeats * len(stories),
        findings=findings,
        failures=tuple(failure for story in stories for failure in story.summary.failures),
        explanations=tuple(found for story in stories for found in story.explanations),
        not_applied=(),
        notes=(),
        files=tuple(sorted(path.name for path in run.root.iterdir() if not path.name.startswith("."))),
        next_commands=_next_commands(run, stories),
        fleet=fleet,
    )


def _story(
    run: RunDirectory, host: Mapping[str, Any], cases: Sequence[CaseRecords], config: RunConfig
) -> _HostStory:
    own = [records for records in cases if records.case.host == host["name"]]
    explanations = tuple(
        explain_launch(launch, run.case_folder(launch.case))
        for records in own
        if (launch := launch_of(records)) is not None and launch.case.monitor_interval_s is not None
    )
    return _HostStory(
        host=host,
        summary=summarize(own, num_planned=config.run.repeats, peak_of=peak_of),
        explanations=explanations,
    )


def _row(story: _HostStory) -> HostRow:
    measured, failure = story.measured(), next(iter(story.summary.failures), None)
    sentences = dict.fromkeys(sentence for found in story.explanations for sentence in found.sentences)
    return HostRow(
        host=story.name,
        gpu_type=measured.gpu_type if measured else story.host.get("gpu_type"),
        num_devices=measured.num_devices if measured else story.host.get("gpus"),
        num_launches=len(story.summary.launches),
        num_planned=story.summary.num_planned,
        items_per_s_total=measured.items_per_s_total if measured else None,
        items_per_s_per_device=measured.items_per_s_per_device if measured else None,
        energy_j_per_item=measured.energy_j_per_item if measured else None,
        cost_per_million_items=measured.cost_per_million_items if measured else None,
        validity=story.summary.validity,
        stage=_stage(failure.phase) if failure else None,
        failure=failure.message if failure else None,
        sentences=tuple(sentences),
    )


def _stage(phase: str) -> str:
    """Name the stage of a failure; what a rank itself tells of happened while it ran."""
    return phase if phase in STAGES else "execute"


def _together(stories: Sequence[_HostStory]) -> tuple[Finding, ...]:
    """Tell a doubt that several hosts share once, with the hosts, and a device's fault with its host."""
    found: dict[tuple[str, str], list[tuple[str, Finding]]] = {}
    for story in stories:
        for finding in story.summary.findings:
            found.setdefault((finding.validity, finding.code), []).append((story.name, finding))
    shared = []
    for occurrences in found.values():
        names = list(dict.fromkeys(name for name, _ in occurrences))
        first = occurrences[0][1]
        others = f" (also {', '.join(names[1:4])}{' …' if len(names) > 4 else ''})" if len(names) > 1 else ""
        shared.append(replace(first, reason=f"{names[0]}: {first.reason}{others}"))
    shared += [
        Finding(
            validity="SUSPECT",
            code="device-fault",
            reason=f"{story.name}: {fault}",
            remedy="Look at cooling, power and the driver's log, and run it again",
        )
        for story in stories
        for explanation in story.explanations
        for fault in explanation.faults
    ]
    return tuple(sorted(shared, key=lambda finding: finding.validity != "INVALID"))


def _title(config: RunConfig, summary: FleetSummary) -> str:
    hosts = f"{summary.num_measured} of {summary.num_hosts} hosts measured"
    types = ", ".join(kind.gpu_type for kind in summary.types)
    what = f"{config.model.name} {config.kind} on {config.data.name}"
    return f"{what}, fleet: {hosts}{f', {types}' if types else ''}"


def _measures(fleet: FleetReport) -> list[Measure]:
    summary, item = fleet.summary, fleet.item
    spread = summary.items_per_s_per_device
    if spread is None or summary.items_per_s_total is None:
        return []
    reach = f"{units.significant(spread.lowest)} – {units.significant(spread.highest)} {item}/s"
    measures = [
        Measure(
            name="median device",
            value=spread.median,
            unit=f"{item}/s",
            text=units.rate(spread.median, item),
            detail=f"of {spread.num_hosts} hosts, {reach}",
            uncertainty=f"MAD {units.share(spread.mad / spread.median)}" if spread.num_hosts > 1 else None,
        ),
        Measure(
            name="all hosts",
            value=summary.items_per_s_total,
            unit=f"{item}/s",
            text=units.rate(summary.items_per_s_total, item),
            detail=f"{summary.num_devices} devices of {summary.num_measured} hosts, each measured by itself",
        ),
    ]
    single = item.removesuffix("s")
    per_item = (
        ("energy", summary.energy_j_per_item, f"J/{single}", summary.energy_missing),
        ("cost", summary.cost_per_million_items, f"{fleet.currency}/million {item}", summary.cost_missing),
    )
    for name, value, unit, missing in per_item:
        text = units.MISSING if value is None else f"{units.significant(value)} {unit}"
        measures.append(
            Measure(name=name, value=value, unit=unit, text=text, detail=missing or "of all hosts")
        )
    return measures


def _next_commands(run: RunDirectory, stories: Sequence[_HostStory]) -> tuple[str, ...]:
    incomplete = any(len(story.summary.launches) < story.summary.num_planned for story in stories)
    return (resume_command(run.root),) if incomplete else ()


def _write_summaries(
    run: RunDirectory,
    description: Mapping[str, Any],
    stories: Sequence[_HostStory],
    fleet: FleetReport,
    findings: Sequence[Finding],
) -> None:
    tests = [_tests(story, row) for story, row in zip(stories, fleet.hosts, strict=True)]
    run.write_json(
        "fleet.json", {**aggregate(tests, timestamp=description["created"]), FLEET: to_json(fleet)}
    )
    run.write_json(
        "run_summary.json",
        {
            "experiment_name": description["config"]["run"]["experiment_name"],
            "run_id": description["run_id"],
            "num_hosts": fleet.summary.num_hosts,
            "num_hosts_measured": fleet.summary.num_measured,
            "num_planned": description["config"]["run"]["repeats"] * len(stories),
            "num_launches": sum(len(story.summary.launches) for story in stories),
            "validity": worst(findings) if fleet.summary.num_measured else None,
            "details": "fleet.json",
        },
    )


def _tests(story: _HostStory, row: HostRow) -> HostTests:
    """Return a host's launches as tests in S0's form."""
    if row.stage is not None and not story.summary.launches:
        return HostTests(host=story.name, document=None, stage=row.stage, error=row.failure)
    tests = [
        {
            "test_name": launch.case.case_id.partition("@")[0],
            "test_type": launch.case.kind,
            "model_name": launch.case.model.name,
            "batch_size": launch.case.data.batch_size,
            "replicate": launch.case.replicate,
            "throughput_samples_per_second": launch.items_per_s_total / launch.setup.items_per_sample,
            "success": True,
        }
        for launch in story.summary.launches
    ]
    return HostTests(host=story.name, document={"results": tests})


def fleet_exit_code(report: ReportModel) -> ExitCode:
    """Return 0 where every host measured what it was asked to; 5 where none could begin."""
    causes = {failure.cause for failure in report.failures}
    for cause, code in (("timeout", ExitCode.TIMEOUT), ("interrupted", ExitCode.INTERRUPTED)):
        if causes == {cause}:
            return code
    if causes and not report.launches and causes <= {"environment", "disk_full"}:
        return ExitCode.UNFIT_ENVIRONMENT
    if causes:
        return ExitCode.FAILED
    incomplete = len(report.launches) < report.num_planned
    return ExitCode.INCONCLUSIVE if incomplete or report.validity in (None, "INVALID") else ExitCode.DONE

"""Conclude a fleet's run: every host by itself as any run, then all together.

In: the launches of all hosts, and the inventory as run.json holds it. Out: the report, and fleet.json with
the whole and with lambdactl's aggregate. Needs no host.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from gpuproof import units
from gpuproof.analysis.fleet import FleetSummary, HostTests, aggregate, summarize_fleet
from gpuproof.analysis.launch import launch_of
from gpuproof.analysis.run_summary import summarize
from gpuproof.analysis.validity import Finding, worst
from gpuproof.config.models import RunConfig
from gpuproof.hardware import peak_of
from gpuproof.records.codec import to_json
from gpuproof.records.collected import CaseRecords
from gpuproof.report.explanations import explain_launch, findings_of_faults
from gpuproof.report.fleet_model import FleetReport, HostRow
from gpuproof.report.fleet_story import (
    FLEET,
    FLEET_FILE,
    HostStory,
    host_tests,
    hosts_and_types,
    is_of_host,
    notes_of,
    stage_of,
    tests_of,
    together,
    without_effect,
    write_environments,
)
from gpuproof.report.measure import Measure
from gpuproof.report.model import ReportModel, launch_rows
from gpuproof.store.run import RunDirectory, resume_command


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
    write_environments(run, cases)
    findings = together((story.name, finding) for story in stories for finding in story.summary.findings)
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
        not_applied=without_effect((story.summary.launches for story in stories), description["origins"]),
        notes=tuple(notes_of(launches, cases)),
        files=tuple(sorted(path.name for path in run.root.iterdir() if not path.name.startswith("."))),
        next_commands=_next_commands(run, stories),
        fleet=fleet,
    )


def _story(
    run: RunDirectory, host: Mapping[str, Any], cases: Sequence[CaseRecords], config: RunConfig
) -> HostStory:
    own = [records for records in cases if records.case.placement.host == host["name"]]
    explanations = tuple(
        explain_launch(launch, run.case_folder(launch.case))
        for records in own
        if (launch := launch_of(records)) is not None and launch.case.monitor_interval_s is not None
    )
    return HostStory(
        host=host,
        summary=summarize(
            own,
            num_planned=config.run.repeats,
            peak_of=peak_of,
            observed=findings_of_faults(explanations),
        ),
        explanations=explanations,
    )


def _row(story: HostStory) -> HostRow:
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
        stage=stage_of(failure) if failure else None,
        failure=failure.message if failure else None,
        sentences=tuple(sentences),
    )


def _title(config: RunConfig, summary: FleetSummary) -> str:
    types = (kind.gpu_type for kind in summary.types)
    what = f"{config.model.name} {config.kind} on {config.data.name}"
    return f"{what}, {hosts_and_types(summary.num_measured, summary.num_hosts, types)}"


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


def _next_commands(run: RunDirectory, stories: Sequence[HostStory]) -> tuple[str, ...]:
    incomplete = any(len(story.summary.launches) < story.summary.num_planned for story in stories)
    return (resume_command(run.root),) if incomplete else ()


def _write_summaries(
    run: RunDirectory,
    description: Mapping[str, Any],
    stories: Sequence[HostStory],
    fleet: FleetReport,
    findings: Sequence[Finding],
) -> None:
    tests = [_tests(story) for story in stories]
    run.write_json(FLEET_FILE, {**aggregate(tests, timestamp=description["created"]), FLEET: to_json(fleet)})
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
            "details": FLEET_FILE,
        },
    )


def _tests(story: HostStory) -> HostTests:
    """Return a host's launches as tests in S0's form."""
    summary = story.summary
    return host_tests(
        story.name,
        {"results": tests_of(summary.launches)},
        num_planned=summary.num_planned,
        num_measured=len(summary.launches),
        failures=summary.failures,
        of_host=next(filter(is_of_host, summary.failures), None),
    )

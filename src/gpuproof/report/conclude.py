"""Conclude a run: from what lies on disk to its report and derived files. Needs no device.

`gpuproof report RUN` is this, and every campaign ends with it.
"""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from dataclasses import dataclass

from gpuproof.analysis.launch import launch_of
from gpuproof.analysis.run_summary import RunSummary, summarize
from gpuproof.analysis.validity import Finding
from gpuproof.config.models import RunConfig
from gpuproof.errors import EnvironmentUnfitError, ExitCode
from gpuproof.hardware import peak_of
from gpuproof.records.collected import CaseRecords
from gpuproof.records.run import Environment, ProfileTrace, Result, Start
from gpuproof.report.explanations import LaunchExplanation, explain_launch
from gpuproof.report.fleet import conclude_fleet, fleet_exit_code, is_fleet
from gpuproof.report.model import ReportModel, build_report
from gpuproof.report.profiled import Profiled, profiled
from gpuproof.report.roofline_plot import draw_roofline
from gpuproof.report.seed_formats import epoch_lines, summary_csv, summary_json
from gpuproof.report.work_json import profile_json, work_json
from gpuproof.store import RunDirectory


@dataclass(frozen=True, slots=True, kw_only=True)
class Conclusion:
    """What a run ends with."""

    report: ReportModel
    exit_code: ExitCode


def conclude(run: RunDirectory, config: RunConfig) -> Conclusion:
    """Make the report and every derived file of a run again from its records.

    Raises:
        RecordError: a file of the run is damaged.
        EnvironmentUnfitError: the disk is full.
    """
    cases = run.cases()
    if is_fleet(run.description()):
        report = conclude_fleet(run, config, cases)
        return Conclusion(report=report, exit_code=fleet_exit_code(report))
    explanations = _explanations(run, cases)
    summary = summarize(
        cases, num_planned=config.run.repeats, peak_of=peak_of, observed=_observed(explanations)
    )
    profile = profiled(run, cases)
    _write_derived_files(run, config, cases, summary, profile)
    lost = [*_copy_traces(run, cases), *_draw(run, summary)]
    report = build_report(
        summary,
        run=str(run.root),
        description=run.description(),
        explanations=explanations,
        profile=profile,
        files=sorted(path.name for path in run.root.iterdir() if not path.name.startswith(".")),
        torn=[*(note for records in cases for note in records.torn), *lost],
    )
    return Conclusion(report=report, exit_code=exit_code_of(report))


def _explanations(run: RunDirectory, cases: Sequence[CaseRecords]) -> tuple[LaunchExplanation, ...]:
    launches = [launch for records in cases if (launch := launch_of(records)) is not None]
    return tuple(
        explain_launch(launch, run.case_folder(launch.case))
        for launch in launches
        if launch.case.monitor_interval_s is not None
    )


def _observed(explanations: Sequence[LaunchExplanation]) -> list[Finding]:
    """Turn the faults that devices showed in a window into doubts about its figures."""
    return [
        Finding(
            validity="SUSPECT",
            code="device-fault",
            reason=f"{fault} (launch {explanation.replicate + 1})",
            remedy="Look at cooling, power and the driver's log, and run it again",
        )
        for explanation in explanations
        for fault in explanation.faults
    ]


def _write_derived_files(
    run: RunDirectory,
    config: RunConfig,
    cases: Sequence[CaseRecords],
    summary: RunSummary,
    profile: Profiled | None,
) -> None:
    description = run.description()
    environment = {found.host: found.facts for records in cases for found in records.of(Environment)}
    if environment:
        run.write_json("environment.json", environment)
    epochs = epoch_lines(summary.launches, samples_per_epoch=config.data.samples_per_epoch)
    run.write_text("metrics_epoch.jsonl", epochs)
    run.write_text("summary.csv", summary_csv(summary, description=description))
    summarized = summary_json(
        summary, description=description, environment=environment or None, wall_clock_s=_wall_clock_s(cases)
    )
    run.write_json("run_summary.json", {**summarized, **work_json(summary), **profile_json(profile)})


def _copy_traces(run: RunDirectory, cases: Sequence[CaseRecords]) -> list[str]:
    """Put the first launch's trace beside the reports; return a note of each that is not there."""
    lost = []
    for records in cases[:1]:
        for trace in records.of(ProfileTrace):
            source = run.case_folder(records.case) / trace.file
            if source.is_file():
                shutil.copyfile(source, run.root / trace.file)
            else:
                lost.append(f"{trace.file} was written and is gone: expected {source}")
    return lost


def _draw(run: RunDirectory, summary: RunSummary) -> list[str]:
    """Draw the roofline, if its ceilings were measured; return a note where it cannot be drawn."""
    try:
        draw_roofline(summary, run.root / "roofline.png")
    except EnvironmentUnfitError as error:
        return [f"no roofline.png: {error}"]
    return []


def _wall_clock_s(cases: Sequence[CaseRecords]) -> float | None:
    """Sum over launches the time from a rank's first record to its result, the longest rank's of each."""
    total = 0.0
    for records in cases:
        starts = {start.rank: start.monotonic_s for start in records.of(Start)}
        total += max((result.monotonic_s - starts[result.rank] for result in records.of(Result)), default=0.0)
    return total or None


def exit_code_of(report: ReportModel) -> ExitCode:
    """Return 0 for a run that measured what it was asked to, whatever its doubts short of INVALID.

    Launches that are missing without a failure (somebody killed the campaign) are INCONCLUSIVE.
    """
    causes = {failure.cause for failure in report.failures}
    if causes & {"environment", "disk_full"}:
        return ExitCode.UNFIT_ENVIRONMENT
    for cause, code in (("timeout", ExitCode.TIMEOUT), ("interrupted", ExitCode.INTERRUPTED)):
        if causes == {cause}:
            return code
    if causes:
        return ExitCode.FAILED
    incomplete = len(report.launches) < report.num_planned
    return ExitCode.INCONCLUSIVE if incomplete or report.validity in (None, "INVALID") else ExitCode.DONE

"""Conclude a run: from what lies on disk to its report and derived files. Needs no device.

`gpuproof report RUN` is this, and every campaign ends with it.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gpuproof.analysis.launch import launch_of
from gpuproof.analysis.run_summary import summarize
from gpuproof.analysis.serving import served_of
from gpuproof.config.models import RunConfig
from gpuproof.errors import EnvironmentUnfitError, ExitCode
from gpuproof.hardware import peak_of
from gpuproof.records.collected import CaseRecords
from gpuproof.records.run import Environment, ProfileTrace, Result, Start
from gpuproof.report.explanations import LaunchExplanation, explain_launch, findings_of_faults
from gpuproof.report.fleet import conclude_fleet
from gpuproof.report.fleet_story import fleet_exit_code, is_fleet
from gpuproof.report.fleet_suite import conclude_fleet_suite
from gpuproof.report.load_results import load_results, with_tests
from gpuproof.report.loadtest_format import RESULTS_FILE, loadtest_json
from gpuproof.report.model import ReportModel, build_report
from gpuproof.report.profiled import profiled
from gpuproof.report.roofline_plot import draw_roofline
from gpuproof.report.seed_formats import epoch_lines, summary_csv, summary_json
from gpuproof.report.serving import build_serving_report, serving_run
from gpuproof.report.serving_format import serving_csv, serving_json
from gpuproof.report.serving_plot import draw_serving_curve
from gpuproof.report.sweep import (
    Sweep,
    build_sweep_report,
    sweep_csv,
    sweep_epoch_lines,
    sweep_json,
    sweep_of,
)
from gpuproof.report.work_json import profile_json, work_json
from gpuproof.store.run import RunDirectory
from gpuproof.suites.plan import is_sweep


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
        make_fleets = conclude_fleet_suite if is_sweep(config) else conclude_fleet
        report = make_fleets(run, config, cases)
        return Conclusion(report=report, exit_code=fleet_exit_code(report))
    explanations = _explanations(run, cases)
    torn = [*(note for records in cases for note in records.torn), *_copy_traces(run, cases)]
    make = _conclude_sweep if is_sweep(config) else _conclude_recipe
    if config.kind == "serving":
        make = _conclude_serving
    if config.kind == "load":
        make = _conclude_load
    report = make(run, config, cases, explanations, torn=torn)
    return Conclusion(report=report, exit_code=exit_code_of(report))


def _conclude_recipe(
    run: RunDirectory,
    config: RunConfig,
    cases: Sequence[CaseRecords],
    explanations: Sequence[LaunchExplanation],
    *,
    torn: Sequence[str],
) -> ReportModel:
    summary = summarize(
        cases, num_planned=config.run.repeats, peak_of=peak_of, observed=findings_of_faults(explanations)
    )
    profile = profiled(run, cases)
    description, environment = run.description(), _write_environment(run, cases)
    summarized = summary_json(
        summary, description=description, environment=environment, wall_clock_s=_wall_clock_s(cases)
    )
    epochs = epoch_lines(summary.launches, samples_per_epoch=config.data.samples_per_epoch)
    rows = summary_csv(summary, description=description)
    _write_derived_files(run, epochs, rows, {**summarized, **work_json(summary), **profile_json(profile)})
    not_drawn = _drawn("roofline.png", lambda path: draw_roofline(summary, path), run)
    return build_report(
        summary,
        run=str(run.root),
        description=description,
        explanations=explanations,
        profile=profile,
        files=_files(run),
        torn=[*torn, *not_drawn],
    )


def _conclude_sweep(
    run: RunDirectory,
    config: RunConfig,
    cases: Sequence[CaseRecords],
    explanations: Sequence[LaunchExplanation],
    *,
    torn: Sequence[str],
) -> ReportModel:
    sweep = sweep_of(config, cases, explanations)
    return _report_of_sweep(run, sweep, cases, explanations, torn=torn)


def _conclude_load(
    run: RunDirectory,
    config: RunConfig,
    cases: Sequence[CaseRecords],
    explanations: Sequence[LaunchExplanation],
    *,
    torn: Sequence[str],
) -> ReportModel:
    sweep = sweep_of(config, cases, explanations)
    results = load_results(sweep, folder_of=run.case_folder)
    content = loadtest_json(
        results,
        config=config,
        description=run.description(),
        environment=_write_environment(run, cases),
        cases=cases,
    )
    run.write_json(RESULTS_FILE, content)
    return with_tests(_report_of_sweep(run, sweep, cases, explanations, torn=torn), results)


def _report_of_sweep(
    run: RunDirectory,
    sweep: Sweep,
    cases: Sequence[CaseRecords],
    explanations: Sequence[LaunchExplanation],
    *,
    torn: Sequence[str],
) -> ReportModel:
    description, environment = run.description(), _write_environment(run, cases)
    summarized = sweep_json(
        sweep, description=description, environment=environment, wall_clock_s=_wall_clock_s(cases)
    )
    rows = sweep_csv(sweep, description=description)
    _write_derived_files(run, sweep_epoch_lines(sweep), rows, summarized)
    return build_sweep_report(
        sweep,
        run=str(run.root),
        description=description,
        explanations=explanations,
        files=_files(run),
        torn=torn,
    )


def _conclude_serving(
    run: RunDirectory,
    config: RunConfig,
    cases: Sequence[CaseRecords],
    explanations: Sequence[LaunchExplanation],
    *,
    torn: Sequence[str],
) -> ReportModel:
    served = serving_run(config, cases, findings_of_faults(explanations))
    description, environment = run.description(), _write_environment(run, cases)
    summarized = serving_json(
        served, description=description, environment=environment, wall_clock_s=_wall_clock_s(cases)
    )
    run.write_text("summary.csv", serving_csv(served, description=description))
    run.write_json("run_summary.json", summarized)
    not_drawn = _drawn("serving_curve.png", lambda path: draw_serving_curve(served, path), run)
    return build_serving_report(
        served,
        run=str(run.root),
        description=description,
        explanations=explanations,
        files=_files(run),
        torn=[*torn, *not_drawn],
    )


def _explanations(run: RunDirectory, cases: Sequence[CaseRecords]) -> tuple[LaunchExplanation, ...]:
    served = [served.as_launch() for records in cases if (served := served_of(records)) and served.setup]
    launches = [*served, *(launch for records in cases if (launch := launch_of(records)) is not None)]
    return tuple(
        explain_launch(launch, run.case_folder(launch.case))
        for launch in launches
        if launch.case.monitor_interval_s is not None
    )


def _write_environment(run: RunDirectory, cases: Sequence[CaseRecords]) -> dict[str, Any] | None:
    environment = {found.host: found.facts for records in cases for found in records.of(Environment)}
    if environment:
        run.write_json("environment.json", environment)
    return environment or None


def _write_derived_files(run: RunDirectory, epochs: str, rows: str, summarized: dict[str, Any]) -> None:
    run.write_text("metrics_epoch.jsonl", epochs)
    run.write_text("summary.csv", rows)
    run.write_json("run_summary.json", summarized)


def _files(run: RunDirectory) -> list[str]:
    return sorted(path.name for path in run.root.iterdir() if not path.name.startswith("."))


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


def _drawn(name: str, draw: Callable[[Path], object], run: RunDirectory) -> list[str]:
    """Draw a picture into the run, if there is one to draw; return a note where it cannot be drawn."""
    try:
        draw(run.root / name)
    except EnvironmentUnfitError as error:
        return [f"no {name}: {error}"]
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
    if report.points and report.launches and causes - {"interrupted", "disk_full"}:
        return ExitCode.FAILED  # what one point lacked, others had
    if causes & {"environment", "disk_full"}:
        return ExitCode.UNFIT_ENVIRONMENT
    for cause, code in (("timeout", ExitCode.TIMEOUT), ("interrupted", ExitCode.INTERRUPTED)):
        if causes == {cause}:
            return code
    if causes:
        return ExitCode.FAILED
    incomplete = len(report.launches) < report.num_planned
    return ExitCode.INCONCLUSIVE if incomplete or report.validity in (None, "INVALID") else ExitCode.DONE

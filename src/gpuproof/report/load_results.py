"""The twelve tests of the load suite, each with its figures, its readings and how it ended.

In: the sweep that the suite is, and the run's folders. Out: a `LoadResult` a test, in the order of the
registry, from which the JSON file, the table and the report's title are made.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from gpuproof.analysis.launch import Launch
from gpuproof.analysis.run_summary import RunSummary
from gpuproof.analysis.validity import Finding
from gpuproof.readings.evidence import Evidence
from gpuproof.records.run import Failure
from gpuproof.report.load_readings import LoadReadings, Quantity, read_beside
from gpuproof.report.load_row import LoadRow
from gpuproof.report.model import ReportModel
from gpuproof.report.sweep import Sweep
from gpuproof.statistics.percentiles import Percentile, percentile
from gpuproof.suites.loadtest import TESTS, LoadTest

TOO_SHORT = ("few-steps",)
LONGER = "Raise load.num_batches (gpuproof load --num-batches)"


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadResult:
    """One test of the suite."""

    test: LoadTest
    summary: RunSummary
    readings: LoadReadings

    @property
    def failure(self) -> Failure | None:
        """Why it did not end well; None where it did, and where it was not run."""
        return next(iter(self.summary.failures), None)

    @property
    def success(self) -> bool | None:
        """Whether every launch of it measured what it was asked to; None where it was not run to an end."""
        return success_of(self.summary)

    @property
    def step_times_s(self) -> list[float]:
        """Of all launches together."""
        return [time_s for launch in self.summary.launches for time_s in launch.step_times_s]

    @property
    def peak_allocated_bytes(self) -> int | None:
        """Of the fullest device, in the window, by the framework's own allocator."""
        return _largest([w.peak_allocated_bytes for x in self.summary.launches for w in x.windows])

    @property
    def peak_with_warmup_bytes(self) -> int | None:
        """The same, from the beginning of the warm-up to its end."""
        return _largest([w.peak_with_warmup_bytes for x in self.summary.launches for w in x.windows])

    @property
    def findings(self) -> tuple[Finding, ...]:
        """What speaks against its figures, with a remedy that fits the suite."""
        return tuple(advised(found) for found in self.summary.findings)

    def step_percentile(self, q: float) -> Percentile:
        """Give a percentile of the step times, or why there is none."""
        return percentile(self.step_times_s, q)


def success_of(summary: RunSummary) -> bool | None:
    """Say whether every launch measured what it was asked to; None where it was not run to an end."""
    if summary.failures:
        return False
    return True if len(summary.launches) >= summary.num_planned else None


def _largest(peaks: Sequence[int | None]) -> int | None:
    return max((peak for peak in peaks if peak is not None), default=None)


def load_results(sweep: Sweep, evidence: Evidence) -> tuple[LoadResult, ...]:
    """Return the twelve results, in order."""
    summaries = {point.case_id: point.summary for point in sweep.summary.points}
    return tuple(
        LoadResult(
            test=test,
            summary=summaries[test.name],
            readings=read_beside(summaries[test.name].launches, evidence),
        )
        for test in TESTS
    )


def with_tests(report: ReportModel, results: Sequence[LoadResult]) -> ReportModel:
    """Return the report of the sweep as one of the load suite."""
    return replace(
        report,
        title=title_of(results),
        findings=tuple(advised(found) for found in report.findings),
        next_commands=tuple(as_load(command) for command in report.next_commands),
        tests=tuple(_row(result) for result in results),
    )


def as_load(command: str) -> str:
    """Finish the suite with its own command, which puts the results where they are wanted."""
    return command.replace("gpuproof run --resume", "gpuproof load --resume", 1)


def advised(finding: Finding) -> Finding:
    """Name the key that makes the suite's windows longer in the place of those that it brings itself."""
    return replace(finding, remedy=LONGER) if finding.code in TOO_SHORT else finding


def title_of(results: Sequence[LoadResult]) -> str:
    """Name the suite, and where and how it was run."""
    launch = next((launch for result in results for launch in result.summary.launches), None)
    if launch is None:
        return f"load suite, {len(results)} tests"
    return f"load suite, {len(results)} tests, {launch.setup.device.name}, {how_run(launch)}"


def how_run(launch: Launch) -> str:
    """Say in which precision a test ran, and where its data came from."""
    data = {"device": "data drawn on the device", "loader": "data from a loader"}[launch.case.data.loading]
    return f"{launch.setup.precision}, {data}"


def _row(result: LoadResult) -> LoadRow:
    good = result.success is True
    summary = result.summary
    return LoadRow(
        name=result.test.name,
        description=result.test.description,
        success=result.success,
        samples_per_s=summary.items_per_s_total if good else None,
        mean_step_s=summary.mean_step_s if good else None,
        p95_step_s=result.step_percentile(95).value if good else None,
        peak_allocated_bytes=result.peak_allocated_bytes if good else None,
        cpu_percent=_mean(result.readings.cpu_percent) if good else None,
        gpu_percent=_mean(result.readings.gpu_utilization_percent) if good else None,
        validity=summary.validity if good else None,
        outcome=_outcome(result),
    )


def _mean(quantity: Quantity) -> float | None:
    return None if quantity.stats is None else quantity.stats.avg_value


def _outcome(result: LoadResult) -> str:
    if result.failure is not None:
        return f"failed: {result.failure.cause.replace('_', ' ')}"
    return "" if result.success else "not run"

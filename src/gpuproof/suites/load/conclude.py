"""The twelve tests of the load suite, each with its figures, its readings and how it ended."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from gpuproof.analysis.launch import Launch
from gpuproof.readings.evidence import Evidence
from gpuproof.records.codec import to_json
from gpuproof.records.result import Doubt
from gpuproof.records.run import Failure
from gpuproof.statistics.percentiles import Percentile, percentile
from gpuproof.suites.base import Conclusion, Export
from gpuproof.suites.exports import environment_facts, json_export
from gpuproof.suites.load.exports import RESULTS_FILE, loadtest_json
from gpuproof.suites.load.plan import TESTS, LoadTest, points_of_tests
from gpuproof.suites.load.readings import LoadReadings, Quantity, read_beside
from gpuproof.suites.points.results import PointResult, conclude_points, conclusion_of_points
from gpuproof.suites.sections import PointLabel

TOO_SHORT = ("few-steps", "steadiness-unknown")
LONGER = "Raise load.num_batches (gpuproof load --num-batches)"
GROUPS = {"training": "Training", "inference": "Inference"}


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadResult:
    """One test of the suite."""

    test: LoadTest
    point: PointResult
    readings: LoadReadings

    @property
    def failure(self) -> Failure | None:
        """Why it did not end well; None where it did, and where it was not run."""
        return next(iter(self.point.figures.failures), None)

    @property
    def success(self) -> bool | None:
        """Whether every launch of it measured what it was asked to; None where it was not run to an end."""
        return self.point.figures.success

    @property
    def step_times_s(self) -> list[float]:
        """Step times of all launches together."""
        return [time_s for launch in self.point.launches for time_s in launch.step_times_s]

    @property
    def peak_with_warmup_bytes(self) -> int | None:
        """Peak of the fullest device, by the framework's allocator, from the warm-up's begin on."""
        peaks = [w.peak_with_warmup_bytes for launch in self.point.launches for w in launch.windows]
        return max((peak for peak in peaks if peak is not None), default=None)

    @property
    def doubts(self) -> tuple[Doubt, ...]:
        """Doubts about its figures, with a remedy that fits the suite."""
        return tuple(map(with_suite_remedy, self.point.result.doubts))

    def step_percentile(self, q: float) -> Percentile:
        """Return a percentile of the step times, or why there is none."""
        return percentile(self.step_times_s, q)


@dataclass(frozen=True, slots=True, kw_only=True)
class TestReadings:
    """What the table of tests says beside the figures of each."""

    p95_step_s: float | None
    cpu_percent: float | None
    """Mean over the window, of the whole host."""
    gpu_percent: float | None
    p95_missing: str | None = None
    """Why there is none, where the test was run."""


def conclude(evidence: Evidence) -> Conclusion:
    """Return the result of the suite and its files."""
    config = evidence.config
    points = conclude_points(evidence, points_of_tests(config).values())
    tests = [  # one test at a time, so that its recordings are still at hand
        LoadResult(test=test, point=point, readings=read_beside(point.launches, evidence))
        for test, point in zip(TESTS, points, strict=True)
    ]
    launches = [launch for test in tests for launch in test.point.launches]
    conclusion = conclusion_of_points(
        "load",
        evidence,
        [test.point for test in tests],
        title=[f"load suite, {len(TESTS)} tests", *(_how_run(launch) for launch in launches[:1])],
        num_planned=len(TESTS) * config.run.repeats,
        labels=tuple(map(_label, TESTS)),
        is_ranked=False,
    )
    result = conclusion.result
    detail = {**result.detail, "tests": to_json({test.test.name: _readings(test) for test in tests})}
    ended = [test.success for test in tests]
    result = replace(
        result,
        detail=detail,
        doubts=tuple(map(with_suite_remedy, result.doubts)),
        headline=f"{ended.count(True)} of {len(tests)} tests",
    )
    return Conclusion(result=result, exports=(*conclusion.exports, _results_file(evidence, tests)))


def _results_file(evidence: Evidence, tests: Sequence[LoadResult]) -> Export:
    content = loadtest_json(
        tests,
        config=evidence.config,
        description=evidence.description,
        environment=environment_facts(evidence.launches),
        cases=evidence.launches,
    )
    return replace(json_export(RESULTS_FILE, content), is_of_host=True)


def _label(test: LoadTest) -> PointLabel:
    return PointLabel(
        case_id=test.name,
        group=GROUPS[test.test_type],
        label=f"{test.model.removeprefix('simple_')} {test.batch_size}",
    )


def _readings(test: LoadResult) -> TestReadings:
    p95 = test.step_percentile(95) if test.point.launches else None
    return TestReadings(
        p95_step_s=None if p95 is None else p95.value,
        p95_missing=None if p95 is None else p95.reason,
        cpu_percent=_mean(test.readings.cpu_percent),
        gpu_percent=_mean(test.readings.gpu_utilization_percent),
    )


def _mean(quantity: Quantity) -> float | None:
    return None if quantity.stats is None else quantity.stats.avg_value


def with_suite_remedy(doubt: Doubt) -> Doubt:
    """Name the key that makes the suite's windows longer in the place of those that it brings itself."""
    return replace(doubt, remedy=LONGER) if doubt.code in TOO_SHORT else doubt


def _how_run(launch: Launch) -> str:
    """Say in which precision a test ran, and where its data came from."""
    data = {"device": "data drawn on the device", "loader": "data from a loader"}[
        launch.case.model_work.data.loading
    ]
    return f"{launch.setup.precision}, {data}"

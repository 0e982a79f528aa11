"""Evaluate the twelve tests of the load suite, each with its results, readings and outcome."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from gpuproof.base import units
from gpuproof.launches.launch import Launch
from gpuproof.readings.evidence import Evidence
from gpuproof.records.result import Doubt, Measure
from gpuproof.records.run import Failure
from gpuproof.suites.base import Conclusion, Export
from gpuproof.suites.load.exports import RESULTS_FILE, loadtest_json
from gpuproof.suites.load.plan import TESTS, LoadTest, points_of_tests
from gpuproof.suites.load.readings import LoadReadings, read_during
from gpuproof.suites.points.results import PointResult, conclude_points, conclusion_of_points
from gpuproof.suites.results import environment_facts, json_export
from gpuproof.suites.sections import PointLabel
from gpuproof.verdict.doubts.base import SHORT_AT_POWER_CAP

TOO_SHORT = ("few-steps", "steadiness-unknown", "made-before", SHORT_AT_POWER_CAP)
LONGER = "Raise load.num_batches (gpuproof load --num-batches)"
HOST_USE, GPU_USE = "host CPU use", "GPU use"
GROUPS = {"training": "Training", "inference": "Inference"}


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadResult:
    """One test of the suite."""

    test: LoadTest
    point: PointResult
    readings: LoadReadings

    @property
    def failure(self) -> Failure | None:
        """Reason why the test failed; None if it succeeded or did not run."""
        return next(iter(self.point.figures.failures), None)

    @property
    def success(self) -> bool | None:
        """Whether every launch measured everything requested; None if the test did not run to completion."""
        return self.point.figures.success

    @property
    def step_times_s(self) -> list[float]:
        """Step times of all launches combined."""
        return [time_s for launch in self.point.launches for time_s in launch.step_times_s]

    @property
    def peak_with_warmup_bytes(self) -> int | None:
        """Peak memory on the most used device, by the framework's allocator, since the warm-up started."""
        windows = [window for launch in self.point.launches for window in launch.windows]
        before = [window.peak_with_warmup_bytes for window in windows]
        peaks = [peak for peak in (*before, *(w.peak_allocated_bytes for w in windows)) if peak is not None]
        return max(peaks, default=None) if None not in before else None

    @property
    def doubts(self) -> tuple[Doubt, ...]:
        """Warnings about the test's results, with a remedy that fits the suite."""
        return tuple(map(with_suite_remedy, self.point.result.doubts))


def conclude(evidence: Evidence) -> Conclusion:
    """Return the result of the suite and its files."""
    config = evidence.config
    points = conclude_points(evidence, points_of_tests(config).values())
    tests = [  # one test at a time, while its recordings are still in memory
        LoadResult(test=test, point=point, readings=read_during(point.launches, evidence))
        for test, point in zip(TESTS, points, strict=True)
    ]
    launches = [launch for test in tests for launch in test.point.launches]
    conclusion = conclusion_of_points(
        "load",
        evidence,
        [test.point for test in tests],
        title=[f"load suite, {len(TESTS)} tests", *(_setting(launch) for launch in launches[:1])],
        num_planned=len(TESTS) * config.run.repeats,
        labels=tuple(map(_label, TESTS)),
        is_ranked=False,
    )
    result = conclusion.result
    ended = [test.success for test in tests]
    result = replace(
        result,
        measures=(*result.measures, *_usage_during(tests)),
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


def _usage_during(tests: Sequence[LoadResult]) -> Iterator[Measure]:
    """Yield how busy the host and GPUs were during each test's window."""
    for test in tests:
        readings = {HOST_USE: test.readings.cpu_percent, GPU_USE: test.readings.gpu_utilization_percent}
        for name, quantity in readings.items():
            value = None if quantity.stats is None else quantity.stats.avg_value
            yield Measure(
                name=name,
                value=value,
                unit="%",
                text=units.MISSING if value is None else f"{value:.0f} %",
                detail="mean over the window, all processes",
                statistic="mean",
                case=test.test.name,
                missing=quantity.missing,
            )


def with_suite_remedy(doubt: Doubt) -> Doubt:
    """Suggest the key that lengthens the suite's windows instead of keys that the suite sets itself."""
    return replace(doubt, remedy=LONGER) if doubt.code in TOO_SHORT else doubt


def _setting(launch: Launch) -> str:
    """Return the precision that a test ran in, and where its data came from."""
    data = {"device": "data generated on the device", "loader": "data from a loader"}[
        launch.case.model_work.data.loading
    ]
    return f"{launch.setup.precision}, {data}"

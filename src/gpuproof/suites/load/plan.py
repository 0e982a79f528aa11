"""The load suite: twelve tests, two models each in training and inference at three batch sizes.

Each test is a separate launch with a fresh, seeded model. Names and descriptions are part of a file format
and are defined here once, for every reader.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from gpuproof.config.models import LoadConfig, RunConfig
from gpuproof.suites.base import HostPlace
from gpuproof.suites.points.plan import Plan, Point, check_points, config_at

ModelName = Literal["simple_cnn", "resnet"]
TestType = Literal["training", "inference"]
SHORTEST_STEP_S = 0.25e-3
"""Minimum step duration expected in any of the twelve tests, used to plan the sampling interval."""
READINGS_PER_TEST = 10
SHORTEST_INTERVAL_S = 0.05
"""Minimum sampling interval unless a shorter one is requested: over shorter intervals, CPU usage is
meaningless because of the kernel's 10 ms ticks."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadTest:
    """One of the twelve tests."""

    test_type: TestType
    model: ModelName
    batch_size: int
    description: str

    @property
    def name(self) -> str:
        """The test's name, e.g. `train_simple_cnn_bs16`."""
        verb = "train" if self.test_type == "training" else "inference"
        return f"{verb}_{self.model}_bs{self.batch_size}"


DESCRIPTIONS: Mapping[tuple[TestType, ModelName], Mapping[int, str]] = {
    ("training", "simple_cnn"): {
        16: "Small batch CNN training - Tests GPU efficiency with limited parallelism and memory usage",
        32: "Medium batch CNN training - Balanced test of GPU compute and memory bandwidth",
        64: "Large batch CNN training - Tests GPU memory capacity and high-throughput compute",
    },
    ("training", "resnet"): {
        8: "Small batch ResNet training - Tests GPU with complex operations and moderate memory usage",
        16: "Medium batch ResNet training - Balanced complex compute with memory efficiency",
        32: "Large batch ResNet training - Stress test for GPU memory and complex operations",
    },
    ("inference", "simple_cnn"): {
        16: "Small batch CNN inference - Tests low-latency inference scenarios",
        32: "Medium batch CNN inference - Balanced inference throughput testing",
        64: "Large batch CNN inference - High-throughput inference performance test",
    },
    ("inference", "resnet"): {
        8: "Small batch ResNet inference - Complex model low-latency inference test",
        16: "Medium batch ResNet inference - Balanced complex inference workload",
        32: "Large batch ResNet inference - High-throughput complex model inference",
    },
}
"""Descriptions of the tests, by batch size."""
TESTS = tuple(
    LoadTest(test_type=test_type, model=model, batch_size=batch_size, description=description)
    for (test_type, model), by_size in DESCRIPTIONS.items()
    for batch_size, description in by_size.items()
)
"""The tests, in execution order."""


def points_of_tests(config: RunConfig) -> Mapping[str, Point]:
    """Return the twelve tests by name, each with its recipe.

    Raises:
        UsageError: the recipe cannot run.
    """
    return _points_of(_Recipe(text=config.model_dump_json(), config=config))


@dataclass(frozen=True, kw_only=True)
class _Recipe:
    """A hashable recipe, usable as a cache key."""

    text: str
    config: RunConfig = field(compare=False)


@functools.lru_cache(maxsize=1)
def _points_of(recipe: _Recipe) -> Mapping[str, Point]:
    """Build the points once for all hosts: hosts are evaluated one at a time, from the same recipe."""
    config = recipe.config
    return {
        test.name: Point(
            case_id=test.name,
            assignment={
                "kind": test.test_type,
                "model.name": test.model,
                "data.batch_size": test.batch_size,
            },
            config=config_at(config, values_for(test, config.load)),
        )
        for test in TESTS
    }


def values_for(test: LoadTest, load: LoadConfig) -> Mapping[str, Any]:
    """Return the recipe keys that a test sets, in dotted form."""
    num_steps = load.num_batches * (load.num_epochs if test.test_type == "training" else 1)
    interval_s = reading_interval_s(num_steps, longest_s=load.metrics_sample_rate_s)
    return {
        "kind": test.test_type,
        "model.name": test.model,
        "data.batch_size": test.batch_size,
        "data.samples_per_epoch": load.num_batches * test.batch_size,
        "benchmark.measure_steps": num_steps,
        "monitoring.interval_s": interval_s,
        "monitoring.host_interval_s": interval_s,
    }


def reading_interval_s(num_steps: int, *, longest_s: float) -> float:
    """Choose the sampling interval so that a test with short steps gets enough readings, if possible.

    >>> [reading_interval_s(n, longest_s=5.0) for n in (200, 40_000, 1_000_000)]
    [0.05, 1.0, 5.0]
    >>> reading_interval_s(200, longest_s=0.02)
    0.02
    """
    enough_s = num_steps * SHORTEST_STEP_S / READINGS_PER_TEST
    return min(longest_s, max(SHORTEST_INTERVAL_S, enough_s))


def plan(config: RunConfig) -> Plan:
    """Plan the tests in order; each runs once before any is repeated.

    Raises:
        UsageError: the recipe cannot run.
    """
    points = points_of_tests(config)
    replicates = range(config.run.repeats)
    return Plan(points=points, order=tuple((name, r) for r in replicates for name in points))


def begin(config: RunConfig, _places: Sequence[HostPlace]) -> Plan:
    """Plan the twelve tests.

    Raises:
        UsageError: the recipe cannot run.
    """
    return check_points(plan(config))

"""One recipe of a run in figures: the only one, a point of a sweep or a test of a suite.

It has words and measures; what the measures of a recipe are called stands here, too.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from gpuproof.records.result import Doubt, LaunchValue, Measure, Validity
from gpuproof.records.run import Failure

THROUGHPUT, PEAK_MEMORY = "throughput", "peak memory"
RATE_ONE_BY_ONE = "rate, one batch after another"
"""Of latency mode, in which nothing is queued: no throughput."""
TIME_PER_OUTPUT = "time per output token"
ITEMS, STEPS, WINDOW = "items", "steps", "window"
STEP, ENERGY = "step of all launches", "energy of all launches"


@dataclass(frozen=True, slots=True, kw_only=True)
class PointMeasures:
    """One recipe of a run: the only one, a point of a sweep or a test of a suite."""

    case_id: str
    assignment: Mapping[str, Any]
    """Swept key → value; empty for the only one."""
    kind: str
    model: str
    batch_size: int
    item: str
    items_per_sample: int
    device: str | None
    """None where nothing was measured."""
    num_devices: int | None
    num_launches: int
    """That measured something."""
    num_planned: int
    validity: Validity | None
    failures: tuple[Failure, ...]
    """The first failure of each launch that failed or was cut short."""
    refused: bool = False
    """It failed as the search meant it to, for want of memory."""
    doubts: tuple[Doubt, ...] = ()
    """Of a point among several, its own; of the only recipe of a run they are the run's."""
    measures: tuple[Measure, ...] = ()
    """Of the point as a whole; a result has them among its own, and not with the point."""

    @property
    def success(self) -> bool | None:
        """Whether every launch measured what it was asked to; None where it was not run to an end."""
        if self.failures:
            return False
        return True if self.num_launches >= self.num_planned else None

    @property
    def are_replicates(self) -> bool:
        """Whether launches may feed an interval between launches: each must be a fresh process."""
        return all(launch.start == "exec" for launch in self.launches)

    @property
    def without_measures(self) -> PointMeasures:
        """The point as a detail holds it: the result has its measures."""
        return replace(self, measures=())

    def measure(self, *names: str) -> Measure | None:
        """Return its measure of the first of these names that it has."""
        by_name = {measure.name: measure for measure in self.measures}
        return next((by_name[name] for name in names if name in by_name), None)

    def value(self, *names: str) -> float | None:
        """Return the value of a measure; None where there is none."""
        measure = self.measure(*names)
        return None if measure is None else measure.value

    @property
    def rate(self) -> Measure | None:
        """Items a second, all ranks of all launches together."""
        return self.measure(THROUGHPUT, RATE_ONE_BY_ONE)

    @property
    def rate_value(self) -> float | None:
        """The value of the rate; None where nothing was measured."""
        return None if self.rate is None else self.rate.value

    @property
    def launches(self) -> tuple[LaunchValue, ...]:
        """The rate of each launch that measured something."""
        return () if self.rate is None else self.rate.launches

"""The results of one recipe in a run: the only one, a point of a sweep, or a test of a suite.

Contains texts and measures, and defines how the measures are named.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from gpuproof.records.result import Doubt, LaunchValue, Measure, Validity
from gpuproof.records.run import Failure

THROUGHPUT, PEAK_MEMORY = "throughput", "peak memory"
RATE_ONE_BY_ONE = "rate, one batch after another"
"""Rate in latency mode, which queues nothing; therefore not called throughput."""
TIME_PER_OUTPUT = "time per output token"
ITEMS, STEPS, WINDOW = "items", "steps", "window"
STEP, ENERGY = "step of all launches", "energy of all launches"


@dataclass(frozen=True, slots=True, kw_only=True)
class PointMeasures:
    """One recipe in a run: its only one, a point of a sweep, or a test of a suite."""

    case_id: str
    assignment: Mapping[str, Any]
    """Swept key → value; empty if the recipe is the only one."""
    kind: str
    model: str
    batch_size: int
    item: str
    items_per_sample: int
    device: str | None
    """None if no launch measured anything."""
    num_devices: int | None
    num_launches: int
    """Number of launches that measured something."""
    num_planned: int
    validity: Validity | None
    failures: tuple[Failure, ...]
    """The first failure of each launch that failed or was interrupted."""
    refused: bool = False
    """Whether the point ran out of memory, as a batch-size search expects."""
    doubts: tuple[Doubt, ...] = ()
    """The point's own warnings if there are several points; the run's warnings if there is only one
    recipe."""
    measures: tuple[Measure, ...] = ()
    """Measures of the point as a whole; a result lists them with its own measures, not with the point."""

    @property
    def success(self) -> bool | None:
        """Whether every launch measured what it should; None if the point did not run to completion."""
        if self.failures:
            return False
        return True if self.num_launches >= self.num_planned else None

    @property
    def are_replicates(self) -> bool:
        """Whether an interval across launches may be computed; this requires a fresh process for each."""
        return all(launch.start == "exec" for launch in self.launches)

    @property
    def without_measures(self) -> PointMeasures:
        """Return the point as stored in the details, without its measures, which are in the result."""
        return replace(self, measures=())

    def measure(self, *names: str) -> Measure | None:
        """Return the first existing measure among the given names."""
        by_name = {measure.name: measure for measure in self.measures}
        return next((by_name[name] for name in names if name in by_name), None)

    def value(self, *names: str) -> float | None:
        """Return the value of a measure; None if it does not exist."""
        measure = self.measure(*names)
        return None if measure is None else measure.value

    @property
    def rate(self) -> Measure | None:
        """Items per second, for all ranks and all launches together."""
        return self.measure(THROUGHPUT, RATE_ONE_BY_ONE)

    @property
    def rate_value(self) -> float | None:
        """The value of the rate; None if nothing was measured."""
        return None if self.rate is None else self.rate.value

    @property
    def launches(self) -> tuple[LaunchValue, ...]:
        """The rate of each launch that measured something."""
        return () if self.rate is None else self.rate.launches

"""The result of a run, in the same form for all suites: input for history, comparison, baselines.

`result.json` contains this value. A measure contains its case and subject; a curve is a set of measures that
differ in one label. Subjects are `whole`, `host/H`, `host/H/gpu/UUID` and `link/A>B` (directed).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from gpuproof.records.outcome import Judged
from gpuproof.records.run import Failure

RESULT_SCHEMA_VERSION = 1
"""1 (2026-11): first version."""
WHOLE = "whole"
NOTHING_MEASURED, INCONCLUSIVE = "NOTHING MEASURED", "INCONCLUSIVE"
DOUBTS = "records/doubts.csv"
"""Each warning code → its short text, and how it affects a difference."""
LIMITED_BY = "limited by"
"""Name of the measure that reports what limited a run or a part of it; it has no value."""
THE_RUN = "main"
"""The case of results that belong to neither a point nor a cell of a validation."""
A_LAUNCH = "each launch uses fresh processes"
FORKED_LAUNCHES = "launches were forked from one process (run.start)"
A_THROUGHPUT = (
    "throughput is the total work of all launches divided by their total time, so it may differ "
    "from the mean of their rates"
)

Validity = Literal["VALID", "SUSPECT", "INVALID"]
Better = Literal["higher", "lower"]
IntervalKind = Literal["between_launches", "within_launch", "bound"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Doubt:
    """A reason to distrust a measurement; a VALID one only reports what limited the measurement."""

    validity: Validity
    code: str
    """Short, stable code for use by programs."""
    reason: str
    remedy: str


OLDER = Doubt(
    validity="SUSPECT",
    code="older-result",
    reason=(
        "results of an older tool: neither its windows nor readings of the machine are "
        "available to check them"
    ),
    remedy="Measure again here: docs/from lists the command for each older tool",
)


def weakening(doubts: Sequence[Doubt]) -> tuple[Doubt, ...]:
    """Return the warnings that reduce trust in a result: all except warnings about what limited it."""
    return tuple(doubt for doubt in doubts if doubt.validity != "VALID")


def worst(doubts: Sequence[Doubt]) -> Validity:
    """Return the validity that follows from a set of warnings."""
    levels = {doubt.validity for doubt in doubts}
    return "INVALID" if "INVALID" in levels else "SUSPECT" if "SUSPECT" in levels else "VALID"


@dataclass(frozen=True, slots=True, kw_only=True)
class LaunchValue:
    """The value that one launch reports for a measure."""

    replicate: int
    order: int
    """Position in time among the launches of the run, from 0; if hosts run independently, among the launches
    of the same host."""
    value: float
    start: Literal["exec", "fork"] = "exec"
    """How processes were started; launches forked from the same process are not replicates."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MeasureInterval:
    """Interval for the true value, at a given confidence level."""

    low: float
    high: float
    level: float
    kind: IntervalKind
    method: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Measure:
    """One result: its subject, its value, its uncertainty."""

    name: str
    value: float | None
    unit: str
    text: str
    """The value and unit in readable form."""
    detail: str = ""
    """Additional information: the interval, the basis, or why there is no value."""
    uncertainty: str | None = None
    """Uncertainty in readable form: ±1.2 %."""
    case: str = THE_RUN
    subject: str = WHOLE
    statistic: str = "value"
    labels: Mapping[str, Any] = field(default_factory=dict)
    better: Better | None = None
    num_samples: int | None = None
    launches: tuple[LaunchValue, ...] = ()
    interval: MeasureInterval | None = None
    validity: Validity | None = None
    missing: str | None = None
    """Why there is no value."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Result:
    """The summary of a run."""

    schema_version: int = RESULT_SCHEMA_VERSION
    suite: str
    run_id: str
    gpuproof_version: str
    validity: Validity | None
    """Validity of the results; None if nothing was measured, or not the run's result."""
    verdict: str
    """VALID, SUSPECT, INVALID, NOTHING MEASURED or, for a benchmark with launches that ended without
    measuring the run's result, INCONCLUSIVE; READY etc. for a validation. On a simulated device, the verdict
    is prefixed with SIMULATED; of a validation, it is then at best INCONCLUSIVE (simulated)."""
    headline: str
    """Text shown for this run in a list of runs, or what is missing if its result was not measured."""
    exit_code: int
    num_launches: int
    num_planned: int
    conditions: Mapping[str, Any]
    """The conditions of the results: device, precision, versions. Results obtained under different conditions
    are not compared."""
    doubts: tuple[Doubt, ...]
    failures: tuple[Failure, ...]
    measures: tuple[Measure, ...]
    outcomes: tuple[Judged, ...] = ()
    """Outcomes of checks."""
    detail: Mapping[str, Any] = field(default_factory=dict)
    """Additional data for the suite's own page, in a form that the suite defines."""
    device_indices: Mapping[str, int] = field(default_factory=dict)
    """Subject → the index of that GPU on its host, as numbered by its driver; used by pages."""

    @property
    def limit(self) -> Measure | None:
        """Limiting factor of the run; None for older runs, or if the run measures nothing.

        A limit that applies only to a point, a host or a cell of a validation does not count as the run's
        limit.
        """
        return next(
            (m for m in self.measures if (m.name, m.case, m.subject) == (LIMITED_BY, THE_RUN, WHOLE)), None
        )


def how_launched(launches: Iterable[LaunchValue]) -> str:
    """Return how the processes of launches were started."""
    starts = {launch.start for launch in launches}
    if starts == {"exec", "fork"}:
        return f"some {FORKED_LAUNCHES}, the others use fresh processes"
    return FORKED_LAUNCHES if "fork" in starts else A_LAUNCH

"""The result of a run, one shape for every suite: what history, comparison and baselines read.

`result.json` is this value. A measure says of which case and subject it is; a curve is measures that differ
in one label. Subjects are `whole`, `host/H`, `host/H/gpu/UUID` and `link/A>B` (directed).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from gpuproof.records.outcome import Judged
from gpuproof.records.run import Failure

RESULT_SCHEMA_VERSION = 1
"""1 (2026-11): first version."""
WHOLE = "whole"
NOTHING_MEASURED, INCONCLUSIVE = "NOTHING MEASURED", "INCONCLUSIVE"
DOUBTS = "records/doubts.csv"
"""Every doubt by its code: what it says in a few words, and how it touches a difference."""
LIMITED_BY = "limited by"
"""Name of the measure that names what limited something, and has no value."""
THE_RUN = "main"
"""Case of what is of no point and no cell."""
A_LAUNCH = "a launch is one repeat of the measurement, in processes of its own"
A_THROUGHPUT = "a throughput is all that launches did over all their time: another mean, where they differ"

Validity = Literal["VALID", "SUSPECT", "INVALID"]
Better = Literal["higher", "lower"]
IntervalKind = Literal["between_launches", "within_launch", "bound"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Doubt:
    """A reason to distrust a measurement; one that is VALID is what limited it, and takes nothing from it."""

    validity: Validity
    code: str
    """Short and stable, for programs."""
    reason: str
    remedy: str


def weakening(doubts: Sequence[Doubt]) -> tuple[Doubt, ...]:
    """Return the doubts that take something from a figure: all but those that say what limited it."""
    return tuple(doubt for doubt in doubts if doubt.validity != "VALID")


def worst(doubts: Sequence[Doubt]) -> Validity:
    """Return the validity that a set of doubts leaves."""
    levels = {doubt.validity for doubt in doubts}
    return "INVALID" if "INVALID" in levels else "SUSPECT" if "SUSPECT" in levels else "VALID"


@dataclass(frozen=True, slots=True, kw_only=True)
class LaunchValue:
    """What one launch says of a measure."""

    replicate: int
    order: int
    """Position in time among the launches of the run, from 0; where hosts run by themselves, of its host."""
    value: float
    start: Literal["exec", "fork"] = "exec"
    """Launches that were forked from one process are no replicates."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MeasureInterval:
    """Where the true value lies, at a level of confidence."""

    low: float
    high: float
    level: float
    kind: IntervalKind
    method: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Measure:
    """One figure: of what, how much, how certain."""

    name: str
    value: float | None
    unit: str
    text: str
    """Value and unit as people read them."""
    detail: str = ""
    """What a person needs beside it: the interval, the basis, or why there is none."""
    uncertainty: str | None = None
    """As people read it: ±1.2 %."""
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
    """What a run came to."""

    schema_version: int = RESULT_SCHEMA_VERSION
    suite: str
    run_id: str
    gpuproof_version: str
    validity: Validity | None
    """None where nothing was measured, or not what the run is about."""
    verdict: str
    """VALID, SUSPECT, INVALID, NOTHING MEASURED or, where launches ended and the run's figure was not
    measured, INCONCLUSIVE of a benchmark; READY and its like of a validation.
    Of what ran on a simulated device: SIMULATED before it, and no better than INCONCLUSIVE (simulated)."""
    headline: str
    """What a list of runs shows of this one; what it lacks where that was not measured."""
    exit_code: int
    num_launches: int
    num_planned: int
    conditions: Mapping[str, Any]
    """Under what the figures hold: device, precision, versions. Unlike ones are not compared."""
    doubts: tuple[Doubt, ...]
    failures: tuple[Failure, ...]
    measures: tuple[Measure, ...]
    outcomes: tuple[Judged, ...] = ()
    """Of checks."""
    detail: Mapping[str, Any] = field(default_factory=dict)
    """What the suite's own page needs beyond this, in the suite's own shape."""
    device_indices: Mapping[str, int] = field(default_factory=dict)
    """The number of each GPU on its host, as its driver counts, by subject: pages call it so."""

    @property
    def limit(self) -> Measure | None:
        """What limited the run; None for what measures nothing, and for runs of before.

        That of a point, a host or a cell of a validation is not the run's.
        """
        return next(
            (m for m in self.measures if (m.name, m.case, m.subject) == (LIMITED_BY, THE_RUN, WHOLE)), None
        )

"""The metrics of a configuration over its launches: the compared one, then time, memory and energy."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean
from types import MappingProxyType
from typing import Any

from gpuproof.base import units
from gpuproof.records.result import Better, LaunchValue, Measure
from gpuproof.statistics.estimate import Unavailable
from gpuproof.statistics.launches import interval_of_launches
from gpuproof.suites.base import LaunchKey
from gpuproof.suites.matrix.case_values import CaseValues
from gpuproof.suites.results import with_interval

WALL, MEMORY, RESIDENT, ENERGY = "wall_s", "memory_bytes", "resident_bytes", "energy_j"
MEAN_MEMORY = "mean_memory_bytes"
"""The metric by which cases are compared if there are only recordings."""
NO_POSITIONS: Mapping[LaunchKey, int] = MappingProxyType({})


@dataclass(frozen=True, slots=True, kw_only=True)
class MatrixMeasure:
    """A metric of every configuration: its name, which direction is better, and how to obtain it."""

    name: str
    better: Better
    unit: str
    read: Callable[[CaseValues], float | None]
    reason_missing: Callable[[CaseValues], str | None] = lambda _: None


COSTS = (
    MatrixMeasure(name=WALL, better="lower", unit="s", read=lambda case: case.wall_s),
    MatrixMeasure(
        name=MEMORY,
        better="lower",
        unit="B",
        read=lambda case: case.memory.peak_bytes,
        reason_missing=lambda case: case.memory.missing,
    ),
    MatrixMeasure(name=RESIDENT, better="lower", unit="B", read=lambda case: case.resident.peak_bytes),
    MatrixMeasure(
        name=ENERGY,
        better="lower",
        unit="J",
        read=lambda case: case.energy_j,
        reason_missing=lambda case: case.energy_missing,
    ),
)


def value_of(case: CaseValues, metric: str) -> float | None:
    """Return the value of a metric for one launch."""
    return case.wall_s if metric == WALL else case.metrics.get(metric)


def _compared(metric: str, better: Better) -> MatrixMeasure:
    unit = "B" if metric.endswith("_bytes") else ""
    return MatrixMeasure(name=metric, better=better, unit=unit, read=lambda case: value_of(case, metric))


def measures_of(
    done: Sequence[CaseValues],
    metric: str,
    better: Better,
    *,
    name: str,
    labels: Mapping[str, Any],
    positions: Mapping[LaunchKey, int] = NO_POSITIONS,
) -> Iterator[Measure]:
    """Yield a configuration's metrics over successful launches, the compared one first.

    The value is the mean of the launches that have the metric; for a cost, all launches must have it, or the
    value is missing.
    """
    for what in (*([_compared(metric, better)] if metric != WALL else []), *COSTS):
        measured = [(case, value) for case in done if (value := what.read(case)) is not None]
        values = [value for _, value in measured]
        missing = None if what not in COSTS and values else _reason_missing(what, done, len(values))
        mean = fmean(values) if values and missing is None else None
        spread = interval_of_launches(values) if missing is None else Unavailable(reason=missing)
        launches = tuple(
            LaunchValue(replicate=at, order=positions.get((case.case_id, case.replicate), at), value=value)
            for at, (case, value) in enumerate(measured)
        )
        if what.name == MEMORY and len(_bases(done)) > 1:
            launches = ()  # these launches measure different things, and are not compared with any other run
        text = units.amount(mean, what.unit, digits=4)
        yield with_interval(
            what.name,
            mean,
            what.unit,
            text,
            spread,
            better=what.better,
            launches=launches,
            case=name,
            labels={"configuration": name, **labels},
            statistic="mean",
            missing=missing,
        )


def _reason_missing(what: MatrixMeasure, done: Sequence[CaseValues], num_measured: int) -> str | None:
    """Report why there is no mean over all launches; None if there is one."""
    bases = _bases(done)
    if what.name == MEMORY and len(bases) > 1:
        return f"memory of launches was measured in different ways: {', '.join(bases)}"
    if num_measured == len(done) > 0:
        return None
    reasons = (reason for case in done if (reason := what.reason_missing(case)))
    return next(reasons, f"{num_measured} of {len(done)} launches have {what.name}")


def _bases(done: Sequence[CaseValues]) -> list[str]:
    """Return what the launches' memory includes, skipping launches without memory values."""
    return list(dict.fromkeys(case.memory.basis for case in done if case.memory.basis))

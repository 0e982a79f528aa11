"""The two ceilings of a roofline, from the repeats that each device timed.

>>> trial = CeilingTrial(what="gemm", size=(2, 2, 2), dtype="float32", work=16.0, durations_s=(4.0, 2.0, 4.0))
>>> best_ceiling([trial])
MeasuredCeiling(value_per_s=8.0, relative_spread=0.5, what='gemm', size=(2, 2, 2), num_repeats=3)
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median

from gpuproof.records.run import Ceilings, CeilingTrial

LEAST_UNCERTAINTY = 0.02
"""Two measurements of a few milliseconds do not agree better than this, whatever their own spread."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MeasuredCeiling:
    """The fastest repeat of the fastest size: what the device did do, so that it can."""

    value_per_s: float
    """FLOP/s or bytes/s."""
    relative_spread: float
    """From the fastest repeat down to the median of that size, over the fastest."""
    what: str
    size: tuple[int, ...]
    num_repeats: int

    @property
    def highest_per_s(self) -> float:
        """The rate over which another measurement contradicts this one."""
        return self.value_per_s * (1 + max(self.relative_spread, LEAST_UNCERTAINTY))


@dataclass(frozen=True, slots=True, kw_only=True)
class Roofline:
    """The two ceilings of a launch, each of the slowest device: all devices keep step with that one."""

    compute: MeasuredCeiling | None
    memory: MeasuredCeiling | None
    num_devices: int
    missing: str | None
    """Why there is no ceiling of arithmetic."""

    @property
    def ridge_flops_per_byte(self) -> float | None:
        """The arithmetic intensity from which on arithmetic, not memory, is the limit."""
        if self.compute is None or self.memory is None:
            return None
        return self.compute.value_per_s / self.memory.value_per_s


def best_ceiling(trials: Sequence[CeilingTrial]) -> MeasuredCeiling | None:
    """Return the highest rate among trials of one sort; None where there is none."""
    timed = [trial for trial in trials if trial.durations_s]
    if not timed:
        return None
    best = max(timed, key=lambda trial: trial.work / min(trial.durations_s))
    fastest_s = min(best.durations_s)
    return MeasuredCeiling(
        value_per_s=best.work / fastest_s,
        relative_spread=1 - fastest_s / median(best.durations_s),
        what=best.what,
        size=best.size,
        num_repeats=len(best.durations_s),
    )


def build_roofline(ceilings: Sequence[Ceilings]) -> Roofline | None:
    """Put the ceilings of a launch's ranks together; None where none were measured."""
    if not ceilings:
        return None
    products = [[trial for trial in record.trials if trial.what == "gemm"] for record in ceilings]
    passes = [[trial for trial in record.trials if trial.what != "gemm"] for record in ceilings]
    return Roofline(
        compute=_lowest([best_ceiling(trials) for trials in products]),
        memory=_lowest([best_ceiling(trials) for trials in passes]),
        num_devices=len(ceilings),
        missing=ceilings[0].missing,
    )


def _lowest(trials: Sequence[MeasuredCeiling | None]) -> MeasuredCeiling | None:
    measured = [ceiling for ceiling in trials if ceiling is not None]
    return min(measured, key=lambda ceiling: ceiling.value_per_s, default=None)

"""Is B slower because it does more, or because the device ran at a lower clock? Time × clock is cycles.

In: launches of a measure on both sides, and the mean SM clock of each launch. Out: the same comparison in
cycles, and how far the clock itself differed. Where a difference in time is none in cycles, the clock is its
cause. What is bound by memory or by the host does not follow the SM clock, and is then named as it is.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import Any

from gpuproof.records.result import Better, LaunchValue, Result
from gpuproof.statistics.comparison import Comparison

ClocksByLaunch = Mapping[tuple[str, int], float]
"""Case and replicate → mean SM clock of the launch's devices, in MHz."""
NOT_READ = "clocks were not read beside every launch"
SAME_CLOCK = 0.001
"""Clocks that differ by less explain no difference that launches can show."""


@dataclass(frozen=True, slots=True, kw_only=True)
class InCycles:
    """A comparison in cycles of the device's clock."""

    comparison: Comparison
    clock_ratio: float
    """Mean clock of B's launches over that of A's."""


def clocks_of(result: Result) -> dict[tuple[str, int], float]:
    """Return the mean clock of each launch of which every device's was read."""
    rows: dict[tuple[str, int], list[float | None]] = {}
    common: Mapping[str, Any] = result.detail.get("common") or {}
    for row in common.get("devices") or ():
        rows.setdefault((row["case_id"], row["replicate"]), []).append(row["clock_sm_mhz"])
    positive = {key: [clock for clock in clocks if clock] for key, clocks in rows.items()}
    return {key: fmean(clocks) for key, clocks in positive.items() if len(clocks) == len(rows[key])}


def in_cycles(
    sides: tuple[Sequence[LaunchValue], Sequence[LaunchValue]],
    clocks: tuple[Sequence[float | None], Sequence[float | None]],
    *,
    better: Better,
    compare: Callable[[list[float], list[float]], Comparison],
) -> InCycles | None:
    """Compare cycles: a time by its clock, a rate over it; None where a launch's clock is not known."""
    read = [[clock for clock in side if clock is not None] for side in clocks]
    if not all(read) or [len(side) for side in read] != [len(side) for side in sides]:
        return None
    values = [
        [
            launch.value * clock if better == "lower" else launch.value / clock
            for launch, clock in zip(side, side_clocks, strict=True)
        ]
        for side, side_clocks in zip(sides, read, strict=True)
    ]
    return InCycles(comparison=compare(*values), clock_ratio=fmean(read[1]) / fmean(read[0]))


def explained_by_clocks(compared: Comparison, ratio: InCycles | None) -> str:
    """Say in one sentence what cycles say of a comparison in time; "" where nothing was to be explained."""
    if compared.verdict not in ("faster", "slower"):
        return ""
    if ratio is None:
        return f"not confirmed in cycles: {NOT_READ}"
    change = ratio.clock_ratio - 1
    clock = f"the clock of B was {abs(change):.1%} {'higher' if change > 0 else 'lower'}"
    if ratio.comparison.verdict == compared.verdict:
        moved = "" if abs(change) < SAME_CLOCK else f", though {clock}"
        return f"confirmed in cycles{moved}"
    if (change > 0) == (compared.verdict == "faster") and abs(change) >= SAME_CLOCK:
        return f"the clock is the cause: {clock}, and in cycles: {ratio.comparison.verdict}"
    return f"not confirmed in cycles ({ratio.comparison.verdict}), and the clock does not explain it: {clock}"

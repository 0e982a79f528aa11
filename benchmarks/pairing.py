"""Is B within its budget relative to A, on this machine, now? Shared by all benchmarks here.

Sides run in palindromes (A B B A, then B A A B), so that a machine that warms up, slows down or is used by
other processes affects them equally. Each block yields one ratio or one difference, and each launch, or each
block of fresh processes, yields one value. Their interval is computed by `gpuproof.statistics`. A second A
among the sides gives the noise floor, i.e. the difference that this machine shows between equal sides. The
output is lines of text. Nothing here asserts: a slow machine is not a failure.

>>> palindromes(["A", "B"], num_blocks=2)
[('A', 'B', 'B', 'A'), ('B', 'A', 'A', 'B')]
"""

from __future__ import annotations

import os
import platform
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from statistics import fmean, median
from typing import Literal

from gpuproof.statistics.estimate import Interval, Unavailable
from gpuproof.statistics.launches import interval_of_launches

Block = Sequence[tuple[str, float]]
"""The segments of one palindrome in execution order: side and value."""
Finding = Literal["within budget", "over budget", "not shown", "not measurable here"]


def palindromes(sides: Sequence[str], *, num_blocks: int) -> list[tuple[str, ...]]:
    """Return the order of `num_blocks` blocks: each runs all sides twice, every other one reversed."""
    forward, backward = tuple(sides), tuple(reversed(sides))
    return [forward + backward if block % 2 == 0 else backward + forward for block in range(num_blocks)]


def side_mean(block: Block, side: str) -> float:
    """Return the mean of one side's segments in a block.

    Raises:
        ValueError: the side did not run in this block.
    """
    values = [value for name, value in block if name == side]
    if not values:
        raise ValueError(f"no segment of {side!r} in a block of {', '.join(name for name, _ in block)}")
    return fmean(values)


def ratios(blocks: Iterable[Block], side: str, *, base: str) -> list[float]:
    """Return the ratio of `side` to `base` for each block."""
    return [side_mean(block, side) / side_mean(block, base) for block in blocks]


def differences(blocks: Iterable[Block], side: str, *, base: str) -> list[float]:
    """Return `side` minus `base` for each block, in the unit of the values."""
    return [side_mean(block, side) - side_mean(block, base) for block in blocks]


def launch_ratios(launches: Iterable[Sequence[Block]], side: str, *, base: str) -> list[float]:
    """Return one ratio per launch: the median over its blocks, which is robust to a short disturbance."""
    return [median(ratios(blocks, side, base=base)) for blocks in launches]


@dataclass(frozen=True, slots=True, kw_only=True)
class Judgement:
    """One result and its budget, both in the same unit; `parity` is its value without overhead."""

    label: str
    estimate: Interval | Unavailable
    noise: Interval | Unavailable
    """The same result with A compared with A."""
    budget: float
    parity: float
    unit: str = ""

    @property
    def noise_floor(self) -> float | None:
        """Maximum distance from parity when A is compared with A; None if unknown."""
        if isinstance(self.noise, Unavailable):
            return None
        return max(abs(self.noise.high - self.parity), abs(self.noise.low - self.parity))

    @property
    def finding(self) -> Finding:
        """Compare the interval with the budget, unless the noise exceeds the margin in the budget."""
        floor = self.noise_floor
        if isinstance(self.estimate, Unavailable) or floor is None or floor > self.budget - self.parity:
            return "not measurable here"
        if self.estimate.high <= self.budget:
            return "within budget"
        return "over budget" if self.estimate.low > self.budget else "not shown"

    def lines(self) -> list[str]:
        """Format the result, its interval, the budget, the noise floor and the finding."""
        floor = self.noise_floor
        if isinstance(self.noise, Unavailable):
            noise = f"not known ({self.noise.reason})"
        else:
            noise = f"±{floor:.4f}{self.unit}, from {interval_text(self.noise, self.unit)}"
        return [
            f"{self.label}: {self.finding.upper()}",
            f"  figure       {interval_text(self.estimate, self.unit)}",
            f"  upper bound  {self._upper()} against a budget of {self.budget:g}{self.unit}",
            f"  noise floor  {noise}",
        ]

    def _upper(self) -> str:
        return "–" if isinstance(self.estimate, Unavailable) else f"{self.estimate.high:.4f}{self.unit}"


def interval_text(estimate: Interval | Unavailable, unit: str = "") -> str:
    """Format an estimate with its interval and method, or the reason why there is none."""
    if isinstance(estimate, Unavailable):
        return f"– ({estimate.reason})"
    return (
        f"{estimate.centre:.4f}{unit}, {estimate.confidence:.0%} interval {estimate.low:.4f} to "
        f"{estimate.high:.4f} ({estimate.method}, n = {estimate.num_launches})"
    )


def judge_ratios(
    label: str, values: Sequence[float], *, noise_values: Sequence[float], budget: float
) -> Judgement:
    """Compare ratios, one per launch, with a budget such as 1.02."""
    return Judgement(
        label=label,
        estimate=interval_of_launches(values),
        noise=interval_of_launches(noise_values),
        budget=budget,
        parity=1.0,
    )


def judge_differences(
    label: str, values_s: Sequence[float], *, noise_values_s: Sequence[float], budget_s: float
) -> Judgement:
    """Compare differences in seconds, one per block of fresh processes, with a budget such as 0.8 s."""
    return Judgement(
        label=label,
        estimate=interval_of_launches(values_s),
        noise=interval_of_launches(noise_values_s),
        budget=budget_s,
        parity=0.0,
        unit=" s",
    )


def machine_line() -> str:
    """Report the machine and its load: a result means little without this line."""
    load = ", ".join(f"{value:.2f}" for value in os.getloadavg())
    return (
        f"{platform.node()}: {len(os.sched_getaffinity(0))} usable CPUs, load {load}, Python "
        f"{platform.python_version()}, {platform.system()} {platform.release()}"
    )

"""Is it worth to use several devices? Speed-up, efficiency, what follows, and what a rule of thumb says.

In: throughputs of launches on one device and on several. Out: the speed-up with its interval and, only where
that excludes 1, a recommendation. The rule of thumb (`advise`) looks at the model's size and the batch alone,
and is named so wherever it is shown: what was measured goes before it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from gpuproof.base.units import would_show
from gpuproof.comparison.winners import ComparedSide, compare_sides
from gpuproof.statistics.comparison import Comparison
from gpuproof.verdict.rules.model import MORE_THAN_THERE_IS

Advice = Literal["yes", "no", "evaluate", "benchmark"]
BENEFICIAL, MARGINAL = 1.1, 0.95
"""Speed-ups from which several devices are called beneficial, or the difference marginal (S2's words)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Thresholds:
    """What the rule of thumb goes by. No data stands behind the numbers: a policy, which may be set."""

    small_model_max_params: int = 1_000_000
    medium_model_max_params: int = 5_000_000
    large_model_min_params: int = 10_000_000
    min_batch_size_multi_gpu: int = 64
    medium_min_batch_size: int = 128


@dataclass(frozen=True, slots=True, kw_only=True)
class RuleOfThumb:
    """What the rule of thumb says, and why."""

    advice: Advice
    reason: str


def advise(num_parameters: int, batch_size: int, thresholds: Thresholds) -> RuleOfThumb:
    """Say whether several devices may help, from the size of the model and of the largest batch alone.

    >>> advise(54_403, 128, Thresholds()).reason
    'Model too small (54,403 params)'
    """
    sized = f"{num_parameters:,} params"
    if num_parameters < thresholds.small_model_max_params:
        return RuleOfThumb(advice="no", reason=f"Model too small ({sized})")
    if num_parameters < thresholds.medium_model_max_params:
        if batch_size < thresholds.medium_min_batch_size:
            return RuleOfThumb(advice="no", reason=f"Batch size {batch_size} too small for medium model")
        return RuleOfThumb(advice="evaluate", reason="Medium model may benefit with large batch")
    if num_parameters >= thresholds.large_model_min_params:
        if batch_size < thresholds.min_batch_size_multi_gpu:
            return RuleOfThumb(advice="no", reason="Increase batch size for large model efficiency")
        return RuleOfThumb(advice="yes", reason=f"Large model ({sized}) benefits")
    return RuleOfThumb(advice="benchmark", reason="Model in 5M-10M param range - test required")


@dataclass(frozen=True, slots=True, kw_only=True)
class SpeedUp:
    """Several devices against one, by launches of both."""

    num_devices: int
    comparison: Comparison

    @property
    def ratio(self) -> float | None:
        """Throughput of several over that of one; None where it cannot be told."""
        return None if self.comparison.ratio is None else self.comparison.ratio.centre

    @property
    def efficiency(self) -> float | None:
        """Speed-up over devices: 1 is a device's worth of work from each."""
        return None if self.ratio is None else self.ratio / self.num_devices

    @property
    def excludes_one(self) -> bool:
        """Whether the launches show a difference at all."""
        return self.comparison.verdict in ("faster", "slower")

    @property
    def is_decided(self) -> bool:
        """Whether it says what to use."""
        return self.excludes_one and not self.is_implausible

    @property
    def is_implausible(self) -> bool:
        """Whether it is more than so many devices can give."""
        return self.efficiency is not None and self.efficiency > MORE_THAN_THERE_IS

    @property
    def recommendation(self) -> str:
        """Say what to use, where the interval excludes 1; else what could not be shown."""
        comparison = self.comparison
        if comparison.verdict == "cannot tell":
            return f"cannot tell: {comparison.reason}"
        if self.is_implausible:
            return f"cannot tell: {self.num_devices} devices cannot be {self.ratio:.2f} times as fast as one"
        if not self.excludes_one or self.ratio is None:
            assert comparison.min_detectable is not None
            return f"no difference shown ({would_show(comparison.min_detectable)})"
        if self.ratio >= BENEFICIAL:
            return "Multi-GPU beneficial"
        return "Marginal difference" if self.ratio >= MARGINAL else "Single GPU preferred"


def speed_up(single: ComparedSide, several: ComparedSide, *, num_devices: int, confidence: float) -> SpeedUp:
    """Compare throughputs of launches, in items a second: one device's with several devices'."""
    compared = compare_sides(single, several, better="higher", confidence=confidence)
    return SpeedUp(num_devices=num_devices, comparison=compared)


def conclusion_in_words(average: SpeedUp) -> str:
    """Say what the average over batch sizes comes to, where its interval excludes 1 (S2's words)."""
    if average.ratio is None or not average.is_decided:
        return average.recommendation
    if average.ratio >= BENEFICIAL:
        return "Multi-GPU provides significant performance benefits"
    if average.ratio >= MARGINAL:
        return "Performance difference is marginal - consider other factors"
    return "Single GPU provides better performance - avoid multi-GPU"

"""Are several devices worth it? Speed-up, efficiency, conclusions, and a rule of thumb.

Input: throughputs of launches on one device and on several. Output: the speed-up with its interval and, only
if the interval excludes 1, a recommendation. The rule of thumb (`advise`) only uses the model's size and the
batch, and is labelled as such wherever it is shown: measurements take precedence over it.
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
"""Speed-ups above which several devices are called beneficial or the difference is called marginal (S2's
terms)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Thresholds:
    """The rule of thumb's thresholds: a policy that may be changed, not numbers based on data."""

    small_model_max_params: int = 1_000_000
    """Rule of thumb: a model with fewer parameters is too small for several devices."""
    medium_model_max_params: int = 5_000_000
    """Rule of thumb: a larger model up to this size benefits from several devices only if the batch is large
    (medium_min_batch_size)."""
    large_model_min_params: int = 10_000_000
    """Rule of thumb: a model with this many parameters or more benefits from several devices if the batch is
    large enough (min_batch_size_multi_gpu); between medium and large, only a measurement tells."""
    min_batch_size_multi_gpu: int = 64
    """Rule of thumb: the batch size from which a large model benefits from several devices. The largest of
    batch_sizes counts."""
    medium_min_batch_size: int = 128
    """Rule of thumb: the batch size from which a medium model is worth measuring on several devices."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RuleOfThumb:
    """Recommendation of the rule of thumb, with the reason."""

    advice: Advice
    reason: str


def advise(num_parameters: int, batch_size: int, thresholds: Thresholds) -> RuleOfThumb:
    """Report whether several devices may help, based only on the model size and the largest batch.

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
    limits = (thresholds.medium_model_max_params, thresholds.large_model_min_params)
    low, high = (f"{limit / 1e6:g}M" for limit in limits)
    return RuleOfThumb(advice="benchmark", reason=f"Model in {low}-{high} param range - test required")


@dataclass(frozen=True, slots=True, kw_only=True)
class SpeedUp:
    """Several devices compared with one, using launches of both."""

    num_devices: int
    comparison: Comparison

    @property
    def ratio(self) -> float | None:
        """Throughput of several devices relative to one device; None if unknown."""
        return None if self.comparison.ratio is None else self.comparison.ratio.centre

    @property
    def efficiency(self) -> float | None:
        """Speed-up divided by number of devices: 1 means that each adds a full device's worth of work."""
        return None if self.ratio is None else self.ratio / self.num_devices

    @property
    def excludes_one(self) -> bool:
        """Whether the launches show any difference."""
        return self.comparison.verdict in ("faster", "slower")

    @property
    def is_decided(self) -> bool:
        """Whether the comparison supports a recommendation."""
        return self.excludes_one and not self.is_implausible

    @property
    def is_implausible(self) -> bool:
        """Whether the speed-up is higher than this many devices can deliver."""
        return self.efficiency is not None and self.efficiency > MORE_THAN_THERE_IS

    @property
    def recommendation(self) -> str:
        """Recommend a choice if the interval excludes 1; else report what could not be demonstrated."""
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
    """Compare the throughput of launches on one device and on several, in items per second."""
    compared = compare_sides(single, several, better="higher", confidence=confidence)
    return SpeedUp(num_devices=num_devices, comparison=compared)


def conclusion_in_words(average: SpeedUp) -> str:
    """State the conclusion for the average over batch sizes, if its interval excludes 1 (S2's words)."""
    if average.ratio is None or not average.is_decided:
        return average.recommendation
    if average.ratio >= BENEFICIAL:
        return "Multi-GPU provides significant performance benefits"
    if average.ratio >= MARGINAL:
        return "Performance difference is marginal - consider other factors"
    return "Single GPU provides better performance - avoid multi-GPU"

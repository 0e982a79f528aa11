"""How much of a step does not depend on the batch? Where most does not, a step is launch-bound.

In: step times of launches of one device at a small and at a large batch. If a step takes a + b·B seconds at
batch B, the part a of the larger batch's step is (B·r - A) / (B - A), with A the smaller batch and r the
ratio of the smaller batch's step time to the larger one's. It rises with r, so that the ends of r's interval
give the ends of its own. A device whose time does not rise from the smaller batch to the larger one is kept
waiting: the host launches kernels more slowly than they run, or each kernel is too small to fill the device.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from gpuproof.statistics.comparison import compare_launches
from gpuproof.statistics.estimate import Interval

MOSTLY = 0.5
"""Share of the larger batch's step from which it is called bound by launches."""
LEAST_RATIO = 2
"""Batches that lie closer than this say nothing of what a step takes without them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FixedTime:
    """What a step takes whatever the batch, as a share of the larger batch's step."""

    small_batch: int
    large_batch: int
    step_ratio: float | None
    """Step time of the larger batch over that of the smaller one."""
    share: Interval | None
    missing: str | None = None

    @property
    def is_launch_bound(self) -> bool:
        """Whether most of the larger batch's step does not depend on the batch, at the interval's low end."""
        return self.share is not None and self.share.low > MOSTLY


def fixed_time(steps_s: Mapping[int, Sequence[float]], *, confidence: float = 0.95) -> FixedTime | None:
    """Compare the smallest batch with the largest; `steps_s` has a mean step of each launch, by batch.

    None where there is one batch only, or none.

    >>> found = fixed_time({8: [6.48, 6.5, 6.46], 128: [7.58, 7.6, 7.56]})
    >>> found.is_launch_bound, round(found.share.centre, 2)
    (True, 0.85)
    """
    timed = {batch: times for batch, times in steps_s.items() if times}
    if len(timed) < 2:
        return None
    small, large = min(timed), max(timed)
    if large < LEAST_RATIO * small:
        return FixedTime(
            small_batch=small,
            large_batch=large,
            step_ratio=None,
            share=None,
            missing=f"batches of {small} and {large} lie too close together",
        )
    comparison = compare_launches(
        timed[large], timed[small], better="lower", confidence=confidence, is_cautious=True
    )
    ratio = comparison.ratio
    return FixedTime(
        small_batch=small,
        large_batch=large,
        step_ratio=None if ratio is None else 1 / ratio.centre,
        share=None if ratio is None else _share(ratio, small, large),
        missing=comparison.reason,
    )


def _share(ratio: Interval, small: int, large: int) -> Interval:
    centre, low, high = ((large * x - small) / (large - small) for x in (ratio.centre, ratio.low, ratio.high))
    return replace(ratio, centre=centre, low=low, high=high)

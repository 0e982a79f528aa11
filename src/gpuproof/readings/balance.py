"""Is the load spread evenly over the GPUs?

In: a `WindowSummary`. Out: for utilisation, memory and power the coefficient of variation over the GPUs'
means, the usual word for it (under 5 % excellent, 10 good, 20 fair, else poor), and the GPU furthest
off. With one GPU, or a metric that a GPU did not give, there is no answer, and the reason says so.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Literal

from gpuproof.readings.summary import WindowSummary
from gpuproof.statistics.dispersion import coefficient_of_variation

Band = Literal["excellent", "good", "fair", "poor"]

BALANCE_METRICS: Final = ("util_gpu_percent", "mem_used_bytes", "power_w")
_LIMITS: Final[tuple[tuple[float, Band], ...]] = ((0.05, "excellent"), (0.10, "good"), (0.20, "fair"))


@dataclass(frozen=True, slots=True, kw_only=True)
class Balance:
    """How evenly one metric is spread over the GPUs."""

    metric: str
    means: dict[int, float]
    """Physical index → time-weighted mean."""
    variation: float | None
    """Standard deviation over mean, 0.05 for 5 %."""
    band: Band | None
    furthest: int | None
    """Physical index of the GPU furthest from the mean of all."""
    missing: str | None


def describe_variation(variation: float) -> Band:
    """Put a coefficient of variation into words.

    >>> [describe_variation(v) for v in (0.0499, 0.05, 0.10, 0.20)]
    ['excellent', 'good', 'fair', 'poor']
    """
    return next((band for limit, band in _LIMITS if variation < limit), "poor")


def load_balance(window: WindowSummary) -> tuple[Balance, ...]:
    """Judge how evenly utilisation, memory and power are spread over the GPUs of a window."""
    return tuple(_balance(window, metric) for metric in BALANCE_METRICS)


def _balance(window: WindowSummary, metric: str) -> Balance:
    means = {
        device.identity.physical_index: mean
        for device in window.devices
        if (mean := device.mean(metric)) is not None
    }
    silent = [d.identity.physical_index for d in window.devices if d.identity.physical_index not in means]
    variation = coefficient_of_variation(list(means.values())) if not silent else None
    if variation is None:
        return Balance(
            metric=metric,
            means=means,
            variation=None,
            band=None,
            furthest=None,
            missing=_why_not(window, silent),
        )
    centre = sum(means.values()) / len(means)
    return Balance(
        metric=metric,
        means=means,
        variation=variation,
        band=describe_variation(variation),
        furthest=max(means, key=lambda index: abs(means[index] - centre)),
        missing=None,
    )


def _why_not(window: WindowSummary, silent: list[int]) -> str:
    if len(window.devices) < 2:
        return f"{len(window.devices)} GPU: nothing to balance"
    if silent:
        return f"not read on GPU {', '.join(map(str, silent))}"
    return "0 on every GPU"

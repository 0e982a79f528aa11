"""Is the load spread evenly over the GPUs?

In: the figures of a recording. Out: for utilisation, memory and power the coefficient of variation over the
GPUs' means as a measure, with the usual word for it (under 5 % excellent, 10 good, 20 fair, else poor) and
the GPU furthest off. With one GPU, or a metric that a GPU did not give, there is no value but the reason.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Final, Literal

from gpuproof.base.units import MISSING
from gpuproof.readings.metric_text import quantity, title
from gpuproof.records.result import Measure
from gpuproof.statistics.dispersion import coefficient_of_variation

Band = Literal["excellent", "good", "fair", "poor"]

BALANCE_METRICS: Final = ("util_gpu_percent", "mem_used_bytes", "power_w")
VARIATION: Final = "coefficient of variation over GPUs"
_LIMITS: Final[tuple[tuple[float, Band], ...]] = ((0.05, "excellent"), (0.10, "good"), (0.20, "fair"))


def describe_variation(variation: float) -> Band:
    """Put a coefficient of variation into words.

    >>> [describe_variation(v) for v in (0.0499, 0.05, 0.10, 0.20)]
    ['excellent', 'good', 'fair', 'poor']
    """
    return next((band for limit, band in _LIMITS if variation < limit), "poor")


def device_means(measures: Iterable[Measure], metric: str) -> dict[int, float | None]:
    """Return the mean of a metric over the whole recording by physical index; None where it was not read."""
    means: dict[int, float | None] = {}
    for measure in measures:
        labels = measure.labels
        if "gpu" in labels and "phase" not in labels:
            means.setdefault(labels["gpu"], None)
            if labels["metric"] == metric and measure.statistic == "mean":
                means[labels["gpu"]] = measure.value
    return means


def load_balance(measures: Iterable[Measure]) -> tuple[Measure, ...]:
    """Judge how evenly utilisation, memory and power are spread over the GPUs of a recording."""
    listed = tuple(measures)
    return tuple(_balance(metric, device_means(listed, metric)) for metric in BALANCE_METRICS)


def _balance(metric: str, means: Mapping[int, float | None]) -> Measure:
    values = {index: mean for index, mean in means.items() if mean is not None}
    silent = [index for index in means if index not in values]
    variation = coefficient_of_variation(list(values.values())) if not silent else None
    detail = ""
    if variation is not None:
        centre = sum(values.values()) / len(values)
        furthest = max(values, key=lambda index: abs(values[index] - centre))
        detail = (
            f"{describe_variation(variation)}, over {len(values)} GPUs; "
            f"furthest off: GPU {furthest} with {quantity(metric, values[furthest])}"
        )
    return Measure(
        name=title(metric),
        value=variation,
        unit="1",
        text=MISSING if variation is None else f"varies by {variation * 100:.1f} %",
        detail=detail,
        statistic=VARIATION,
        labels={"metric": metric},
        missing=_reason_against(means, silent) if variation is None else None,
    )


def _reason_against(means: Mapping[int, float | None], silent: list[int]) -> str:
    if len(means) < 2:
        return f"{len(means)} GPU: nothing to balance"
    if silent:
        return f"not read on GPU {', '.join(map(str, silent))}"
    return "0 on every GPU"

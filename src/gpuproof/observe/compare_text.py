"""How does a comparison read? First whether the two are comparable, then the figures, then their limits.

In: a `Comparison`. Out: plain text.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from gpuproof.readings.compare import Comparison, MetricComparison, Side
from gpuproof.readings.metric_text import quantity, title
from gpuproof.units import MISSING, seconds, significant

_LIMITS: Final = (
    "The intervals (95 %, moving-block bootstrap) speak for these two recordings only: what another launch\n"
    "of either would give is not in them. To compare two configurations, measure each several times."
)


def render_comparison(comparison: Comparison) -> str:
    """Write a comparison as text that ends with a line end."""
    lines = [_side("A", comparison.first), _side("B", comparison.second), ""]
    lines += [*_conditions(comparison), "", f"Compared over {comparison.basis}."]
    rows: list[tuple[str, ...]] = [("", "A", "B", "B − A", "95 % interval", "verdict")]
    rows += [_row(metric) for metric in comparison.metrics]
    lines += list(_table(rows)) if len(rows) > 1 else ["Neither recording has a reading to compare there."]
    lines += [f"  {title(m.metric)}: cannot tell: {m.reason}" for m in comparison.metrics if m.reason]
    lines += ["", _LIMITS]
    return "\n".join(lines) + "\n"


def _side(letter: str, side: Side) -> str:
    return (
        f"{letter}: {side.source}: {side.num_gpus} GPU(s), {seconds(side.duration_s)}, "
        f"of which {seconds(side.used_s)} compared"
    )


def _conditions(comparison: Comparison) -> Iterator[str]:
    weights = {condition.weight for condition in comparison.conditions}
    if not comparison.comparable:
        yield "NOT COMPARABLE as they stand: these conditions differ, and may be all that is seen below."
    elif "unknown" in weights:
        yield "Comparable as far as was recorded; some conditions are unknown."
    else:
        yield "Comparable: same GPU, driver, power limit and clock limits."
    words = {"differs": "differs", "unknown": "unknown", "note": "also differs"}
    for condition in comparison.conditions:
        both = f"A {condition.first}, B {condition.second}"
        yield f"  {words[condition.weight]:<14}{condition.where}, {condition.fact}: {both}"


def _row(metric: MetricComparison) -> tuple[str, ...]:
    name, interval = metric.metric, metric.difference
    means = (quantity(name, metric.first_mean), quantity(name, metric.second_mean))
    if interval is None:
        return (title(name), *means, MISSING, MISSING, metric.verdict)
    return (
        title(name),
        *means,
        signed(name, interval.centre) + _relative(metric),
        f"{signed(name, interval.low)} … {signed(name, interval.high)}",
        metric.verdict,
    )


def signed(metric: str, value: float) -> str:
    """Write a difference with its sign; degrees and megahertz with decimals, as 0 would hide one.

    >>> signed("power_w", -12.5), signed("temp_gpu_c", 0.4)
    ('−12.5 W', '+0.400 °C')
    """
    unit = {"_c": "°C", "_mhz": "MHz"}.get(metric[metric.rindex("_") :])
    size = f"{significant(abs(value))} {unit}" if unit else quantity(metric, abs(value))
    if value == 0:
        return size
    return f"{'+' if value > 0 else '−'}{size}"


def _relative(metric: MetricComparison) -> str:
    """Add the difference in per cent, except where a ratio means nothing (°C) or misleads (per cents)."""
    if metric.metric.endswith(("_c", "_percent")) or not metric.first_mean or metric.difference is None:
        return ""
    share = metric.difference.centre / metric.first_mean * 100
    return f" ({'+' if share >= 0 else '−'}{significant(abs(share), 2)} %)"


def _table(rows: list[tuple[str, ...]]) -> Iterator[str]:
    widths = [max(len(row[column]) for row in rows) for column in range(5)]
    for row in rows:
        cells = [f"{row[0]:<{widths[0]}}"]
        cells += [f"{cell:>{width}}" for cell, width in zip(row[1:5], widths[1:], strict=True)]
        yield ("  " + "  ".join([*cells, row[5]])).rstrip()

"""How does a comparison of two recordings read? The text of `gpuproof monitor compare`.

In: what `readings.compare` computed. Out: plain text: first whether the two are comparable, then the figures,
then energy and time held back, then the limits of all that.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from gpuproof.observe.text import table
from gpuproof.readings.compare import MetricComparison, RecordingComparison, Side
from gpuproof.readings.metric_text import energy, quantity, throttle_title, title
from gpuproof.readings.spent import Spent
from gpuproof.units import MISSING, seconds, share, significant

_COMPARISON_LIMITS: Final = (
    "The intervals (by what changes slowest) hold for these two recordings only: what another launch\n"
    "of either would give is not in them. To compare two configurations, measure each several times."
)


def render_comparison(comparison: RecordingComparison) -> str:
    """Write a comparison as text that ends with a line end."""
    lines = [_side("A", comparison.first), _side("B", comparison.second), ""]
    lines += [*_conditions(comparison), "", f"Compared over {comparison.basis}."]
    rows: list[tuple[str, ...]] = [("", "A", "B", "B − A", "interval", "shown from", "verdict")]
    rows += [_compared_row(metric) for metric in comparison.metrics]
    lines += (
        list(table(rows, label_width=0))
        if len(rows) > 1
        else ["Neither recording has a reading to compare there."]
    )
    judged = [m.difference for m in comparison.metrics if m.difference is not None]
    if judged:
        num = len(comparison.metrics)
        lines.append(
            f"Each interval has {judged[0].confidence:.2%}, so that those of {num} metrics all hold at 95 %."
        )
    lines += [f"  {title(m.metric)}: cannot tell: {m.reason}" for m in comparison.metrics if m.reason]
    lines += ["", *_spent(comparison.spent)] if comparison.has_gpus else []
    lines += ["", _COMPARISON_LIMITS]
    return "\n".join(lines) + "\n"


def _side(letter: str, side: Side) -> str:
    return (
        f"{letter}: {side.source}: {side.num_gpus} GPU(s), {seconds(side.duration_s)}, "
        f"of which {seconds(side.used_s)} compared"
    )


def _conditions(comparison: RecordingComparison) -> Iterator[str]:
    weights = {condition.weight for condition in comparison.conditions}
    if not comparison.comparable:
        yield "NOT COMPARABLE as they stand: these conditions differ, and may be all that is seen below."
    elif "unknown" in weights:
        yield "Comparable as far as was recorded; some conditions are unknown."
    elif comparison.has_gpus:
        yield "Comparable: same GPU, driver, power limit and clock limits."
    else:
        yield "Comparable: same CPU; there is no GPU on either side."
    words = {"differs": "differs", "unknown": "unknown", "note": "also differs"}
    for condition in comparison.conditions:
        both = f"A {condition.first}, B {condition.second}"
        yield f"  {words[condition.weight]:<14}{condition.where}, {condition.fact}: {both}"


def _compared_row(metric: MetricComparison) -> tuple[str, ...]:
    name, interval = metric.metric, metric.difference
    means = (quantity(name, metric.first_mean), quantity(name, metric.second_mean))
    if interval is None:
        return (title(name), *means, MISSING, MISSING, MISSING, metric.verdict)
    return (
        title(name),
        *means,
        signed(name, interval.centre) + _relative(metric),
        f"{signed(name, interval.low)} … {signed(name, interval.high)}",
        signed(name, metric.smallest_shown or 0.0).removeprefix("+"),
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


def _spent(spent: Spent) -> Iterator[str]:
    """Tell energy and time held back, one figure a recording."""
    sides = (spent.first, spent.second)
    yield f"Over {spent.over}, all GPUs together; one figure each, so without an interval."
    rows: list[tuple[str, ...]] = [("", "A", "B", "B − A")]
    rows.append(("time", *(seconds(side.duration_s) for side in sides), MISSING))
    joules = [side.energy_j for side in sides]
    rows.append(("energy", *map(energy, joules), _more(*joules)))
    names = [throttle_title(reason) for reason in spent.reasons]
    told = [side.held for side in sides]
    for name, reason in zip(names, spent.reasons, strict=True):
        shares = [None if held is None else held.get(reason, 0.0) for held in told]
        words = [MISSING if part is None else f"{share(part)} of the time" for part in shares]
        rows.append((f"held back: {name}", *words, MISSING))
    if not names and None not in told:
        rows.append(("held back", "never", "never", MISSING))
    yield from table(rows, label_width=0)
    for letter, side in zip("AB", sides, strict=True):
        for what, why in (("energy", side.energy_missing), ("held back", side.held_missing)):
            if why is not None:
                yield f"  {what} of {letter} is not known: {why}"


def _more(first_j: float | None, second_j: float | None) -> str:
    if first_j is None or second_j is None or first_j <= 0:
        return MISSING
    percent = (second_j - first_j) / first_j * 100
    return f"{'+' if percent >= 0 else '−'}{significant(abs(percent), 2)} %"

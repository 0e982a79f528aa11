"""Place values on an axis, and choose the round numbers shown there.

>>> scale = linear_scale(Axis(label="step", unit="s"), [0.0101, 0.0196])
>>> scale.title, [tick.text for tick in scale.ticks]
('step (ms)', ['10', '12', '14', '16', '18', '20'])
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from math import ceil, floor, isclose, log, log2, log10

from gpuproof.records.page import Axis
from gpuproof.report.page_parts import one_line

Prefixes = tuple[tuple[float, str], ...]
BINARY: Prefixes = tuple(
    (1024.0**power, f"{sign}B") for power, sign in enumerate(("", "Ki", "Mi", "Gi", "Ti"))
)
DECIMAL = ((1.0, ""), (1e3, "k"), (1e6, "M"), (1e9, "G"), (1e12, "T"))
PREFIXES: Mapping[str, Prefixes] = {
    "s": ((1e-9, "ns"), (1e-6, "µs"), (1e-3, "ms"), (1.0, "s")),
    "B": BINARY,
    **{unit: tuple((factor, sign + unit) for factor, sign in DECIMAL) for unit in ("B/s", "FLOP", "FLOP/s")},
}
LONG = 1e6
"""Numbers of at least this size, in units without prefixes, are written in millions and so on."""
EXTREME = 1e200
"""Limit on a value's magnitude: above it, or below its inverse, a position on an axis cannot be computed."""
MOST_TICKS = 7
MOST_PLACES = 16
"""Maximum number of ticks at measured values; if there are more values, the ticks are round numbers
instead."""
STEPS = (1.0, 2.0, 2.5, 5.0, 10.0)
LONG_TIMES = ((180.0, 60.0, "min"), (10_800.0, 3600.0, "h"))
"""Units of a linear time axis: the number of seconds from which each is used, its length in seconds, its
name."""
NARROW_DECADES = 2
"""Number of decades below which an axis has ticks at 1, 2 and 5, not only at powers of ten."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Tick:
    """A tick at a round number on an axis."""

    value: float
    text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Scale:
    """An axis from one round number to another."""

    low: float
    high: float
    is_logarithmic: bool
    title: str
    ticks: tuple[Tick, ...]

    def has(self, value: float) -> bool:
        """Check whether a value has a position on the axis."""
        return abs(value) < EXTREME and (value > 1 / EXTREME or not self.is_logarithmic)

    def share(self, value: float) -> float:
        """Return the position of a value on the axis, from 0 to 1."""
        if self.is_logarithmic:
            return (log(value) - log(self.low)) / (log(self.high) - log(self.low))  # a quotient may overflow
        return (value - self.low) / (self.high - self.low)


def scale_for(axis: Axis, values: Sequence[float], *, from_zero: bool = False) -> Scale:
    """Choose an axis's range and ticks so that all values lie within the range.

    A logarithmic axis needs positive values; without any, the axis is linear.
    """
    if 1 < len(axis.ticks) <= MOST_PLACES:
        scale = scale_for(replace(axis, ticks=()), values, from_zero=from_zero)
        ticks = tuple(
            Tick(value=at, text=f"{at:,.10g}") for at in axis.ticks if scale.low <= at <= scale.high
        )
        return replace(scale, title=_title(axis, axis.unit), ticks=ticks)
    finite = [value for value in values if abs(value) < EXTREME]
    positive = [value for value in finite if value > 1 / EXTREME]
    if axis.is_logarithmic and positive:
        return logarithmic_scale(axis, positive)
    return linear_scale(axis, [*finite, 0.0] if from_zero or not finite else finite)


def named_scale(axis: Axis, *, is_downward: bool = False) -> Scale:
    """Centre each name on its number, with half a unit on either side."""
    ends = (-0.5, len(axis.names) - 0.5)
    low, high = ends[::-1] if is_downward else ends
    ticks = tuple(Tick(value=float(place), text=one_line(name)) for place, name in enumerate(axis.names))
    return Scale(low=low, high=high, is_logarithmic=False, title=axis.label, ticks=ticks)


def cut_to(scale: Scale, low: float, high: float) -> Scale:
    """Return a scale with new limits, and the ticks between them."""
    ticks = tuple(tick for tick in scale.ticks if low <= tick.value <= high)
    return replace(scale, low=low, high=high, ticks=ticks or scale.ticks[:1])


def linear_scale(axis: Axis, values: Sequence[float]) -> Scale:
    """Choose evenly spaced ticks, starting at zero unless this would hide the differences."""
    low, high = min(values), max(values)
    if 0 < low <= high / 2 or low == high > 0:
        low = 0.0
    # no number of digits would distinguish the ticks
    if high - low <= max(abs(low), abs(high), 1 / EXTREME) * 1e-12:
        low, high = low - max(1.0, abs(low)), high + max(1.0, abs(high))
    factor, unit = _linear_prefix(axis, max(abs(low), abs(high)))
    step = _step((high - low) / factor)
    first, last = floor(low / factor / step + 1e-9), ceil(high / factor / step - 1e-9)
    ticks = tuple(
        Tick(value=number * step * factor, text=_number(number * step, step=step))
        for number in range(first, last + 1)
    )
    return Scale(
        low=ticks[0].value,
        high=ticks[-1].value,
        is_logarithmic=False,
        title=_title(axis, unit),
        ticks=ticks,
    )


def logarithmic_scale(axis: Axis, values: Sequence[float]) -> Scale:
    """Choose ticks at powers of two for bytes and powers of two; else at powers of ten (× 1, 2 or 5)."""
    low, high = min(values), max(values)
    is_binary = axis.unit == "B" or all(log2(value).is_integer() for value in values)
    base = 2.0 if is_binary else 10.0
    powers = [base**power for power in range(floor(log(low, base)) - 1, ceil(log(high, base)) + 2)]
    rounds = powers if is_binary else sorted(power * part for power in powers for part in (1.0, 2.0, 5.0))
    begin = max(place for place, value in enumerate(rounds) if value <= low * (1 + 1e-9))
    end = min(place for place, value in enumerate(rounds) if value >= high * (1 - 1e-9))
    between = rounds[begin : max(end, begin + 1) + 1]
    is_wide = log10(high / low) >= NARROW_DECADES
    marked = [value for value in between if value in powers] if is_wide else between
    prefixes = PREFIXES.get(axis.unit)
    return Scale(
        low=between[0],
        high=between[-1],
        is_logarithmic=True,
        title=_title(axis, "" if prefixes else axis.unit),
        ticks=tuple(
            Tick(value=value, text=_with_prefix(value, prefixes) if prefixes else _number(value))
            for value in marked[:: ceil(len(marked) / MOST_TICKS)]
        ),
    )


def _step(width: float) -> float:
    """Return the round step that divides a width into a few ticks."""
    rough = width / (MOST_TICKS - 1)
    power = 10.0 ** floor(log10(rough))
    return next(part * power for part in STEPS if part * power >= rough * (1 - 1e-9))


def _prefix(prefixes: Prefixes, value: float) -> tuple[float, str]:
    """Return the largest unit prefix that does not exceed a value."""
    fitting = [prefix for prefix in prefixes if prefix[0] <= abs(value) * (1 + 1e-9)]
    return fitting[-1] if fitting else prefixes[0]


def _linear_prefix(axis: Axis, largest: float) -> tuple[float, str]:
    for limit_s, length_s, name in reversed(LONG_TIMES) if axis.unit == "s" else ():
        if largest >= limit_s:
            return length_s, name
    if axis.unit in PREFIXES:
        return _prefix(PREFIXES[axis.unit], largest)
    factor, sign = _prefix(DECIMAL, largest) if largest >= LONG else (1.0, "")
    return factor, f"{sign} {axis.unit}".strip()


def _with_prefix(value: float, prefixes: Prefixes) -> str:
    factor, unit = _prefix(prefixes, value)
    return f"{value / factor:,.10g} {unit}".rstrip()


def _number(value: float, *, step: float = 0.0) -> str:
    """Format a tick with enough digits to distinguish it from the next tick."""
    if value == 0:
        return "0"
    if abs(value) >= 1e12 or abs(value) < 1e-4:
        return f"{value:.4g}"
    if not step or isclose(step, round(step)):
        return f"{value:,.0f}" if abs(value) >= 1 else f"{value:.4g}"
    decimals = next(
        (count for count in range(1, 10) if isclose(step * 10**count, round(step * 10**count))), 9
    )
    return f"{value:,.{decimals}f}"


def _title(axis: Axis, unit: str) -> str:
    return f"{axis.label} ({unit})" if unit else axis.label

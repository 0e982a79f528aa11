"""Human-readable numbers with units: one format each for durations, rates, sizes and fractions.

>>> seconds(0.00123)
'1.23 ms'
>>> rate(1249.7, "samples")
'1,250 samples/s'
>>> memory(3 * 2**30)
'3.00 GiB'
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Collection, Mapping, Sequence
from datetime import datetime, timezone
from statistics import geometric_mean

MISSING = "–"
DECIMAL_PREFIXES = ((1e12, "T"), (1e9, "G"), (1e6, "M"))
MOST_HALF_WIDTH = 0.5
"""Uncertainty, as a fraction of the value, above which the value does not count as measured."""
NOT_WELL_ENOUGH = "not measured well enough"
UNIT = re.compile(
    r"(?<=\d) (?=(?:%|[nµm]?s|min|h|[kKMGT]i?B(?:/s)?|B(?:/s)?|[MGTP]?FLOP(?:/s)?|[mk]?W|k?J|[MG]Hz|°C)"
    r"(?![\w/]))"
)
"""The space between a number and its unit."""
UNBROKEN = "\ue000"
"""Stands for that space during line breaking: a private-use character, since Rich also breaks at U+00A0."""


def significant(value: float, digits: int = 3) -> str:
    """Format `value` with `digits` significant digits and thousands separators, without exponents.

    >>> [significant(x) for x in (0.012345, 9.999, 12.345, 1234.5, 0.0)]
    ['0.0123', '10.0', '12.3', '1,234', '0']
    """
    if not math.isfinite(value):  # a sum of impossible readings
        return MISSING
    if value == 0:
        return "0"
    rounded = float(f"{value:.{digits - 1}e}")
    exponent = int(f"{rounded:e}".partition("e")[2])
    return f"{value:,.{max(0, digits - 1 - exponent)}f}"


def seconds(value: float | None, *, digits: int = 3) -> str:
    """Format a duration given in seconds with a suitable unit (ns to h)."""
    if value is None:
        return MISSING
    if value == 0:
        return "0 s"
    for limit, scale, unit in ((1e-6, 1e9, "ns"), (1e-3, 1e6, "µs"), (1.0, 1e3, "ms"), (120.0, 1.0, "s")):
        if abs(value) < limit:
            return f"{significant(value * scale, digits)} {unit}"
    if abs(value) < 7200:
        return f"{int(value // 60)} min {int(value % 60):02d} s"
    return f"{int(value // 3600)} h {int(value % 3600 // 60):02d} min"


def duration(value_s: float) -> str:
    """Format a waiting time in whole seconds, minutes or hours.

    >>> [duration(value) for value in (0.4, 90, 5400, 100_000)]
    ['0 s', '90 s', '90 min', '28 h']
    """
    if value_s < 120:
        return f"{value_s:.0f} s"
    return f"{value_s / 60:.0f} min" if value_s < 7200 else f"{value_s / 3600:.0f} h"


def utc_time(unix_s: float) -> str:
    """Format a point in time, to the second.

    >>> utc_time(1_795_181_400.0)
    '2026-11-20 13:30:00 UTC'
    """
    return f"{datetime.fromtimestamp(unix_s, tz=timezone.utc):%Y-%m-%d %H:%M:%S UTC}"


def rate(value: float | None, item: str) -> str:
    """Format a rate in items per second."""
    return MISSING if value is None else f"{significant(value)} {item}/s"


def flops(value_per_s: float | None, *, digits: int = 3) -> str:
    """Format a rate of floating-point operations given in FLOP/s with a suitable unit.

    >>> flops(395.2e12), flops(1.5e9)
    ('395 TFLOP/s', '1.50 GFLOP/s')
    """
    return MISSING if value_per_s is None else _decimal(value_per_s, "FLOP/s", digits)


def _decimal(value: float, unit: str, digits: int = 3) -> str:
    """Format a value with a suitable decimal prefix."""
    scale, prefix = next((step for step in DECIMAL_PREFIXES if value >= step[0]), (1.0, ""))
    return f"{significant(value / scale, digits)} {prefix}{unit}"


def flop_count(value: float | None) -> str:
    """Format a FLOP count with a suitable unit.

    >>> flop_count(12_300_000), flop_count(7)
    ('12.3 MFLOP', '7.00 FLOP')
    """
    return MISSING if value is None else flops(value).removesuffix("/s")


def bandwidth(value_bytes_per_s: float | None) -> str:
    """Format a byte rate with decimal units, as memory data sheets do.

    >>> bandwidth(3.35e12), bandwidth(12.3e9)
    ('3.35 TB/s', '12.3 GB/s')
    """
    return MISSING if value_bytes_per_s is None else _decimal(value_bytes_per_s, "B/s")


def memory(value_bytes: float | None) -> str:
    """Format a size in bytes with binary units (KiB = 1024 bytes)."""
    if value_bytes is None:
        return MISSING
    size = float(value_bytes)
    for unit in ("B", "KiB", "MiB", "GiB"):
        if abs(size) < 1024:
            return f"{size:.0f} B" if unit == "B" else f"{significant(size)} {unit}"
        size /= 1024
    return f"{significant(size)} TiB"


SCALED: Mapping[str, Callable[[float], str]] = {
    "s": seconds,
    "B": memory,
    "B/s": bandwidth,
    "FLOP": flop_count,
    "FLOP/s": flops,
}
"""Units written with a prefix that suits each value."""


STEPS: Mapping[str, Sequence[tuple[float, str]]] = {
    "s": ((1e-9, "ns"), (1e-6, "µs"), (1e-3, "ms"), (1.0, "s")),
    "B": tuple((1024.0**power, f"{prefix}B") for power, prefix in enumerate(("", "Ki", "Mi", "Gi", "Ti"))),
    **{
        unit: ((1.0, unit), *((scale, f"{prefix}{unit}") for scale, prefix in reversed(DECIMAL_PREFIXES)))
        for unit in ("B/s", "FLOP", "FLOP/s")
    },
}
"""The factor of each unit prefix, smallest first."""


def in_one_unit(values: Sequence[float], unit: str, *, digits: int = 3) -> list[str]:
    """Format the values of a column with the same prefix, chosen to suit their geometric mean.

    >>> in_one_unit([1.2e9, 149e6, 0.0], "B/s")
    ['1,200 MB/s', '149 MB/s', '0 MB/s']
    >>> in_one_unit([202.29e9, 203.28e9], "B/s", digits=4)
    ['202.3 GB/s', '203.3 GB/s']
    """
    middle = geometric_mean([abs(value) for value in values if value] or [1.0])
    scale, name = max((step for step in STEPS[unit] if step[0] <= middle), default=STEPS[unit][0])
    return [f"{significant(value / scale, digits)} {name}" for value in values]


def amount(value: float | None, unit: str, *, digits: int = 3) -> str:
    """Format a value with its unit, and with a suitable prefix if the unit accepts one.

    >>> amount(148_864_736.0, "B/s"), amount(1249.7, "samples/s"), amount(0.5, "1")
    ('149 MB/s', '1,250 samples/s', '0.500')
    """
    if value is None:
        return MISSING
    if unit in SCALED:
        return SCALED[unit](value)
    return f"{significant(value, digits)} {'' if unit == '1' else unit}".rstrip()


def share(value: float | None) -> str:
    """Format a fraction (0.021) as a percentage ('2.1 %')."""
    return MISSING if value is None else f"{significant(value * 100, 2)} %"


def change(value: float | None) -> str:
    """Format a relative increase (a fraction) as a signed percentage.

    >>> change(0.676), change(-0.004), change(None)
    ('+67.6 %', '-0.4 %', '–')
    """
    return MISSING if value is None else f"{value * 100:+.1f} %"


def plus_minus(relative: float) -> str:
    """Format a relative half-width (0.021) as '±2.1 %'; above one half, it is not printed.

    >>> plus_minus(0.0042), plus_minus(1.17)
    ('±0.42 %', 'not measured well enough')
    """
    return f"±{share(relative)}" if relative <= MOST_HALF_WIDTH else NOT_WELL_ENOUGH


def would_show(detectable: float) -> str:
    """State a detectable relative difference or loss (0.02 is 2 %); from 100 % up, as a factor.

    >>> would_show(0.042), would_show(55.767)
    ('one of 4.2 % would be detected', 'only a factor of 57 would be detected')
    """
    if detectable < 1:
        return f"one of {share(detectable)} would be detected"
    return f"only a factor of {significant(1 + detectable, 2)} would be detected"


def loss_shown(detectable: float) -> str:
    """Describe the smallest loss that would be detected; at 1 (100 %) or more, no loss would be.

    >>> loss_shown(0.042), loss_shown(1.17)
    ('a loss of 4.2 % would be detected', 'no loss would be detected')
    """
    loss = f"a loss of {share(detectable)}" if detectable < 1 else "no loss"
    return f"{loss} would be detected"


def count(value: int | None) -> str:
    """Format a whole number with thousands separators."""
    return MISSING if value is None else f"{value:,}"


def first_of(names: Collection[str], most: int = 4, *, between: str = ", ") -> str:
    """Return the first few of many names, and how many more there are.

    >>> first_of(["a", "b"]), first_of("abcdef")
    ('a, b', 'a, b, c, d and 2 more')
    """
    more = f" and {len(names) - most} more" if len(names) > most else ""
    return f"{between.join(list(names)[:most])}{more}"


def more_below(num_more: int) -> str:
    """Say that a reason is not the only one; return an empty string if it is the only one."""
    return f"; {num_more} more reason{'s' * (num_more > 1)} below" if num_more else ""


def unbroken(text: str) -> str:
    """Return the text with no break between number and unit; `rejoined` restores the spaces.

    >>> unbroken("spans 11 % of 6.67 s, 3 steps").replace(UNBROKEN, "_")
    'spans 11_% of 6.67_s, 3 steps'
    """
    return UNIT.sub(UNBROKEN, text)


def rejoined(text: str) -> str:
    """Restore the spaces that `unbroken` replaced, after line breaking."""
    return text.replace(UNBROKEN, " ")

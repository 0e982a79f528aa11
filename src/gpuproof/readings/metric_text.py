"""Names and formats metrics, based on the unit at the end of the metric's name.

The input is a metric's name from `gpuproof.records.metrics` or a host column, and a value in the metric's
unit. The output is short text; a missing value is a dash, never 0.

>>> quantity("power_w", 312.4), quantity("mem_used_bytes", 2**30), quantity("clock_sm_mhz", 1980.0)
('312 W', '1.00 GiB', '1,980 MHz')
>>> title("util_gpu_percent"), title("temp_hotspot_c"), title("swap_used_bytes")
('GPU utilisation', 'hot-spot temperature', 'swap used')
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from gpuproof.base.units import MISSING, memory, seconds, significant
from gpuproof.records.metrics import HOST_METRICS, METRICS, UNITS, unit_end

_THROTTLE_TITLES: Final = {
    "thermal": "thermal slowdown",
    "thermal_software": "software thermal slowdown",
    "thermal_hardware": "hardware thermal slowdown",
    "thermal_memory": "thermal slowdown of memory",
    "reliability": "reliability limit",
    "other": "other reason",
}
"""Throttle reasons whose displayed name differs from their key."""

STATE_REASONS: Final = frozenset({"idle", "application_clocks", "display_clocks"})
"""Throttle reasons that reflect what the device was asked to do: they are not faults and do not count as
throttling."""


def energy(value_j: float | None) -> str:
    """Format an energy given in joules as J, kJ or MJ; from 1 kJ, watt-hours are added.

    >>> energy(7200.0)
    '7.20 kJ (2.00 Wh)'
    """
    if value_j is None:
        return MISSING
    if abs(value_j) < 1e3:
        return f"{significant(value_j)} J"
    watt_hours = value_j / 3600
    small = f"{significant(watt_hours)} Wh" if watt_hours < 1e3 else f"{significant(watt_hours / 1e3)} kWh"
    scaled = f"{significant(value_j / 1e3)} kJ" if value_j < 1e6 else f"{significant(value_j / 1e6)} MJ"
    return f"{scaled} ({small})"


_WRITERS: Final[dict[str, Callable[[float], str]]] = {
    "B/s": lambda value: f"{memory(value)}/s",
    "B": memory,
    "%": lambda value: f"{significant(value)} %",
    "MHz": lambda value: f"{value:,.0f} MHz",
    "rpm": lambda value: f"{value:,.0f} rpm",
    "°C": lambda value: f"{value:.0f} °C",
    "W": lambda value: f"{significant(value)} W",
    "J": energy,
    "s": seconds,
}
"""Unit → the function that formats a value."""


def title(metric: str) -> str:
    """Return the readable name of a metric, without its unit."""
    row = METRICS.get(metric) or HOST_METRICS.get(metric)
    if row is not None and row.title is not None:
        return row.title
    return metric.removesuffix(unit_end(metric)).replace("_", " ")


def quantity(metric: str, value: float | None) -> str:
    """Format a value of a metric with its unit; a dash if missing."""
    if value is None:
        return MISSING
    write = _WRITERS.get(unit(metric))
    if write is not None:
        return write(value)
    return f"{value:,.0f}" if float(value).is_integer() else significant(value)


def unit(metric: str) -> str:
    """Return the unit of a metric's values; 1 for counts.

    >>> unit("clock_sm_mhz"), unit("pcie_replay_count")
    ('MHz', '1')
    """
    end = unit_end(metric)
    return UNITS[end].symbol if end else "1"


def throttle_title(reason: str) -> str:
    """Return the readable name of a throttle reason."""
    return _THROTTLE_TITLES.get(reason, reason.replace("_", " "))

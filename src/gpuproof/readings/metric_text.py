"""How is a metric called and written for people? The unit at the end of its name says it all.

In: a metric's name from `gpuproof.records.metrics` or a host column, and a value in that unit.
Out: short text; a missing value is a dash, never 0.

>>> quantity("power_w", 312.4), quantity("mem_used_bytes", 2**30), quantity("clock_sm_mhz", 1980.0)
('312 W', '1.00 GiB', '1,980 MHz')
>>> title("util_gpu_percent"), title("temp_hotspot_c"), title("swap_used_bytes")
('GPU utilisation', 'hot-spot temperature', 'swap used')
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from gpuproof.records.metrics import METRICS
from gpuproof.units import MISSING, memory, seconds, significant

_HOST_TITLES: Final = {
    "cpu_percent": "CPU busy",
    "cpu_iowait_percent": "CPU waiting for disks",
    "cpu_max_core_percent": "busiest CPU",
    "load_1min": "load, 1 minute",
    "mem_available_bytes": "memory available",
    "disk_read_bytes": "read from disks",
    "disk_write_bytes": "written to disks",
    "net_rx_bytes": "received by network",
    "net_tx_bytes": "sent by network",
}

_THROTTLE_TITLES: Final = {
    "thermal": "thermal slowdown",
    "thermal_software": "software thermal slowdown",
    "thermal_hardware": "hardware thermal slowdown",
    "thermal_memory": "thermal slowdown of memory",
    "reliability": "reliability limit",
    "other": "other reason",
}
"""Those that are called otherwise than their key."""

STATE_REASONS: Final = frozenset({"idle", "application_clocks", "display_clocks"})
"""Throttle reasons that tell what the device was asked to do: no fault, and nothing held it back."""


def energy(value_j: float | None) -> str:
    """Write an energy given in joules: J, kJ, MJ, and watt-hours from 1 kJ on.

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


def _plain(unit: str, digits: int = 3) -> Callable[[float], str]:
    return lambda value: f"{significant(value, digits)} {unit}"


_WRITERS: Final[dict[str, tuple[str, Callable[[float], str]]]] = {
    "_bytes_per_s": ("B/s", lambda value: f"{memory(value)}/s"),
    "_bytes": ("B", memory),
    "_percent": ("%", _plain("%")),
    "_mhz": ("MHz", lambda value: f"{value:,.0f} MHz"),
    "_rpm": ("rpm", lambda value: f"{value:,.0f} rpm"),
    "_c": ("°C", lambda value: f"{value:.0f} °C"),
    "_w": ("W", _plain("W")),
    "_j": ("J", energy),
    "_s": ("s", seconds),
}
"""End of a name → its unit, and how a value is written."""


def title(metric: str) -> str:
    """Name a metric in words, without its unit."""
    known = METRICS[metric].title if metric in METRICS else _HOST_TITLES.get(metric)
    if known is not None:
        return known
    bare = next((metric.removesuffix(end) for end in _WRITERS if metric.endswith(end)), metric)
    return bare.removesuffix("_count").replace("_", " ")


def quantity(metric: str, value: float | None) -> str:
    """Write a value of a metric with its unit; a dash where there is none."""
    if value is None:
        return MISSING
    for end, (_, write) in _WRITERS.items():
        if metric.endswith(end):
            return write(value)
    return f"{value:,.0f}" if float(value).is_integer() else significant(value)


def unit(metric: str) -> str:
    """Return the unit of a metric's values; 1 is of what is counted.

    >>> unit("clock_sm_mhz"), unit("pcie_replay_count")
    ('MHz', '1')
    """
    return next((name for end, (name, _) in _WRITERS.items() if metric.endswith(end)), "1")


def throttle_title(reason: str) -> str:
    """Name a throttle reason in words."""
    return _THROTTLE_TITLES.get(reason, reason.replace("_", " "))

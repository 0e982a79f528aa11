"""Throttling and energy from the card's firmware table, with cycle counts converted to seconds.

In: the bytes of the driver's `gpu_metrics` file, or the same fields from AMD's library. Out: fields by name,
except those that the firmware left empty (all bits set). The layouts are the driver's published interface
(include/kgd_pp_interface.h), tables 1.1 to 1.6; any other table, or a table with a size that does not match
its layout, is rejected with a reason.
"""

from __future__ import annotations

from gpuproof.devices.base import DeviceError, NotSupportedError
from gpuproof.records.readings import ThrottleReason

ENERGY_UNIT_J = 2.0**-16
"""Unit of `energy_accumulator` since table 1.4; for earlier tables the unit is not documented."""
FIRMWARE_TICK_S = 1e-8
"""Unit of `firmware_timestamp`."""
CYCLES_WRAP = 2**32

RESIDENCIES: dict[str, ThrottleReason] = {
    "prochot_residency_acc": "hardware_slowdown",
    "ppt_residency_acc": "power_cap",
    "socket_thm_residency_acc": "thermal_hardware",
    "vr_thm_residency_acc": "voltage_regulator",
    "hbm_thm_residency_acc": "thermal_memory",
}
"""Firmware cycles during which each throttler was active, out of `accumulation_counter` cycles."""
CYCLE_COUNTS = ("accumulation_counter", "firmware_timestamp", *RESIDENCIES)
STATUS = "indep_throttle_status"

_Fields = dict[str, tuple[int, int]]
_LAYOUTS: dict[tuple[int, int], tuple[int, _Fields]] = {
    (1, 1): (96, {}),
    (1, 2): (104, {}),
    (1, 3): (120, {STATUS: (112, 8)}),
    (1, 4): (288, {"energy_accumulator": (24, 8)}),
    (1, 5): (360, {"energy_accumulator": (88, 8)}),
    (1, 6): (
        384,
        {
            "energy_accumulator": (88, 8),
            "accumulation_counter": (104, 4),
            **{name: (108 + 4 * place, 4) for place, name in enumerate(RESIDENCIES)},
            "firmware_timestamp": (328, 8),
        },
    ),
}
"""Format and content version of a table → its size, and the offset and length of each field, in bytes."""

HOTSPOT_BIT = 1 << 36
"""On some boards this bit is stuck at 1 at any temperature, so it only counts near the critical
temperature."""
_THROTTLER_BITS: dict[ThrottleReason, tuple[range, ...]] = {
    "power_cap": (range(8),),
    "current_limit": (range(16, 24),),
    "thermal_hardware": (range(32, 34), range(35, 38), range(42, 44)),
    "thermal_memory": (range(34, 35),),
    "voltage_regulator": (range(38, 42), range(44, 46)),
    "hardware_slowdown": (range(46, 48),),
}


def parse(data: bytes) -> dict[str, int]:
    """Return the fields of a table that are used here, with its content version as `content`.

    Raises:
        NotSupportedError: this version of gpuproof does not support tables of that version or size.
        DeviceError: the file is shorter than its header.
    """
    if len(data) < 4:
        raise DeviceError(f"gpu_metrics contains {len(data)} bytes")
    size, version = int.from_bytes(data[:2], "little"), (data[2], data[3])
    table_size, fields = _LAYOUTS.get(version, (0, {}))
    if size != table_size or len(data) < size:
        raise NotSupportedError(
            f"gpu_metrics table {version[0]}.{version[1]} with {size} bytes is not supported by this version"
        )
    values = {name: data[begin : begin + length] for name, (begin, length) in fields.items()}
    written = {name: raw for name, raw in values.items() if raw.strip(b"\xff")}
    return {name: int.from_bytes(raw, "little") for name, raw in written.items()} | {"content": version[1]}


def energy_j(table: dict[str, int]) -> float:
    """Return the energy used since the driver was loaded.

    Raises:
        NotSupportedError: the counter in this table is empty, or has no documented unit.
    """
    if table["content"] < 4:
        raise NotSupportedError(f"gpu_metrics 1.{table['content']} does not document its energy unit")
    if "energy_accumulator" not in table:
        raise NotSupportedError("the firmware does not fill the energy counter")
    return table["energy_accumulator"] * ENERGY_UNIT_J


def throttle_reasons(status: int) -> tuple[str, ...]:
    """List the reasons in `indep_throttle_status`; a bit outside the known groups is `other`.

    >>> throttle_reasons(1 << 0 | 1 << 34), throttle_reasons(1 << 57), throttle_reasons(0)
    (('power_cap', 'thermal_memory'), ('other',), ())
    """
    reasons: list[str] = []
    rest = status
    for reason, groups in _THROTTLER_BITS.items():
        mask = sum(1 << bit for group in groups for bit in group)
        if status & mask:
            reasons.append(reason)
        rest &= ~mask
    return (*reasons, "other") if rest else tuple(reasons)


class ResidencyClock:
    """Time for which each throttler was active, in seconds, since the first table.

    The firmware counts all cycles, and the cycles under each throttler, since it started. The difference
    between two tables is converted to seconds with the firmware's own clock and added up.
    """

    def __init__(self) -> None:
        self._previous: dict[str, int] | None = None
        self._seconds = dict.fromkeys(RESIDENCIES, 0.0)
        self._active: tuple[str, ...] | None = None

    def advance(self, table: dict[str, int]) -> dict[str, int]:
        """Accept the next table and return it; one without cycle counts is skipped."""
        if _counts(table):
            previous, self._previous = self._previous, table
            self._add(previous or table, table)
        return table

    def _add(self, previous: dict[str, int], table: dict[str, int]) -> None:
        cycles = (table["accumulation_counter"] - previous["accumulation_counter"]) % CYCLES_WRAP
        elapsed_s = (table["firmware_timestamp"] - previous["firmware_timestamp"]) * FIRMWARE_TICK_S
        if cycles == 0 or elapsed_s <= 0:  # the firmware has not updated the table since the last reading
            return
        steps = {field: (table[field] - previous[field]) % CYCLES_WRAP for field in RESIDENCIES}
        self._active = tuple(RESIDENCIES[field] for field, step in steps.items() if step)
        for field, step in steps.items():
            self._seconds[field] += step / cycles * elapsed_s

    def seconds(self, field: str, table: dict[str, int]) -> float:
        """Return the total time under one throttler so far, in seconds.

        Raises:
            NotSupportedError: this card's table does not contain cycle counts.
        """
        if not _counts(table):
            raise NotSupportedError("this gpu_metrics table does not count throttling (before 1.6)")
        return self._seconds[field]

    def reasons(self, table: dict[str, int]) -> tuple[str, ...]:
        """Return the throttlers that were active between the last two tables.

        Raises:
            NotSupportedError: this card's table does not contain cycle counts.
            DeviceError: only one table has been read so far.
        """
        if not _counts(table):
            raise NotSupportedError("this gpu_metrics table has no throttle status that applies to all cards")
        if self._active is None:
            raise DeviceError("needs two readings to compare, and this is the first")
        return self._active


def _counts(table: dict[str, int]) -> bool:
    return table.keys() >= set(CYCLE_COUNTS)

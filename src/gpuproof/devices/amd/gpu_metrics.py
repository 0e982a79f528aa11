"""The `gpu_metrics` table of the amdgpu driver: what only the card's firmware knows.

In come the bytes of the file, out come its fields by name, without those that the firmware left at all ones.
The layouts are the driver's published interface (include/kgd_pp_interface.h), tables 1.1 to 1.6; any other,
or one of another size than its layout, is refused with a reason.
"""

from __future__ import annotations

import ctypes
from typing import Any

from gpuproof.devices.base import DeviceError, NotSupportedError
from gpuproof.records.readings import ThrottleReason

_U16, _U32, _U64 = ctypes.c_uint16, ctypes.c_uint32, ctypes.c_uint64
_Fields = list[tuple[str, Any]]

ENERGY_UNIT_J = 2.0**-16
"""Unit of `energy_accumulator` from table 1.4 on; earlier tables do not document theirs."""
FIRMWARE_TICK_S = 1e-8
"""Unit of `firmware_timestamp`."""

_HEADER: _Fields = [("structure_size", _U16), ("format", ctypes.c_uint8), ("content", ctypes.c_uint8)]
_V1_1: _Fields = [
    *((f"temperature_{place}", _U16) for place in ("edge", "hotspot", "mem", "vrgfx", "vrsoc", "vrmem")),
    *((f"average_{unit}_activity", _U16) for unit in ("gfx", "umc", "mm")),
    ("average_socket_power", _U16),
    ("energy_accumulator", _U64),
    ("system_clock_counter", _U64),
    ("average_clocks", _U16 * 7),
    ("current_clocks", _U16 * 7),
    ("throttle_status", _U32),
    ("current_fan_speed", _U16),
    ("pcie_link_width", _U16),
    ("pcie_link_speed", _U16),
    ("padding", _U16),
    ("gfx_activity_acc", _U32),
    ("mem_activity_acc", _U32),
    ("temperature_hbm", _U16 * 4),
]
_V1_2: _Fields = [*_V1_1, ("firmware_timestamp", _U64)]
_V1_3: _Fields = [*_V1_2, ("voltages", _U16 * 3), ("padding1", _U16), ("indep_throttle_status", _U64)]


def _instinct(*, jpeg: bool, residencies: bool) -> _Fields:
    """Lay out tables 1.4 (neither), 1.5 (jpeg, and PCIe NAK counts with it) and 1.6 (both)."""
    throttlers = ("accumulation_counter", *RESIDENCIES)
    counts: _Fields = [("pcie_nak_sent_count_acc", _U32), ("pcie_nak_rcvd_count_acc", _U32)]
    return [
        *((f"temperature_{place}", _U16) for place in ("hotspot", "mem", "vrsoc")),
        ("curr_socket_power", _U16),
        ("average_gfx_activity", _U16),
        ("average_umc_activity", _U16),
        ("vcn_activity", _U16 * 4),
        *([("jpeg_activity", _U16 * 32)] if jpeg else []),
        ("energy_accumulator", _U64),
        ("system_clock_counter", _U64),
        *(((name, _U32) for name in throttlers) if residencies else ()),
        ("throttle_status", _U32),
        ("gfxclk_lock_status", _U32),
        *((f"{link}_link_{fact}", _U16) for link in ("pcie", "xgmi") for fact in ("width", "speed")),
        ("gfx_activity_acc", _U32),
        ("mem_activity_acc", _U32),
        ("pcie_bandwidth_acc", _U64),
        ("pcie_bandwidth_inst", _U64),
        ("pcie_l0_to_recov_count_acc", _U64),
        ("pcie_replay_count_acc", _U64),
        ("pcie_replay_rover_count_acc", _U64),
        *(counts if jpeg else []),
        ("xgmi_read_data_acc", _U64 * 8),
        ("xgmi_write_data_acc", _U64 * 8),
        ("firmware_timestamp", _U64),
        ("current_gfxclk", _U16 * 8),
        *((f"current_{clock}", _U16 * 4) for clock in ("socclk", "vclk0", "dclk0")),
        ("current_uclk", _U16),
        ("padding", _U16),
    ]


RESIDENCIES: dict[str, ThrottleReason] = {
    "prochot_residency_acc": "hardware_slowdown",
    "ppt_residency_acc": "power_cap",
    "socket_thm_residency_acc": "thermal_hardware",
    "vr_thm_residency_acc": "voltage_regulator",
    "hbm_thm_residency_acc": "thermal_memory",
}
"""Firmware cycles spent under each throttler, of `accumulation_counter` cycles."""

HOTSPOT_BIT = 36
"""Stuck at 1 on some boards whatever the temperature, so it counts only near the critical one."""
_THROTTLER_BITS: dict[ThrottleReason, tuple[range, ...]] = {
    "power_cap": (range(8),),
    "current_limit": (range(16, 24),),
    "thermal_hardware": (range(32, 34), range(35, 38), range(42, 44)),
    "thermal_memory": (range(34, 35),),
    "voltage_regulator": (range(38, 42), range(44, 46)),
    "hardware_slowdown": (range(46, 48),),
}


def throttle_reasons(status: int) -> tuple[str, ...]:
    """Name the reasons in `indep_throttle_status`; a bit outside the known groups is `other`.

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


def _layout(name: str, fields: _Fields) -> type[ctypes.Structure]:
    return type(name, (ctypes.Structure,), {"_fields_": [*_HEADER, *fields]})


LAYOUTS: dict[tuple[int, int], type[ctypes.Structure]] = {
    (1, 1): _layout("V1_1", _V1_1),
    (1, 2): _layout("V1_2", _V1_2),
    (1, 3): _layout("V1_3", _V1_3),
    (1, 4): _layout("V1_4", _instinct(jpeg=False, residencies=False)),
    (1, 5): _layout("V1_5", _instinct(jpeg=True, residencies=False)),
    (1, 6): _layout("V1_6", _instinct(jpeg=True, residencies=True)),
}


def parse(data: bytes) -> dict[str, int]:
    """Return the scalar fields of a table, with `format` and `content` naming its version.

    Raises:
        NotSupportedError: a table of a version, or size, that this gpuproof does not know.
        DeviceError: the file is shorter than its header.
    """
    if len(data) < ctypes.sizeof(_U32):
        raise DeviceError(f"gpu_metrics holds {len(data)} bytes")
    version = (data[2], data[3])
    layout = LAYOUTS.get(version)
    size = int.from_bytes(data[:2], "little")
    if layout is None or size != ctypes.sizeof(layout) or len(data) < size:
        raise NotSupportedError(
            f"gpu_metrics table {version[0]}.{version[1]} of {size} bytes is not known to this version"
        )
    table = layout.from_buffer_copy(data)
    return {
        name: value
        for name, kind in _fields_of(layout)
        if isinstance(value := getattr(table, name), int) and value != _all_ones(kind)
    }


def _fields_of(layout: type[ctypes.Structure]) -> _Fields:
    return [(field[0], field[1]) for field in layout._fields_]


def _all_ones(kind: Any) -> int:
    return int(kind(-1).value)

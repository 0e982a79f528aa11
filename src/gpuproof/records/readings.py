"""The records that a sampler writes: what the devices and the host did, second by second.

recording → (sample | counters | devices_appeared | event | mark)… → recording_end. One file a host, JSON
Lines.
Readings are kept under the names of `METRICS`, each ending in its unit. A reading that is not there is
absent from `values`; why stands in the device's latest `unavailable` map, so that a million
samples do not repeat it and nothing missing ever becomes 0.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, NewType

from gpuproof.records import sample as sample_lines
from gpuproof.records.journal import record_kind

FrameworkIndex = NewType("FrameworkIndex", int)
"""`cuda:N` as this process sees it, after CUDA_VISIBLE_DEVICES or ROCR_VISIBLE_DEVICES."""
VendorIndex = NewType("VendorIndex", int)
"""The position in the vendor library's own list, or of the DRM card."""
PhysicalIndex = NewType("PhysicalIndex", int)
"""The position among all devices of the host ordered by PCI address: ours, the key of `Sample.devices`."""

Vendor = Literal["nvidia", "amd", "intel", "fake", "replay"]
Lane = Literal["fast", "slow"]

ThrottleReason = Literal[
    "idle",
    "application_clocks",
    "power_cap",
    "power_brake",
    "thermal",
    "thermal_software",
    "thermal_hardware",
    "thermal_memory",
    "hardware_slowdown",
    "current_limit",
    "voltage_regulator",
    "sync_boost",
    "display_clocks",
    "board_limit",
    "reliability",
    "other",
]
"""One vocabulary over the vendors. `idle`, `application_clocks` and `display_clocks` are no faults; `thermal`
is heat of which it is not told whether software or hardware answers it."""

NVIDIA_REASON_BITS: Mapping[int, ThrottleReason] = {
    0x1: "idle",
    0x2: "application_clocks",
    0x4: "power_cap",
    0x8: "hardware_slowdown",
    0x10: "sync_boost",
    0x20: "thermal_software",
    0x40: "thermal_hardware",
    0x80: "power_brake",
    0x100: "display_clocks",
    0x200: "board_limit",
    0x400: "reliability",
}
"""`nvmlClocksEventReasons` of nvml.h, which NVML and nvidia-smi both give."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceIdentity:
    """Who a device is, the same over reboots and whatever order a library lists it in."""

    physical_index: int
    vendor: Vendor
    vendor_index: int
    framework_index: int | None
    """None where the process's visibility variables hide it, or no framework numbers it."""
    uuid: str | None
    pci_bus_id: str | None
    name: str
    static: dict[str, Any] = field(default_factory=dict)
    """Read once: mem_total_bytes, power limits, clock maxima, driver, VBIOS, MIG, ECC mode, PCIe maxima …"""
    unavailable: dict[str, str] = field(default_factory=dict)
    """Static facts and metrics that this device or driver does not give: name → reason."""

    def number(self, fact: str) -> float | None:
        """Return a static fact that is a number; None where it is not known."""
        value = self.static.get(fact)
        return float(value) if isinstance(value, (int, float)) else None


UUID_PREFIXES = ("MIG-", "GPU-")
"""NVML writes `GPU-…` for a GPU and `MIG-…` for an instance of one, which was `MIG-GPU-…/instance/compute`
with the number of its GPU before driver 470. torch writes the number alone, whatever it is of, and we put
`GPU-` before it."""


def bare_uuid(uuid: str) -> str:
    """Return what all spellings of an identity have in common.

    >>> bare_uuid("GPU-0a") == bare_uuid("MIG-0a") == bare_uuid("0a")
    True
    >>> bare_uuid("MIG-GPU-0a/1/0")
    '0a/1/0'
    """
    for prefix in UUID_PREFIXES:
        uuid = uuid.removeprefix(prefix)
    return uuid


def spellings(uuid: str) -> tuple[str, ...]:
    """Return the forms in which a driver may know it, as it is written first.

    >>> spellings("GPU-0a")
    ('GPU-0a', 'MIG-0a')
    """
    bare = bare_uuid(uuid)
    prefixed = (f"MIG-GPU-{bare}",) if "/" in bare else (f"GPU-{bare}", f"MIG-{bare}")
    return tuple(dict.fromkeys((uuid, *prefixed) if uuid != bare else prefixed))


def short_address(address: str) -> str:
    """Return domain, bus and device of a PCI address, however it is written (NVML, sysfs, the kernel).

    >>> short_address("00000000:1B:00.0"), short_address("10000:01:00")
    ('0000:1b:00', '10000:01:00')
    """
    return address.lower().partition(".")[0].lstrip("0").rjust(len("0000:00:00"), "0")


def named_among(uuids: Collection[str], listed: Sequence[str | None]) -> set[int]:
    """Return the places of the listed devices that are asked for.

    An instance that is not listed, of the older form, is answered by its GPU, which is.
    """
    places = {bare_uuid(uuid): place for place, uuid in enumerate(listed) if uuid is not None}
    indices = (places.get(bare, places.get(bare.partition("/")[0])) for bare in map(bare_uuid, uuids))
    return {place for place in indices if place is not None}


def with_sound_counters(line: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the line of what a host has.

    Raises:
        AttributeError: what should be a device is none.
        ValueError: a counter of a driver's is no number.
    """
    listed = (line["facts"].get("accelerators") or {}).get("devices")
    for device in [*(line["facts"].get("devices") or ()), *(listed or ())]:
        for name, value in (device.get("state") or {}).items():
            is_counter = name.endswith("_count") or name.startswith("remapped_rows_")
            if is_counter and not isinstance(value, int | float | None):
                raise ValueError(f"{name} is {value!r}, and no number")
    return line


@record_kind("recording", version=sample_lines.VERSION)
@dataclass(frozen=True, slots=True, kw_only=True)
class Recording:
    """The first line: what is being read, how often, by whom."""

    host: str
    pid: int
    boot_id: str | None
    gpuproof_version: str
    unix_s: float
    monotonic_s: float
    fast_interval_s: float
    slow_interval_s: float
    devices: tuple[DeviceIdentity, ...]
    host_facts: dict[str, Any]
    command: tuple[str, ...] | None = None
    """The command being watched; kept only when the user asked for command lines."""
    dither_seed: int | None = None
    """Of the moments at which fast readings were due, one in each interval; None: at its begin."""

    @property
    def is_dithered(self) -> bool:
        """Whether readings came at random moments of their intervals."""
        return self.dither_seed is not None


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceReading:
    """One device at one moment."""

    values: dict[str, float]
    throttle_reasons: tuple[str, ...] | None = None
    """None: not given by this device. Empty: given, and nothing held it back."""


@record_kind(
    "sample", version=sample_lines.VERSION, pack=sample_lines.pack_sample, unpack=sample_lines.unpack_sample
)
@dataclass(frozen=True, slots=True, kw_only=True)
class Sample:
    """All devices and the host at one tick. A slow-lane sample carries the costly metrics as well."""

    monotonic_s: float
    unix_s: float
    lane: Lane
    devices: dict[str, DeviceReading]
    """Physical index (as text) → reading."""
    host: dict[str, float]


@record_kind("devices_appeared")
@dataclass(frozen=True, slots=True, kw_only=True)
class DevicesAppeared:
    """Devices whose driver answered after the recording began: new ones, or who those of the header are."""

    monotonic_s: float
    devices: tuple[DeviceIdentity, ...]


DRIVER_EVENTS = "driver_events"
"""What stands beside metrics in the map of what a device does not give."""
KERNEL_LOG = "kernel"
"""The event that is a line of the kernel's log."""
UNREAD = "gpuproof: not read: "
"""Before what was not read of the kernel's log and why, among its lines."""


@record_kind("unavailable")
@dataclass(frozen=True, slots=True, kw_only=True)
class UnavailableMetrics:
    """From here on a device does not give these metrics (lost GPU, hanging driver): name → reason."""

    monotonic_s: float
    physical_index: int
    reasons: dict[str, str]


@record_kind("counters")
@dataclass(frozen=True, slots=True, kw_only=True)
class Counters:
    """Running totals at one end of the recording, or of a phase: their differences are exact at any rate."""

    monotonic_s: float
    at: str
    """`start`, `end`, or the name of the mark."""
    devices: dict[str, dict[str, float]]


@record_kind("device_event")
@dataclass(frozen=True, slots=True, kw_only=True)
class DriverEvent:
    """Something a driver announced: an XID, a lost device, a reset."""

    monotonic_s: float
    physical_index: int | None
    """None of what names no device that is recorded: of a switch, or of the host."""
    event: str
    code: int | None
    message: str
    """Of the kernel's log the line as it stands there."""

    @property
    def title(self) -> str:
        """The kind of event with its code, as in `xid 63`."""
        return self.event if self.code is None else f"{self.event} {self.code}"


@record_kind("mark")
@dataclass(frozen=True, slots=True, kw_only=True)
class Mark:
    """What the watched work said of itself: epoch, batch, phase, or anything else."""

    monotonic_s: float
    metadata: dict[str, Any]


@record_kind("device_processes")
@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceProcesses:
    """Who uses the devices: process id and bytes. Names and command lines only when the user asked."""

    monotonic_s: float
    devices: dict[str, dict[str, Any]]
    """Physical index → {"processes": [{pid, mem_used_bytes or null, kind}, …]} or {"unavailable": reason}."""


@record_kind("recording_end")
@dataclass(frozen=True, slots=True, kw_only=True)
class RecordingEnd:
    """The last line of a recording that ended cleanly, with what the sampler says of itself."""

    monotonic_s: float
    unix_s: float
    samples: int
    missed_ticks: int
    max_jitter_s: float
    own_cpu_s: float
    reason: str
    exit_code: int | None = None
    """Of the watched command, negative for a signal; None without one."""
    bad_marks: int = 0
    """Lines on the marks pipe that were no JSON objects."""

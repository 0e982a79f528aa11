"""Records written by a sampler: activity of the devices and the host, second by second.

recording → (sample | counters | devices_appeared | event | mark)… → recording_end. One file per host, JSON
Lines. Readings are stored under the names in `METRICS`, each ending in its unit. A missing reading is absent
from `values`; its reason is in the device's latest `unavailable` map, so that a million samples need not
repeat the reason and a missing reading never becomes 0.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, NewType

from gpuproof.records import sample as sample_lines
from gpuproof.records.journal import record_kind

FrameworkIndex = NewType("FrameworkIndex", int)
"""Index of `cuda:N` in this process, after CUDA_VISIBLE_DEVICES or ROCR_VISIBLE_DEVICES is applied."""
VendorIndex = NewType("VendorIndex", int)
"""The position in the vendor library's own list, or among the DRM cards."""
PhysicalIndex = NewType("PhysicalIndex", int)
"""The position among all devices of the host, in order of PCI address: our own index, used as the key of
`Sample.devices`."""

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
"""One vocabulary for all vendors. `idle`, `application_clocks` and `display_clocks` are not faults; `thermal`
means heat, without specifying whether software or hardware responds to it."""

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
"""`nvmlClocksEventReasons` of nvml.h, used by both NVML and nvidia-smi."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceIdentity:
    """A device's identity, which does not change on reboot or when libraries reorder devices."""

    physical_index: int
    vendor: Vendor
    vendor_index: int
    framework_index: int | None
    """Index in the framework; None if the process's visibility variables hide the device, or if no framework
    numbers it."""
    uuid: str | None
    pci_bus_id: str | None
    name: str
    static: dict[str, Any] = field(default_factory=dict)
    """Static facts, read once: mem_total_bytes, power limits, clock maxima, driver, VBIOS, MIG, ECC mode,
    PCIe maxima …"""
    unavailable: dict[str, str] = field(default_factory=dict)
    """Static facts and metrics that this device or its driver does not report: name → reason."""

    def number(self, fact: str) -> float | None:
        """Return a numeric static fact; None if unknown."""
        value = self.static.get(fact)
        return float(value) if isinstance(value, (int, float)) else None


TEXT_FACTS = ("driver", "torch", "torch_cuda", "torch_hip", "nccl")
UUID_PREFIXES = ("MIG-", "GPU-")
"""NVML uses `GPU-…` for a GPU and `MIG-…` for a MIG instance. Before driver 470, an instance was
`MIG-GPU-…/instance/compute`, with the UUID of its GPU. torch always uses the bare UUID, to which we prepend
`GPU-`."""


def bare_uuid(uuid: str) -> str:
    """Return the part that all spellings of an identity have in common.

    >>> bare_uuid("GPU-0a") == bare_uuid("MIG-0a") == bare_uuid("0a")
    True
    >>> bare_uuid("MIG-GPU-0a/1/0")
    '0a/1/0'
    """
    for prefix in UUID_PREFIXES:
        uuid = uuid.removeprefix(prefix)
    return uuid


def spellings(uuid: str) -> tuple[str, ...]:
    """Return all forms of a UUID that a driver may use for a device, starting with the given one.

    >>> spellings("GPU-0a")
    ('GPU-0a', 'MIG-0a')
    """
    bare = bare_uuid(uuid)
    prefixed = (f"MIG-GPU-{bare}",) if "/" in bare else (f"GPU-{bare}", f"MIG-{bare}")
    return tuple(dict.fromkeys((uuid, *prefixed) if uuid != bare else prefixed))


def short_address(address: str) -> str:
    """Return the domain, bus and device of a PCI address in any notation (NVML, sysfs, the kernel).

    >>> short_address("00000000:1B:00.0"), short_address("10000:01:00")
    ('0000:1b:00', '10000:01:00')
    """
    return address.lower().partition(".")[0].lstrip("0").rjust(len("0000:00:00"), "0")


def named_among(uuids: Collection[str], listed: Sequence[str | None]) -> set[int]:
    """Return the positions of the requested devices in the list.

    For an unlisted MIG instance in the older format, the position of its GPU is used, if that is listed.
    """
    places = {bare_uuid(uuid): place for place, uuid in enumerate(listed) if uuid is not None}
    indices = (places.get(bare, places.get(bare.partition("/")[0])) for bare in map(bare_uuid, uuids))
    return {place for place in indices if place is not None}


def with_sound_facts(line: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return a line that describes a host's hardware and software.

    Raises:
        AttributeError, TypeError: an item is not a device or a driver.
        ValueError: a driver's counter is not a number, or a version is not text.
    """
    facts, found = line["facts"], line["facts"].get("accelerators") or {}
    versions = {name: facts.get(name) for name in TEXT_FACTS}
    for vendor, driver in (found.get("drivers") or {}).items():
        versions[vendor] = driver.get("version")
    if odd := [
        f"{name} is {value!r}" for name, value in versions.items() if not isinstance(value, str | None)
    ]:
        raise ValueError(f"{odd[0]}, which is not text")
    for device in [*(facts.get("devices") or ()), *(found.get("devices") or ())]:
        for name, value in {**(device.get("static") or {}), **(device.get("state") or {})}.items():
            is_counter = name.endswith("_count") or name.startswith("remapped_rows_")
            if is_counter and not isinstance(value, int | float | None):
                raise ValueError(f"{name} is {value!r}, which is not a number")
    return line


@record_kind("recording", version=sample_lines.VERSION)
@dataclass(frozen=True, slots=True, kw_only=True)
class Recording:
    """The first line: what is recorded, how often, and by which program."""

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
    """The watched command; stored only if the user asked for command lines."""
    dither_seed: int | None = None
    """Seed of the random times, one per interval, at which fast readings were due; None means at the
    interval's start."""

    @property
    def is_dithered(self) -> bool:
        """Whether readings were taken at random times within their intervals."""
        return self.dither_seed is not None


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceReading:
    """One device's readings at one point in time."""

    values: dict[str, float]
    throttle_reasons: tuple[str, ...] | None = None
    """Throttle reasons; None if the device does not report them, empty if nothing throttled it."""


@record_kind(
    "sample", version=sample_lines.VERSION, pack=sample_lines.pack_sample, unpack=sample_lines.unpack_sample
)
@dataclass(frozen=True, slots=True, kw_only=True)
class Sample:
    """A sample of all devices and the host at one tick; slow samples add metrics, and lines are by column."""

    monotonic_s: float
    unix_s: float
    lane: Lane
    devices: dict[str, DeviceReading]
    """Physical index (as text) → reading."""
    host: dict[str, float]


@record_kind("devices_appeared")
@dataclass(frozen=True, slots=True, kw_only=True)
class DevicesAppeared:
    """Devices with a late driver response: new ones, or the identities of devices in the header."""

    monotonic_s: float
    devices: tuple[DeviceIdentity, ...]


DRIVER_EVENTS = "driver_events"
"""Keys that are not metrics, in the map of values that a device does not report."""
KERNEL_LOG = "kernel"
"""The event name for a line of the kernel log."""
UNREAD = "gpuproof: not read: "
"""Prefix of lines that report unread parts of the kernel log, with the reason."""
UNSUPPORTED = "not supported"
"""Prefix of reasons that mean a device or its driver never provides a value. Every other reason means that
the value could not be read this time."""


@record_kind("unavailable")
@dataclass(frozen=True, slots=True, kw_only=True)
class UnavailableMetrics:
    """Metrics that a device does not report from now on (lost GPU, hanging driver): name → reason."""

    monotonic_s: float
    physical_index: int
    reasons: dict[str, str]


@record_kind("counters")
@dataclass(frozen=True, slots=True, kw_only=True)
class Counters:
    """Running totals at an end of a recording: differences are exact at any polling rate."""

    monotonic_s: float
    at: str
    """When the totals were read: `start`, `end`, or `appeared` if a driver answered late."""
    devices: dict[str, dict[str, float]]


@record_kind("device_event")
@dataclass(frozen=True, slots=True, kw_only=True)
class DriverEvent:
    """Something that a driver reported: an XID, a lost device, a reset."""

    monotonic_s: float
    physical_index: int | None
    """None if the event does not concern a recorded device, but a switch or the host."""
    event: str
    code: int | None
    message: str
    """The message; for the kernel log, the verbatim line."""

    @property
    def title(self) -> str:
        """The kind of event including its code, e.g. `xid 63`."""
        return self.event if self.code is None else f"{self.event} {self.code}"


@record_kind("mark")
@dataclass(frozen=True, slots=True, kw_only=True)
class Mark:
    """Data reported by the watched workload: epoch, batch, phase, or anything else."""

    monotonic_s: float
    metadata: dict[str, Any]


@record_kind("device_processes")
@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceProcesses:
    """Process ids and bytes of the processes on devices; names and commands only on request."""

    monotonic_s: float
    devices: dict[str, dict[str, Any]]
    """Physical index → {"processes": [{pid, mem_used_bytes or null, kind}, …]} or {"unavailable": reason}."""


@record_kind("recording_end")
@dataclass(frozen=True, slots=True, kw_only=True)
class RecordingEnd:
    """The last line of a recording that its sampler ended itself, with the sampler's own statistics."""

    monotonic_s: float
    unix_s: float
    samples: int
    missed_ticks: int
    max_jitter_s: float
    own_cpu_s: float
    reason: str
    exit_code: int | None = None
    """Exit status of the watched command, negative for a signal; None if there is no command."""
    bad_marks: int = 0
    """Lines on the marks pipe that were not JSON objects."""

"""Declaration of simulated devices, used by the simulator and to generate their readings.

`GPUPROOF_SIMGPU` contains the declaration as JSON; every key is optional, and `{}` means the defaults. Faults
are keyed by device index:

    {"devices": 2, "flops_per_s": 2e10, "faults": {"1": {"slower_percent": 30, "throttled_after_s": 5}}}
"""

from __future__ import annotations

import json
import os
import struct
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from hashlib import sha256
from pathlib import Path
from random import Random
from tempfile import gettempdir
from typing import Any, Literal, TypeVar

from gpuproof.base.errors import UsageError

VARIABLE = "GPUPROOF_SIMGPU"
NAME = "Simulated GPU"

Declared = TypeVar("Declared")


@dataclass(frozen=True, slots=True, kw_only=True)
class SimulatedFault:
    """The faults of one device; a field is None if the device lacks that fault."""

    slower_percent: float = 0.0
    """Slowdown of each kernel in percent."""
    throttled_after_s: float | None = None
    """Time in seconds at which throttling starts, counted from the first kernel (for readings: from opening
    the device)."""
    throttled_percent: float = 50.0
    """Slowdown in percent while throttled."""
    wrong_product: int | None = None
    """Index, counted from 1, of the one matmul or convolution with a wrong element."""
    wrong_products_from: int | None = None
    """Index, counted from 1, of the first matmul or convolution with a wrong element; all later ones also
    have one."""
    wrong_copy: int | None = None
    """Index, counted from 1, of the copy over a device's own link in which one bit is flipped."""
    stuck_byte: int | None = None
    """Offset in bytes: in each allocation larger than this, one bit of the byte at the offset is always 1."""
    slower_link_percent: float = 0.0
    """Slowdown of copies over the device's links, in percent."""
    hang_in_kernel: int | None = None
    """Number of the kernel that never finishes, counted from 1."""
    xid_after_s: float | None = None
    """Time in seconds at which the device's driver reports an error; the workload is not affected."""
    memory_bytes: int | None = None
    """Memory size of this device in bytes, overriding the declared one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SimulatedPowerCap:
    """A power controller that lowers the clock gradually over a period, then restores it immediately."""

    period_s: float = 1.0
    depth_percent: float = 10.0
    """Depth of the clock reduction in percent, at most 90."""
    settles_after_s: float = 0.1
    """Time in seconds at which the cap takes effect, counted from the first kernel (for readings: from
    opening the device); until then, the clock is not reduced."""

    def clock_share(self, monotonic_s: float) -> float:
        """Return the clock as a fraction of the full clock at a given time of the host's monotonic clock."""
        return 1 - self.depth_percent / 100 * (monotonic_s % self.period_s) / self.period_s


@dataclass(frozen=True, slots=True, kw_only=True)
class SimulatedDevices:
    """The simulated devices of a host: identical except for their faults."""

    devices: int = 8
    flops_per_s: float = 2e10
    """Compute rate for fp32 and wider types."""
    flops_16bit_per_s: float = 8e10
    memory_bytes_per_s: float = 1e10
    host_link_bytes_per_s: float = 2e9
    """Bandwidth of the host link per direction."""
    peer_link_bytes_per_s: float = 2e9
    launch_latency_s: float = 100e-6
    """Overhead per kernel, in addition to its work; a graph incurs it only once for all its kernels."""
    link_latency_s: float = 20e-6
    """Overhead per collective, in addition to transferring its bytes."""
    queue_depth: int = 1024
    """Number of kernel launches that the host may queue ahead."""
    memory_bytes: int = 4 * 2**30
    name: str = NAME
    """Name reported by the driver; set a real board's name to get the expectations for that board."""
    first_card: int = 0
    """Number of the first device, part of its UUID: a different number means a different card."""
    card_spread_percent: float = 0.0
    """Standard deviation of compute and link speed between cards; a given card always has the same speed."""
    power_limit_w: float = 300.0
    """Power limit reported by the driver; the board's default is 300 W."""
    zero_products: bool = False
    """Whether matmuls and convolutions return zeros and use no host time; their device times remain as
    declared."""
    power_cap: SimulatedPowerCap | None = None
    """The power cap; None if it is never reached."""
    faults: Mapping[int, SimulatedFault] = field(default_factory=dict)

    @property
    def rates(self) -> dict[str, float]:
        """Declared rates of each device, in FLOP/s and bytes/s, by key of the declaration."""
        return {part.name: getattr(self, part.name) for part in fields(self) if part.name.endswith("_per_s")}

    def fault(self, index: int) -> SimulatedFault:
        """Return the faults of a device."""
        return self.faults.get(index, SimulatedFault())

    def slowdown(self, index: int, part: Literal["work", "links"]) -> float:
        """Return a device's time as a multiple of the declared time, due to its fault and card variation."""
        fault = self.fault(index)
        slower = fault.slower_percent if part == "work" else fault.slower_link_percent
        card = Random(f"{part} of {uuid_of(self.first_card + index)}").gauss(0, 1)  # noqa: S311  # a seed, no secret
        return (1 + slower / 100) * (1 - self.card_spread_percent / 100 * max(-3.0, min(card, 3.0)))

    def memory_of(self, index: int) -> int:
        """Return a device's memory in bytes."""
        limit = self.fault(index).memory_bytes
        return self.memory_bytes if limit is None else limit


def uuid_of(card: int) -> str:
    """Return the permanent identity of a simulated card."""
    return f"SIM-{card:04d}"


def readings_file(index: int) -> Path:
    """Return the file in which a device with this user, folder and declaration records its busy time.

    The file contains three numbers, in nanoseconds on the host's monotonic clock: the total busy time
    including queued work, and the start and end of the last busy interval.
    """
    host = f"{Path.cwd()}\n{os.environ.get(VARIABLE, '')}"
    name = f"{sha256(host.encode()).hexdigest()[:16]}-{index}"
    return Path(gettempdir()) / f"gpuproof-simgpu-{os.getuid()}" / name


def busy_s(index: int, monotonic_s: float) -> float | None:
    """Return a device's busy time so far; None if nothing has ever run on it."""
    try:
        total, begin, end = struct.unpack("=3q", readings_file(index).read_bytes())
    except (OSError, struct.error):
        return None
    return float(total - max(0, end - max(begin, monotonic_s * 1e9))) / 1e9


def read_declaration(text: str) -> SimulatedDevices:
    """Read the declaration; an empty string means the defaults.

    Raises:
        UsageError: it is not a JSON object, a key is unknown, or a value is invalid.
    """
    try:
        stated = json.loads(text or "{}")
    except ValueError as error:
        raise _unreadable(f"it is not valid JSON: {error}") from error
    faults = {
        _index(index): _filled(SimulatedFault, fault, f"faults.{index}")
        for index, fault in _mapping(stated, "the declaration").pop("faults", {}).items()
    }
    if "power_cap" in stated:
        stated["power_cap"] = _filled(SimulatedPowerCap, stated["power_cap"], "power_cap")
        if stated["power_cap"].depth_percent > 90:
            raise _unreadable("power_cap.depth_percent: the clock cannot fall by more than 90 %")
    declared = _filled(SimulatedDevices, {**stated, "faults": faults}, "")
    if missing := [index for index in faults if index >= declared.devices]:
        raise _unreadable(f"faults.{missing[0]} is for a nonexistent device: there are {declared.devices}")
    if declared.card_spread_percent > 20:
        raise _unreadable("card_spread_percent: cards cannot differ by more than 20 %")
    return declared


def _filled(kind: type[Declared], stated: Any, place: str) -> Declared:
    defaults = {part.name: part.default for part in fields(kind)}  # type: ignore[arg-type]  # both are dataclasses
    for key, value in _mapping(stated, place).items():
        where = f"{place}.{key}".lstrip(".")
        if key not in defaults:
            raise _unreadable(f"{where}: unknown key; known keys are {', '.join(defaults)}")
        if key not in ("faults", "power_cap") and not _can_be(value, defaults[key]):
            raise _unreadable(f"{where}: {value!r} is not a valid value")
    return kind(**stated)


def _can_be(value: Any, default: object) -> bool:
    if isinstance(default, bool) or isinstance(value, bool):
        return isinstance(value, bool) and isinstance(default, bool)
    if isinstance(default, str):
        return isinstance(value, str) and value.isprintable() and bool(value)
    if isinstance(default, int) and not isinstance(value, int):
        return False
    return isinstance(value, int | float) and (value > 0 or (value == 0 and not default))


def _mapping(stated: Any, place: str) -> dict[str, Any]:
    if not isinstance(stated, dict):
        raise _unreadable(f"{place} is not a JSON object")
    return stated


def _index(text: str) -> int:
    if not text.isdigit():
        raise _unreadable(f"faults.{text}: identify the device by its index")
    return int(text)


def _unreadable(cause: str) -> UsageError:
    step = "See docs/developers/simulator.md for the keys that can be declared"
    return UsageError(cause, place=VARIABLE, next_step=step)

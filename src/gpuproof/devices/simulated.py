"""What is declared of simulated devices: one text, for what simulates them and for their readings.

`GPUPROOF_SIMGPU` holds it as JSON; each key may be left out, `{}` is the defaults. Faults are named by the
index of the device:

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
    """What is wrong with one device; None where nothing is."""

    slower_percent: float = 0.0
    """How much longer each kernel's work takes."""
    throttled_after_s: float | None = None
    """From then on, counted from the first kernel (of the readings: from opening), it is throttled."""
    throttled_percent: float = 50.0
    """How much longer work takes while it is throttled."""
    wrong_product: int | None = None
    """Which matrix product or convolution comes out wrong in one element, counted from 1."""
    wrong_products_from: int | None = None
    """From which matrix product or convolution on each is wrong in one element, counted from 1."""
    wrong_copy: int | None = None
    """Which copy over a link of its own comes out wrong in one bit, counted from 1."""
    stuck_byte: int | None = None
    """Of each allocation that is longer, one bit of the byte at this offset is always 1."""
    slower_link_percent: float = 0.0
    """How much longer copies over its links take."""
    hang_in_kernel: int | None = None
    """Which kernel never ends, counted from 1."""
    xid_after_s: float | None = None
    """When its driver announces an error; no effect on the work."""
    memory_bytes: int | None = None
    """How much memory it has, in place of the declared."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SimulatedPowerCap:
    """A controller that turns the clock down over a period, and up again at once."""

    period_s: float = 1.0
    depth_percent: float = 10.0
    """By how much the clock falls, at most 90."""
    settles_after_s: float = 0.1
    """From then on, counted from the first kernel (of the readings: from opening); full clock before."""

    def clock_share(self, monotonic_s: float) -> float:
        """Return the clock over the full one at a moment of the host's clock, as the device has it."""
        return 1 - self.depth_percent / 100 * (monotonic_s % self.period_s) / self.period_s


@dataclass(frozen=True, slots=True, kw_only=True)
class SimulatedDevices:
    """The devices of a host: all alike but for their faults."""

    devices: int = 8
    flops_per_s: float = 2e10
    """Of fp32, and wider."""
    flops_16bit_per_s: float = 8e10
    memory_bytes_per_s: float = 1e10
    host_link_bytes_per_s: float = 2e9
    """Each way."""
    peer_link_bytes_per_s: float = 2e9
    launch_latency_s: float = 100e-6
    """What each kernel takes besides its work; of a graph, all its kernels together."""
    link_latency_s: float = 20e-6
    """What each collective takes besides its bytes."""
    queue_depth: int = 1024
    """How many launches the host may be ahead."""
    memory_bytes: int = 4 * 2**30
    name: str = NAME
    """As the driver gives it: that of a real board shows what is expected of one."""
    first_card: int = 0
    """The number of the first in its UUID: another one is another card."""
    card_spread_percent: float = 0.0
    """Standard deviation by which cards differ in the work and in the links; a card is always the same."""
    power_limit_w: float = 300.0
    """As the driver gives it; the board is shipped with 300 W."""
    zero_products: bool = False
    """Matrix products and convolutions give zeros and cost the host nothing; times are as declared."""
    power_cap: SimulatedPowerCap | None = None
    """None: it is never met."""
    faults: Mapping[int, SimulatedFault] = field(default_factory=dict)

    @property
    def rates(self) -> dict[str, float]:
        """What each device does by its declaration, in FLOP/s and bytes/s, by the key that declares it."""
        return {part.name: getattr(self, part.name) for part in fields(self) if part.name.endswith("_per_s")}

    def fault(self, index: int) -> SimulatedFault:
        """Return what is wrong with a device."""
        return self.faults.get(index, SimulatedFault())

    def slowdown(self, index: int, part: Literal["work", "links"]) -> float:
        """Return how many times as long a device takes as declared: its fault, and what card it is."""
        fault = self.fault(index)
        slower = fault.slower_percent if part == "work" else fault.slower_link_percent
        card = Random(f"{part} of {uuid_of(self.first_card + index)}").gauss(0, 1)  # noqa: S311  # a seed, no secret
        return (1 + slower / 100) * (1 - self.card_spread_percent / 100 * max(-3.0, min(card, 3.0)))

    def memory_of(self, index: int) -> int:
        """Return the bytes that a device has."""
        limit = self.fault(index).memory_bytes
        return self.memory_bytes if limit is None else limit


def uuid_of(card: int) -> str:
    """Return the permanent identity of a simulated card."""
    return f"SIM-{card:04d}"


def readings_file(index: int) -> Path:
    """Return where a device of this user, folder and declaration writes how long it was busy.

    Three numbers of nanoseconds on the host's monotonic clock: busy in all, with what is queued, and where
    the last of it begins and ends.
    """
    host = f"{Path.cwd()}\n{os.environ.get(VARIABLE, '')}"
    name = f"{sha256(host.encode()).hexdigest()[:16]}-{index}"
    return Path(gettempdir()) / f"gpuproof-simgpu-{os.getuid()}" / name


def busy_s(index: int, monotonic_s: float) -> float | None:
    """Return for how long a device was busy until now; None where nothing runs, nor ran, on it."""
    try:
        total, begin, end = struct.unpack("=3q", readings_file(index).read_bytes())
    except (OSError, struct.error):
        return None
    return float(total - max(0, end - max(begin, monotonic_s * 1e9))) / 1e9


def read_declaration(text: str) -> SimulatedDevices:
    """Read what was declared; an empty text is the defaults.

    Raises:
        UsageError: it is no JSON object, a key is unknown, or a value cannot be.
    """
    try:
        stated = json.loads(text or "{}")
    except ValueError as error:
        raise _unreadable(f"it is no JSON: {error}") from error
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
        raise _unreadable(f"faults.{missing[0]} is of no device: there are {declared.devices}")
    if declared.card_spread_percent > 20:
        raise _unreadable("card_spread_percent: cards cannot differ by more than 20 %")
    return declared


def _filled(kind: type[Declared], stated: Any, place: str) -> Declared:
    defaults = {part.name: part.default for part in fields(kind)}  # type: ignore[arg-type]  # both are dataclasses
    for key, value in _mapping(stated, place).items():
        where = f"{place}.{key}".lstrip(".")
        if key not in defaults:
            raise _unreadable(f"{where}: unknown key; known are {', '.join(defaults)}")
        if key not in ("faults", "power_cap") and not _can_be(value, defaults[key]):
            raise _unreadable(f"{where}: {value!r} cannot be")
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
        raise _unreadable(f"{place} is no JSON object")
    return stated


def _index(text: str) -> int:
    if not text.isdigit():
        raise _unreadable(f"faults.{text}: a device is named by its index")
    return int(text)


def _unreadable(cause: str) -> UsageError:
    step = "See docs/developers/simulator.md for what can be declared"
    return UsageError(cause, place=VARIABLE, next_step=step)

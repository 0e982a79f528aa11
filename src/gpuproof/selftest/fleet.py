"""A made-up fleet: healthy GPUs that differ only by random noise, plus any planted faults."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

STEP_S = 0.010
"""Duration of a training step in seconds, with any number of healthy ranks."""
PRODUCTS_FLOPS_PER_S = 5e14
LINK_BYTES_PER_S = 5e10
OPERATION_S = 2e-4
"""Duration of a collective in seconds, in addition to the time to transfer its bytes."""
BEGAN_MONOTONIC_S = 40.0
BEGAN_UNIX_S = 1_795_000_000.0
SETTLED_S = 10.0
"""Seconds from a rank's start to the start of its window."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PlantedXids:
    """XIDs that the driver reports for devices during training on all devices."""

    code: int
    gpus: tuple[str, ...]
    """Templates of device UUIDs, formatted with `{host}` and `{index}`."""
    times: int = 1
    """Number of XIDs, which are one second apart."""
    pids: tuple[int, ...] = ()
    """IDs of the processes that cause these XIDs, in rotation; if empty, the driver reports no processes."""
    at_s: float = 11.0
    """Seconds after the start of the ranks; a hanging launch is stopped after 100 s."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Planted:
    """Faults injected into a fleet; by default, none. Devices are identified by UUID."""

    slower: Mapping[str, float] = field(default_factory=dict)
    """Slowdown factor, by device."""
    all_slower: float = 1.0
    slow_link: tuple[str, ...] = ()
    """Two hosts connected by a slow link: all traffic between them is slower."""
    lossy: tuple[str, str] | None = None
    """Hosts with a lossy connection: many packets that the first sends to the second are lost."""
    wrong_on: int | None = None
    """The rank on which one element of every collective's result is wrong."""
    lost: str | None = None
    """A host on which no launch can be started."""
    hung: int | None = None
    """A rank that stops responding in the training over all devices."""
    stopped: int | None = None
    """A rank of the training over all devices that is stopped from outside: the other ranks wait for it, then
    give up."""
    mute: str | None = None
    """A host that reports nothing about itself."""
    doubled: Mapping[str, str] = field(default_factory=dict)
    """Second name under which a machine appears, by host."""
    without_loss: int | None = None
    """A rank on which training ends with a NaN loss."""
    facts: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    """Facts that differ from the other hosts' facts, by host."""
    clock_ahead_s: Mapping[str, float] = field(default_factory=dict)
    """Seconds by which each host's clock is ahead."""
    stops_before: str | None = None
    """First of the cases that are not launched."""
    torn: str | None = None
    """A case in which the last rank's journal was cut off in the middle of its last line."""
    xids: tuple[PlantedXids, ...] | None = None
    """XIDs that drivers report, if monitoring is on."""
    is_split: bool = False
    """Ranks do not find each other: each multi-rank job consists only of its first rank."""
    backend: str = "nccl"


@dataclass(frozen=True, slots=True, kw_only=True)
class Fleet:
    """A fleet of hosts with GPUs that differ only by random noise."""

    hosts: tuple[str, ...] = ("node1", "node2", "node3")
    num_devices: int = 2
    """Number of devices per host."""
    uuid: str = "GPU-{host}-{index}"
    device_name: str = "Seeded GPU"
    planted: Planted = field(default_factory=Planted)
    seed: int = 0
    listed: Sequence[Mapping[str, Any]] | None = None
    """The devices that the driver lists on each host, if the list was read."""
    begins_monotonic_s: float = BEGAN_MONOTONIC_S + SETTLED_S
    """Time at which the windows start."""
    window_s: float | None = None
    """How long steps run, in seconds, in launches that run steps; None means a fixed number of steps."""
    is_counted: bool = True
    """Whether an inventory states the number of devices per host."""
    day: int | None = None
    """Day of the measurement, which adds its own variation to all values; with None, there is no such
    effect."""

    def uuid_of(self, host: str, index: int) -> str:
        """Return the UUID of a device."""
        return self.uuid.format(host=self.planted.doubled.get(host, host), index=index)


def with_fault(fleet: Fleet, **planted: Any) -> Fleet:
    """Return the fleet with the given faults injected."""
    return replace(fleet, planted=replace(fleet.planted, **planted))

"""A made-up fleet: healthy GPUs that differ only by chance, plus any planted faults."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

STEP_S = 0.010
"""For training, with any number of healthy ranks."""
PRODUCTS_FLOPS_PER_S = 5e14
LINK_BYTES_PER_S = 5e10
OPERATION_S = 2e-4
"""For a collective, in addition to the time for its bytes."""
BEGAN_MONOTONIC_S = 40.0
BEGAN_UNIX_S = 1_795_000_000.0
SETTLED_S = 10.0
"""From a rank's start to the start of its window."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PlantedXids:
    """XIDs that drivers report for devices during the training over all devices."""

    code: int
    gpus: tuple[str, ...]
    """Device UUIDs as templates, formatted with `{host}` and `{index}`."""
    times: int = 1
    """The XIDs, one second apart."""
    pids: tuple[int, ...] = ()
    """The processes that hit these XIDs, alternating; if empty, the driver does not report any process."""
    at_s: float = 11.0
    """Time after the start of the ranks; a hanging launch is stopped after 100 s."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Planted:
    """What is wrong with a fleet; by default, nothing. Devices are identified by UUID."""

    slower: Mapping[str, float] = field(default_factory=dict)
    """By device: the factor by which its work takes longer."""
    all_slower: float = 1.0
    slow_link: tuple[str, ...] = ()
    """Two hosts: all traffic over the link between them is slowed down."""
    lossy: tuple[str, str] | None = None
    """Two hosts: much of what the first sends to the second is lost."""
    wrong_on: int | None = None
    """The rank on which one element of every collective's result is wrong."""
    lost: str | None = None
    """A host on which no launch can be started."""
    hung: int | None = None
    """A rank of the training over all devices that stops responding."""
    stopped: int | None = None
    """A rank of that training that is stopped from outside: the other ranks wait for it, then give up."""
    mute: str | None = None
    """A host that reports nothing about itself."""
    doubled: Mapping[str, str] = field(default_factory=dict)
    """By host: another name under which that machine also appears."""
    without_loss: int | None = None
    """A rank whose training ends with a NaN loss."""
    facts: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    """By host: facts that differ from those of the other hosts."""
    clock_ahead_s: Mapping[str, float] = field(default_factory=dict)
    """By host: how far its clock is ahead."""
    stops_before: str | None = None
    """The first of the cases that are not launched."""
    torn: str | None = None
    """A case in which the last rank's journal was cut off in the middle of its last line."""
    xids: tuple[PlantedXids, ...] | None = None
    """What drivers report, if monitoring is on."""
    is_split: bool = False
    """Ranks do not find each other: each multi-rank job consists only of its first rank."""
    backend: str = "nccl"


@dataclass(frozen=True, slots=True, kw_only=True)
class Fleet:
    """Hosts whose GPUs differ only by chance."""

    hosts: tuple[str, ...] = ("node1", "node2", "node3")
    num_devices: int = 2
    """Number per host."""
    uuid: str = "GPU-{host}-{index}"
    device_name: str = "Seeded GPU"
    planted: Planted = field(default_factory=Planted)
    seed: int = 0
    listed: Sequence[Mapping[str, Any]] | None = None
    """The devices that the driver lists on each host, if this was read."""
    begins_monotonic_s: float = BEGAN_MONOTONIC_S + SETTLED_S
    """When the windows start."""
    window_s: float | None = None
    """How long steps run, in launches that run steps; None means a fixed number of steps."""
    is_counted: bool = True
    """Whether an inventory states the number of devices per host."""
    day: int | None = None
    """The day of the measurement: each day has its own effect; None has no effect."""

    def uuid_of(self, host: str, index: int) -> str:
        """Return the identity of a device."""
        return self.uuid.format(host=self.planted.doubled.get(host, host), index=index)


def with_fault(fleet: Fleet, **planted: Any) -> Fleet:
    """Return the fleet with a planted fault."""
    return replace(fleet, planted=replace(fleet.planted, **planted))

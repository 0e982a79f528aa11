"""A fleet that is made up: healthy GPUs that differ in nothing but chance, and what is wrong with them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

STEP_S = 0.010
"""Of training, by any number of healthy ranks."""
PRODUCTS_FLOPS_PER_S = 5e14
LINK_BYTES_PER_S = 5e10
OPERATION_S = 2e-4
"""Of a collective, besides its bytes."""
BEGAN_MONOTONIC_S = 40.0
BEGAN_UNIX_S = 1_795_000_000.0
SETTLED_S = 10.0
"""From a rank's begin to its window."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PlantedXids:
    """XIDs that drivers announce of devices beside the training over all."""

    code: int
    gpus: tuple[str, ...]
    """By UUID, as `{host}` and `{index}` make it."""
    times: int = 1
    """A second apart."""
    pids: tuple[int, ...] = ()
    """The processes that met them, in turn; none: the driver does not say."""
    at_s: float = 11.0
    """After the ranks began; what is ended because it hangs is ended after 100 s."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Planted:
    """What is wrong with a fleet; nothing where nothing is said. Devices are named by their UUID."""

    slower: Mapping[str, float] = field(default_factory=dict)
    """By which factor a device's work takes longer."""
    all_slower: float = 1.0
    slow_link: tuple[str, ...] = ()
    """Two hosts: whatever goes over the link between them takes longer."""
    lossy: tuple[str, str] | None = None
    """Two hosts: of what the first sends to the second much is lost on the way."""
    wrong_on: int | None = None
    """The rank on which one element of every collective's result is wrong."""
    lost: str | None = None
    """A host to which no launch can be brought."""
    hung: int | None = None
    """A rank of the training over all that stops to answer."""
    stopped: int | None = None
    """A rank of it that is stopped from outside: the others wait for it, and give up."""
    mute: str | None = None
    """A host that says nothing of itself."""
    doubled: Mapping[str, str] = field(default_factory=dict)
    """By host: that under whose name the same machine is there too."""
    without_loss: int | None = None
    """A rank whose training ends in a loss that is no number."""
    facts: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    """By host: what it says of itself otherwise than the others."""
    clock_ahead_s: Mapping[str, float] = field(default_factory=dict)
    """By host."""
    stops_before: str | None = None
    """A case that nobody launches, and none after it."""
    torn: str | None = None
    """A case of which the last rank's journal was cut in the middle of its last line."""
    xids: tuple[PlantedXids, ...] | None = None
    """What drivers announce, where somebody listens to them."""
    is_split: bool = False
    """Ranks do not find each other: each job over several is the first rank by itself."""
    backend: str = "nccl"


@dataclass(frozen=True, slots=True, kw_only=True)
class Fleet:
    """Hosts with GPUs that differ in nothing but chance."""

    hosts: tuple[str, ...] = ("node1", "node2", "node3")
    num_devices: int = 2
    """Of each host."""
    uuid: str = "GPU-{host}-{index}"
    device_name: str = "Seeded GPU"
    planted: Planted = field(default_factory=Planted)
    seed: int = 0
    listed: Sequence[Mapping[str, Any]] | None = None
    """What the driver lists of each host's devices, where that was read."""
    begins_monotonic_s: float = BEGAN_MONOTONIC_S + SETTLED_S
    """When windows begin."""
    window_s: float | None = None
    """For how long steps run, of launches that run steps; None: for a number of steps."""
    is_counted: bool = True
    """Whether an inventory says how many devices each host has."""
    day: int | None = None
    """On which it is measured: each has an effect of its own; None has none."""

    def uuid_of(self, host: str, index: int) -> str:
        """Return the identity of a device."""
        return self.uuid.format(host=self.planted.doubled.get(host, host), index=index)


def with_fault(fleet: Fleet, **planted: Any) -> Fleet:
    """Return the fleet with something wrong."""
    return replace(fleet, planted=replace(fleet.planted, **planted))

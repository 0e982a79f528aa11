"""Which places are free for which case: what a campaign holds of what its launcher offers.

A case has its hosts to itself, unless it says `exclusive: devices`: then they may run others of its kind on
other devices; under `exclusive: nothing` on the same ones too. A queue offers no places, and takes any case
while not too many are in it.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence

from gpuproof.launchers.base import HostError
from gpuproof.records.case import Placement
from gpuproof.suites.base import HostPlace, LaunchKey

Devices = frozenset[int] | None
"""Devices of a host, None for the whole host."""


def held_places(offered: Sequence[HostPlace], *, max_busy: int | None) -> HeldPlaces | HeldQueue:
    """Hold what a launcher offers: its places, or without any its queue."""
    return HeldPlaces(offered, max_busy=max_busy) if offered else HeldQueue(max_busy)


class HeldQueue:
    """The launches that are in a queue; where they run is not decided here."""

    def __init__(self, max_busy: int | None) -> None:
        self._held: set[LaunchKey] = set()
        self._max_busy = max_busy

    def has_room(self, lost: Collection[str]) -> bool:
        """Say whether another launch may join it."""
        del lost
        return self._max_busy is None or len(self._held) < self._max_busy

    def find(self, placement: Placement, lost: Collection[str]) -> tuple[str, ...] | None:
        """Return no places: the queue chooses."""
        return ()

    def reason_never(self, placement: Placement, lost: Mapping[str, HostError]) -> str | None:
        """Return nothing: the queue says itself what it cannot hold."""
        return None

    def take(self, key: LaunchKey, hosts: Sequence[str], placement: Placement) -> tuple[LaunchKey, ...]:
        """Note a launch; what runs beside it is not known."""
        self._held.add(key)
        return ()

    def release(self, key: LaunchKey) -> None:
        """Note that a launch is over."""
        self._held.discard(key)


class HeldPlaces:
    """The places of a launcher, and what runs on each."""

    def __init__(self, offered: Iterable[HostPlace], *, max_busy: int | None) -> None:
        self._held: dict[str, dict[LaunchKey, Devices]] = {place.name: {} for place in offered}
        self._max_busy = max_busy

    def has_room(self, lost: Collection[str]) -> bool:
        """Say whether any case could begin now; also where no place is left, so that cases are told so."""
        usable = [name for name in self._held if name not in lost]
        return not usable or any(self._is_free(name, frozenset()) for name in usable)

    def find(self, placement: Placement, lost: Collection[str]) -> tuple[str, ...] | None:
        """Return the places for a case, in the order of node ranks; None where it has to wait."""
        gpus = _devices(placement)
        free = [
            name for name in placement.hosts or self._held if name not in lost and self._is_free(name, gpus)
        ]
        if gpus == frozenset():  # the host with the fewest cases on it
            free.sort(key=lambda name: len(self._held[name]))
        free = free[: placement.num_hosts]
        return tuple(free) if len(free) == placement.num_hosts and self._may_be_busy(free) else None

    def reason_never(self, placement: Placement, lost: Mapping[str, HostError]) -> str | None:
        """Say why no place that is left can ever hold a case; None where one can."""
        unknown = [name for name in placement.hosts if name not in self._held]
        if unknown:
            return f"no such host is offered: {', '.join(unknown)}"
        if placement.hosts and len(placement.hosts) != placement.num_hosts:
            return f"{len(placement.hosts)} hosts are named, and {placement.num_hosts} are asked for"
        left = [name for name in self._held if name not in lost]
        if not placement.hosts and placement.num_hosts > len(left):
            gone = "".join(f"; {name} is lost: {error.cause}" for name, error in lost.items())
            return f"{placement.num_hosts} hosts are asked for, and there are {len(left)}{gone}"
        return None

    def take(self, key: LaunchKey, hosts: Sequence[str], placement: Placement) -> tuple[LaunchKey, ...]:
        """Give places to a launch; return what runs beside it there."""
        beside = dict.fromkeys(other for name in hosts for other in self._held[name])
        for name in hosts:
            self._held[name][key] = _devices(placement)
        return tuple(beside)

    def release(self, key: LaunchKey) -> None:
        """Take back what a launch had."""
        for held in self._held.values():
            held.pop(key, None)

    def _is_free(self, name: str, wanted: Devices) -> bool:
        held = self._held[name].values()
        if wanted is None:
            return not held
        return all(devices is not None and not devices & wanted for devices in held)

    def _may_be_busy(self, hosts: Sequence[str]) -> bool:
        busy = {name for name, held in self._held.items() if held}
        return self._max_busy is None or not busy or len(busy | set(hosts)) <= self._max_busy


def _devices(placement: Placement) -> Devices:
    """Return the devices that a case takes of each host."""
    if placement.exclusive == "nothing":
        return frozenset()
    if placement.exclusive == "hosts" or placement.devices is None:
        return None
    return frozenset(placement.devices)

"""Which hosts are free for which case: the campaign's view of what its launcher provides.

A case has its hosts to itself unless it sets `exclusive: devices`: then its hosts may also run other such
cases on other devices; with `exclusive: nothing`, even on the same devices. A queue has no hosts of its own
and accepts any case, unless it already contains too many.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence

from gpuproof.launchers.base import HostError
from gpuproof.records.case import Placement
from gpuproof.suites.base import HostPlace, LaunchKey

Devices = frozenset[int] | None
"""Devices of a host; None means the whole host."""


def held_places(offered: Sequence[HostPlace], *, max_busy: int | None) -> HeldPlaces | HeldQueue:
    """Track what a launcher provides: its hosts or, if it has none, its queue."""
    return HeldPlaces(offered, max_busy=max_busy) if offered else HeldQueue(max_busy)


class HeldQueue:
    """The launches in a queue; the queue decides where they run."""

    def __init__(self, max_busy: int | None) -> None:
        self._held: set[LaunchKey] = set()
        self._max_busy = max_busy

    def has_room(self, lost: Collection[str]) -> bool:
        """Check whether another launch may enter the queue."""
        del lost
        return self._max_busy is None or len(self._held) < self._max_busy

    def find(self, placement: Placement, lost: Collection[str]) -> tuple[str, ...] | None:
        """Return no hosts: the queue assigns them."""
        return ()

    def reason_never(self, placement: Placement, lost: Mapping[str, HostError]) -> str | None:
        """Return nothing: the queue itself reports what it cannot run."""
        return None

    def take(self, key: LaunchKey, hosts: Sequence[str], placement: Placement) -> tuple[LaunchKey, ...]:
        """Record a launch; what else runs on its hosts is unknown."""
        self._held.add(key)
        return ()

    def release(self, key: LaunchKey) -> None:
        """Record that a launch has ended."""
        self._held.discard(key)


class HeldPlaces:
    """The hosts of a launcher, and what runs on each."""

    def __init__(self, offered: Iterable[HostPlace], *, max_busy: int | None) -> None:
        self._held: dict[str, dict[LaunchKey, Devices]] = {place.name: {} for place in offered}
        self._max_busy = max_busy

    def has_room(self, lost: Collection[str]) -> bool:
        """Check whether any case could start now; also true if no hosts are left, so that cases fail."""
        usable = [name for name in self._held if name not in lost]
        return not usable or any(self._is_free(name, frozenset()) for name in usable)

    def find(self, placement: Placement, lost: Collection[str]) -> tuple[str, ...] | None:
        """Return the hosts for a case, in node-rank order; None if the case has to wait."""
        gpus = _devices(placement)
        free = [
            name for name in placement.hosts or self._held if name not in lost and self._is_free(name, gpus)
        ]
        if gpus == frozenset():  # the host with the fewest cases
            free.sort(key=lambda name: len(self._held[name]))
        free = free[: placement.num_hosts]
        return tuple(free) if len(free) == placement.num_hosts and self._may_be_busy(free) else None

    def reason_never(self, placement: Placement, lost: Mapping[str, HostError]) -> str | None:
        """Return why none of the remaining hosts can ever run a case; None if one of them can."""
        unknown = [name for name in placement.hosts if name not in self._held]
        if unknown:
            return f"no such host is available: {', '.join(unknown)}"
        if placement.hosts and len(placement.hosts) != placement.num_hosts:
            return f"{len(placement.hosts)} hosts are listed, but {placement.num_hosts} are requested"
        left = [name for name in self._held if name not in lost]
        if not placement.hosts and placement.num_hosts > len(left):
            gone = "".join(f"; {name} is lost: {error.cause}" for name, error in lost.items())
            return f"{placement.num_hosts} hosts are requested, but only {len(left)} are available{gone}"
        return None

    def take(self, key: LaunchKey, hosts: Sequence[str], placement: Placement) -> tuple[LaunchKey, ...]:
        """Assign hosts to a launch; return what else is running there."""
        beside = dict.fromkeys(other for name in hosts for other in self._held[name])
        for name in hosts:
            self._held[name][key] = _devices(placement)
        return tuple(beside)

    def release(self, key: LaunchKey) -> None:
        """Release the hosts of a launch."""
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
    """Return the devices that a case uses on each of its hosts."""
    if placement.exclusive == "nothing":
        return frozenset()
    if placement.exclusive == "hosts" or placement.devices is None:
        return None
    return frozenset(placement.devices)

"""Choose a case's device if several cases of a run share a host: the least used one available.

In: the case's requirements, and the run's folder on this host. Each case that has a device locks a file in
this folder, and the lock is released no matter how the case's process exits. Out: the device, or an error
that lists what each device lacked. Free memory is as reported by the driver, minus the memory that other
cases have requested but not allocated yet. Nothing is ever reset, and other users' processes are never
touched.
"""

from __future__ import annotations

import fcntl
import json
import os
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from time import monotonic
from typing import TextIO

from gpuproof.base.errors import EnvironmentUnfitError
from gpuproof.devices.base import DeviceProcess
from gpuproof.devices.discovery import SLOWEST_DRIVER_S, open_devices
from gpuproof.devices.guard import GuardedDevices
from gpuproof.processes.group import descendants
from gpuproof.records.case import DeviceShare, DeviceTaken, Placement
from gpuproof.records.readings import DeviceIdentity, PhysicalIndex

FOLDER = ".devices"
POLL_S = 1.0
VISIBILITY = {"nvidia": ("CUDA_VISIBLE_DEVICES",), "amd": ("ROCR_VISIBLE_DEVICES",)}
"""Maps a vendor to the variables that make only one device visible to a program."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceClaim:
    """A claim by another case of this run."""

    pid: int
    physical_index: int
    asked_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class SharedDevice:
    """The current state of one device."""

    identity: DeviceIdentity
    free_bytes: int | None
    """Free memory as reported by the driver; None if the driver does not report it."""
    processes: tuple[DeviceProcess, ...] | str
    claims: tuple[DeviceClaim, ...]

    @property
    def promised_bytes(self) -> int:
        """Memory that other cases of this run have requested here but not allocated yet."""
        return sum(max(0, claim.asked_bytes - self._held_by(claim)) for claim in self.claims)

    def _held_by(self, claim: DeviceClaim) -> int:
        if isinstance(self.processes, str):
            return 0
        tree = {claim.pid, *(state.pid for state in descendants(claim.pid))}
        return sum(process.mem_used_bytes or 0 for process in self.processes if process.pid in tree)

    def lacks(self, share: DeviceShare, cases_per_device: int) -> str | None:
        """Return why a case cannot use this device now; None if it can."""
        if len(self.claims) >= cases_per_device:
            return f"has {len(self.claims)} case(s) of this run"
        if share.min_free_bytes is None:
            return None
        if self.free_bytes is None:
            return "does not report how much memory is free"
        free = self.free_bytes - self.promised_bytes
        if free >= share.min_free_bytes:
            return None
        promised = f", {self.promised_bytes / 2**30:.1f} GiB of it claimed" if self.promised_bytes else ""
        return f"has {self.free_bytes / 2**30:.1f} GiB free{promised}"


class HeldDevice:
    """A device that this process holds until it releases the device or exits."""

    def __init__(self, taken: DeviceTaken, vendor: str, file: TextIO) -> None:
        self.taken = taken
        self._vendor = vendor
        self._file = file

    @property
    def variables(self) -> dict[str, str]:
        """The variables that make only this device visible to a program."""
        shown = self.taken.uuid if self._vendor == "nvidia" else str(self.taken.framework_index)
        return dict.fromkeys(VISIBILITY.get(self._vendor, ()), shown or str(self.taken.physical_index))

    def close(self) -> None:
        """Release the device."""
        self._file.close()


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceTaker:
    """Requirements of one case, and the devices it may choose from."""

    placement: Placement
    share: DeviceShare
    rank: int
    folder: Path
    """Folder where the cases of this run keep their files on this host."""
    needs_exclusive_memory: bool
    """Whether only the driver knows how much memory the case uses. Several cases can then share a device only
    if the driver reports the memory of each process."""

    def take(self, environment: Mapping[str, str], beat: Callable[[], None]) -> HeldDevice | None:
        """Wait for a device and claim it; None on a host without devices.

        Raises:
            EnvironmentUnfitError: no device became free in time, or several cases would have to share a
                device with a driver that does not report memory per process.
        """
        devices = open_devices(environment, open_deadline_s=min(self.share.wait_s, SLOWEST_DRIVER_S))
        try:
            if not devices.identities and self.placement.devices is None:
                return None
            return self._wait(devices, beat)
        finally:
            devices.close()

    def _wait(self, devices: GuardedDevices, beat: Callable[[], None]) -> HeldDevice:
        begin_s = alone_s = monotonic()
        while True:
            states, held = self._try(devices, begin_s)
            if held is not None:
                return held
            if any(state.claims for state in states):
                alone_s = monotonic()  # devices in use by cases of this run will be released
            if monotonic() - alone_s >= self.share.wait_s:
                raise EnvironmentUnfitError(
                    self._nothing_free(states),
                    next_step="Raise cases.memory_wait_timeout_s, or request less",
                )
            beat()
            time.sleep(POLL_S)

    def _try(self, devices: GuardedDevices, begin_s: float) -> tuple[list[SharedDevice], HeldDevice | None]:
        """Scan all devices while no other case does, and claim the least used suitable one."""
        self.folder.mkdir(exist_ok=True)
        with (self.folder / "lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            states = _states(devices, self.placement.devices, _claims(self.folder))
            most = -(-self.share.cases_at_once // len(states))
            if self.needs_exclusive_memory and most > 1:
                _refuse_whole_devices(states)
            fit = [state for state in states if state.lacks(self.share, most) is None]
            if not fit:
                return states, None
            best = min(fit, key=_preference)
            file = (self.folder / f"claim-{os.getpid()}.json").open("w")
            fcntl.flock(file, fcntl.LOCK_EX)
            index, needed_bytes = best.identity.physical_index, self.share.min_free_bytes or 0
            json.dump({"pid": os.getpid(), "physical_index": index, "asked": needed_bytes}, file)
            file.flush()
        return states, HeldDevice(self._taken(best, most, begin_s), best.identity.vendor, file)

    def _taken(self, state: SharedDevice, most: int, begin_s: float) -> DeviceTaken:
        now_s = monotonic()
        return DeviceTaken(
            rank=self.rank,
            physical_index=state.identity.physical_index,
            framework_index=state.identity.framework_index,
            name=state.identity.name,
            uuid=state.identity.uuid,
            free_bytes=state.free_bytes,
            cases_per_device=most,
            beside=len(state.claims),
            waited_s=now_s - begin_s,
            monotonic_s=now_s,
        )

    def _nothing_free(self, states: Sequence[SharedDevice]) -> str:
        needed_bytes = self.share.min_free_bytes
        wanted = "" if needed_bytes is None else f" with {needed_bytes / 2**30:.1f} GiB free"
        most = -(-self.share.cases_at_once // len(states))
        free = (
            f"GPU {state.identity.physical_index} {state.lacks(self.share, most) or 'became free just now'}"
            for state in states
        )
        return f"no device{wanted} became available within {self.share.wait_s:g} s: {'; '.join(free)}"


def _preference(state: SharedDevice) -> tuple[int, int]:
    """Prefer the device with the fewest cases, then the one with the most unclaimed memory."""
    return len(state.claims), state.promised_bytes - (state.free_bytes or 0)


def _claims(folder: Path) -> list[DeviceClaim]:
    """Read the claims of running processes, and delete all other claims."""
    claims = []
    for path in folder.glob("claim-*.json"):
        with suppress(FileNotFoundError), path.open("r+") as file:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                stated = json.loads(file.read())
                index, needed_bytes = int(stated["physical_index"]), int(stated["asked"])
                claims.append(
                    DeviceClaim(pid=int(stated["pid"]), physical_index=index, asked_bytes=needed_bytes)
                )
            else:
                path.unlink(missing_ok=True)
    return claims


def _states(
    devices: GuardedDevices, chosen: Sequence[int] | None, claims: Sequence[DeviceClaim]
) -> list[SharedDevice]:
    """Return the devices that may be used; specified indices are framework indices if known."""
    readouts, processes = devices.read("fast"), devices.processes()
    states = []
    for identity in devices.identities:
        index = PhysicalIndex(identity.physical_index)
        named = identity.framework_index if identity.framework_index is not None else identity.physical_index
        if chosen is not None and named not in chosen:
            continue
        total, values = identity.number("mem_total_bytes"), readouts[index].reading.values
        used = values.get("mem_used_bytes")
        free = (
            None if total is None or used is None else int(total - used - values.get("mem_reserved_bytes", 0))
        )
        claims_here = tuple(claim for claim in claims if claim.physical_index == index)
        states.append(
            SharedDevice(identity=identity, free_bytes=free, processes=processes[index], claims=claims_here)
        )
    if not states:
        raise EnvironmentUnfitError(
            f"none of the devices {', '.join(map(str, chosen or ()))} is on this host",
            place="distributed.devices",
            next_step="`gpuproof doctor` lists this host's devices",
        )
    return states


def _refuse_whole_devices(states: Sequence[SharedDevice]) -> None:
    """Refuse several cases on a device if its driver does not report memory per process."""
    for state in states:
        listed = state.processes
        if isinstance(listed, str):
            why = listed
        elif any(process.mem_used_bytes is None for process in listed):
            why = "the driver lists processes without their memory"
        else:
            continue
        raise EnvironmentUnfitError(
            f"several cases cannot share {state.identity.name} {state.identity.physical_index}: "
            f"their memory use could not be distinguished ({why})",
            place="cases.parallel",
            next_step="Run at most one case per GPU",
        )

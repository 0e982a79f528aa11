"""Which device a case takes: the freest that is not taken, and never one that hides its users."""

from __future__ import annotations

import itertools
import os
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from gpuproof.base.errors import EnvironmentUnfitError
from gpuproof.devices.base import DeviceProcess, Readout
from gpuproof.devices.guard import GuardedDevices
from gpuproof.records.case import DeviceShare, Placement
from gpuproof.records.readings import DeviceIdentity, DeviceReading, PhysicalIndex
from gpuproof.worker.host import device_share
from gpuproof.worker.host.device_share import DeviceTaker, HeldDevice

GIB = 2**30
TOTAL = 16 * GIB


class Devices:
    """Devices whose memory in use and whose users are said here."""

    def __init__(self, used: Sequence[int], users: Mapping[int, Any] | None = None) -> None:
        self.used = list(used)
        self.users = dict(users or {})
        self.num_read = 0

    @property
    def identities(self) -> tuple[DeviceIdentity, ...]:
        return tuple(
            DeviceIdentity(
                physical_index=index,
                vendor="nvidia",
                vendor_index=index,
                framework_index=index,
                uuid=f"GPU-{index}",
                pci_bus_id=None,
                name="Made up",
                static={"mem_total_bytes": TOTAL},
            )
            for index in range(len(self.used))
        )

    def read(self, _lane: str) -> dict[PhysicalIndex, Readout]:
        self.num_read += 1
        return {
            PhysicalIndex(index): Readout(
                reading=DeviceReading(values={"mem_used_bytes": float(used)}), unavailable={}
            )
            for index, used in enumerate(self.used)
        }

    def processes(self) -> dict[PhysicalIndex, Any]:
        return {PhysicalIndex(index): self.users.get(index, ()) for index in range(len(self.used))}

    def close(self) -> None:
        pass


@pytest.fixture
def take(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Any]:
    """Return what takes a device of those that are given, each time as another process.

    Time passes where somebody sleeps, so that all that is asked for is waited for so many times.
    """
    now_s = 0.0

    def sleep(seconds: float) -> None:
        nonlocal now_s
        now_s += seconds

    monkeypatch.setattr(device_share, "monotonic", lambda: now_s)
    monkeypatch.setattr(device_share, "time", SimpleNamespace(sleep=sleep))
    pids = itertools.count(2**30)
    taken: list[HeldDevice] = []

    def take_one(devices: Devices, *, chosen: Any = None, own: bool = True, **asked: Any) -> Any:
        pid = next(pids)
        monkeypatch.setattr(device_share, "open_devices", lambda _env, **_: cast(GuardedDevices, devices))
        monkeypatch.setattr(os, "getpid", lambda: pid)
        taker = DeviceTaker(
            placement=Placement(devices=chosen),
            share=DeviceShare(**{"wait_s": 2.5 * device_share.POLL_S, **asked}),
            rank=0,
            folder=tmp_path / "devices",
            needs_exclusive_memory=own,
        )
        held = taker.take({}, lambda: None)
        taken.extend([held] if held is not None else [])
        return held

    yield take_one
    for held in taken:
        held.close()


def index_of(held: HeldDevice) -> int:
    return held.taken.physical_index


def test_the_freest_device_is_taken_first_and_each_before_any_twice(take: Any) -> None:
    devices = Devices([4 * GIB, GIB, 2 * GIB])
    held = [take(devices, cases_at_once=6) for _ in range(6)]
    assert [index_of(one) for one in held[:3]] == [1, 2, 0]
    assert sorted(index_of(one) for one in held[3:]) == [0, 1, 2]
    assert held[0].variables == {"CUDA_VISIBLE_DEVICES": "GPU-1"}
    assert {one.taken.cases_per_device for one in held} == {2}


def test_only_devices_that_were_named_are_taken(take: Any) -> None:
    assert index_of(take(Devices([0, 0, 0]), chosen=(2,))) == 2
    with pytest.raises(EnvironmentUnfitError, match="none of the devices 7 is on this host"):
        take(Devices([0]), chosen=(7,))


def test_a_device_is_waited_for_until_its_memory_is_free(take: Any) -> None:
    busy = Devices([15 * GIB])
    with pytest.raises(EnvironmentUnfitError, match=r"no device with 2.0 GiB free .*: GPU 0 has 1.0 GiB"):
        take(busy, min_free_bytes=2 * GIB)
    assert busy.num_read == 4

    class Freed(Devices):
        def read(self, lane: str) -> dict[PhysicalIndex, Readout]:
            found = super().read(lane)
            self.used = [GIB]
            return found

    freed = Freed([15 * GIB])
    assert index_of(take(freed, min_free_bytes=2 * GIB, wait_s=10.0)) == 0
    assert freed.num_read == 2


def test_memory_that_another_case_asked_for_is_not_given_again(take: Any) -> None:
    """The first has taken nothing yet, so that the driver calls all of it free."""
    devices = Devices([0, 8 * GIB])
    first = take(devices, min_free_bytes=12 * GIB, cases_at_once=4)
    second = take(devices, min_free_bytes=6 * GIB, cases_at_once=4)
    assert (index_of(first), index_of(second)) == (0, 1)
    second.close()
    first.close()
    third = take(devices, min_free_bytes=12 * GIB, cases_at_once=4)
    assert index_of(third) == 0, "who has ended holds nothing"


@pytest.mark.parametrize(
    "users",
    ["this driver does not list them", (DeviceProcess(pid=1, mem_used_bytes=None, kind="compute"),)],
)
def test_cases_share_no_device_whose_driver_hides_whose_memory_it_is(take: Any, users: Any) -> None:
    hiding = Devices([0], {0: users})
    with pytest.raises(EnvironmentUnfitError, match="several cases cannot share"):
        take(hiding, cases_at_once=2)
    assert take(hiding, cases_at_once=2, own=False) is not None, "an allocator of its own knows"


def test_a_host_without_devices_gives_none(take: Any) -> None:
    assert take(Devices([])) is None
    with pytest.raises(EnvironmentUnfitError, match="none of the devices 0, 5 is on this host"):
        take(Devices([]), chosen=(0, 5))

"""Drivers that take long to answer: places are kept, nobody waits, and who answers late joins."""

from __future__ import annotations

import threading
from functools import partial
from pathlib import Path
from typing import Any

import pytest

import recordings as rec
from gpuproof.devices import fake, opening
from gpuproof.devices.base import DeviceAdapter, DriverMissingError
from gpuproof.devices.deadline import CallGuard
from gpuproof.devices.describe import describe_devices
from gpuproof.devices.discovery import OPEN_DEADLINE_S, open_devices
from gpuproof.devices.guard import GuardedDevices
from gpuproof.devices.opening import SILENT_NAME, Drivers, on_the_bus
from gpuproof.doctor import host
from gpuproof.observe.live_state import LiveState
from gpuproof.records.readings import DevicesAppeared, PhysicalIndex
from gpuproof.verdict.check import ask, checks_in
from gpuproof.verdict.facts import FleetFacts
from gpuproof.worker.host.environment import PROCESSOR_PATIENCE_S, describe_host
from waiting import PATIENCE_S, eventually


def hanging(tmp_path: Path, devices: int = 2) -> tuple[GuardedDevices, Path]:
    release = tmp_path / "release"
    env = {"GPUPROOF_FAKE_DEVICES": f"{devices}:hang_open", "GPUPROOF_FAKE_RELEASE": str(release)}
    return open_devices(env, deadline_s=PATIENCE_S, open_deadline_s=0.05), release


def wait_for_arrivals(devices: GuardedDevices) -> list[int]:
    arrived = eventually("devices of the driver that was released", devices.arrivals)
    return [identity.physical_index for identity in arrived]


def test_devices_of_a_driver_that_hangs_keep_their_places_and_say_since_when(tmp_path: Path) -> None:
    devices, release = hanging(tmp_path)
    readings, events = devices.read("fast"), devices.poll_events()
    assert [identity.name for identity in devices.identities] == [SILENT_NAME] * 2
    assert readings[PhysicalIndex(1)].reading.values == {}
    cause = readings[PhysicalIndex(1)].unavailable["power_w"]
    assert cause.startswith("not answering since ")
    assert cause.endswith(" UTC: the call to open its driver has not returned")
    assert devices.absent["fake"] == cause
    assert [(e.physical_index, e.event, e.message) for e in events] == [
        (0, "not_answering", cause),
        (1, "not_answering", cause),
    ]
    assert devices.arrivals() == ()

    release.touch()
    assert wait_for_arrivals(devices) == [0, 1]
    assert devices.read("fast")[PhysicalIndex(1)].reading.values["temp_gpu_c"] == 60
    assert [(e.physical_index, e.event) for e in devices.poll_events()] == [(0, "appeared"), (1, "appeared")]
    assert devices.absent == {}
    devices.close()


def test_only_chosen_devices_join(tmp_path: Path) -> None:
    devices, release = hanging(tmp_path, devices=3)
    devices.select({1})
    release.touch()
    assert wait_for_arrivals(devices) == [1]
    assert [identity.physical_index for identity in devices.identities] == [1]
    devices.close()


def test_the_bus_names_a_vendors_gpus_without_its_driver(tmp_path: Path) -> None:
    for address, vendor, kind in (
        ("0000:65:00.0", "0x10de", "0x030200"),
        ("0000:65:00.1", "0x10de", "0x040300"),  # its sound
        ("0001:05:00.0", "0x1002", "0x120000"),
        ("0000:17:00.0", "0x10de", "0x030000"),
    ):
        folder = tmp_path / "bus/pci/devices" / address
        folder.mkdir(parents=True)
        (folder / "vendor").write_text(vendor + "\n")
        (folder / "class").write_text(kind + "\n")
    assert [d.pci_bus_id for d in on_the_bus("nvidia", tmp_path)] == ["0000:17:00.0", "0000:65:00.0"]
    assert [d.pci_bus_id for d in on_the_bus("amd", tmp_path)] == ["0001:05:00.0"]
    assert on_the_bus("intel", tmp_path) == []


def test_a_driver_that_is_loaded_later_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(opening, "ASK_AGAIN_S", 0.0)
    is_loaded = threading.Event()

    def opener() -> DeviceAdapter:
        if not is_loaded.is_set():
            raise DriverMissingError("no driver")
        return fake.open_adapter("1")

    drivers = Drivers({"nvidia": opener}, on_bus=lambda _: [])
    drivers.wait(PATIENCE_S)
    assert drivers.absent == {"nvidia": "no driver"}
    is_loaded.set()
    eventually("devices of the driver that was loaded", drivers.late)
    assert drivers.absent == {}
    assert [device.name for _, device in drivers.listed["nvidia"]] == ["Fake device"]


def test_of_devices_that_all_hang_all_are_given_up_within_two_deadlines() -> None:
    """The first by itself, the others at once: counted by who was begun before any was released."""
    guard, release, begun = CallGuard(0.05), threading.Event(), threading.Semaphore(0)

    def hang() -> None:
        begun.release()
        release.wait()

    answers = guard.call_all({str(index): partial(hang) for index in range(8)})
    assert all("not answering since" in str(answer) for answer in answers.values())
    assert all(begun.acquire(timeout=PATIENCE_S) for _ in range(8))
    release.set()
    guard.close()


def test_a_rank_on_a_processor_names_a_driver_that_hangs_and_goes_on(tmp_path: Path) -> None:
    """Nobody releases the driver; torch is not asked for devices, since it would wait for it too."""
    env = {"GPUPROOF_FAKE_DEVICES": "1:hang_open", "GPUPROOF_FAKE_RELEASE": str(tmp_path / "release")}
    facts = describe_host(env, device="cpu")
    assert facts["accelerators"]["silent"][0]["reason"].startswith("not answering since ")
    assert facts["devices"] == []
    assert PROCESSOR_PATIENCE_S < 1
    assert OPEN_DEADLINE_S < 10


def test_doctor_fails_a_driver_that_does_not_answer(tmp_path: Path) -> None:
    env = {"GPUPROOF_FAKE_DEVICES": "1:hang_open"}
    found = describe_devices(env, patience_s=0.05)
    assert (found["devices"], found["silent"][0]["pci_bus_id"]) == ([], "ffff:f0:00.0")
    facts: dict[str, Any] = {
        "python": "3.11.7",
        "os": "Linux",
        "torch": "2.9",
        "torch_cuda": None,
        "torch_hip": None,
    }
    facts |= {"devices": [], "modules": {"psutil": True, "pynvml": True}, "compiler": "cc"}
    facts |= {"accelerators": found, "executable": "python"}
    judged = {item.name: item.outcome for item in ask(checks_in(host), FleetFacts(hosts={"": facts}))}
    assert judged["accelerators"].status == "FAIL"
    assert (judged["accelerators"].measured or "").startswith("fake ffff:f0:00.0: not answering since ")
    assert "CUDA" not in judged


def test_the_view_takes_in_who_answers_late(tmp_path: Path) -> None:
    devices, release = hanging(tmp_path, devices=1)
    state = LiveState()
    state.apply([rec.header(devices.identities), rec.sample(0, {})])
    assert state.devices[0].identity.name == SILENT_NAME
    release.touch()
    wait_for_arrivals(devices)
    state.apply([DevicesAppeared(monotonic_s=rec.MONOTONIC_S, devices=devices.identities)])
    assert state.devices[0].identity.name == "Fake device"
    devices.close()

"""The guard: a call that hangs costs its own device its readings and nobody else's."""

from __future__ import annotations

import errno
import os
import threading
from pathlib import Path
from types import SimpleNamespace

import pytest

from gpuproof.devices.base import DeviceError, DeviceHungError, DeviceLostError
from gpuproof.devices.deadline import CallGuard
from gpuproof.devices.discovery import open_devices
from gpuproof.devices.sysfs import SysfsFiles
from gpuproof.records.metrics import names
from gpuproof.records.readings import PhysicalIndex
from standing_clock import stop_clock
from waiting import PATIENCE_S, eventually


def test_answers_and_errors_come_back_to_the_caller() -> None:
    guard = CallGuard(600.0)

    def fail() -> None:
        raise DeviceLostError("gone")

    assert guard.call("a", lambda: 7) == 7
    with pytest.raises(DeviceLostError, match="gone"):
        guard.call("a", fail)
    guard.close()


@pytest.fixture
def begun(monkeypatch: pytest.MonkeyPatch) -> threading.Event:
    """Set by a call that begins to hang: until then no call is late."""
    event = threading.Event()
    stop_clock(monkeypatch, lambda: int(event.is_set()))
    return event


def test_only_the_hanging_key_is_refused_and_only_until_its_call_returns(begun: threading.Event) -> None:
    guard = CallGuard(0.05)
    release, returned = threading.Event(), threading.Event()

    def hang() -> None:
        begun.set()
        release.wait()
        returned.set()

    with pytest.raises(DeviceHungError):
        guard.call("a", hang)
    with pytest.raises(DeviceHungError):
        guard.call("a", lambda: "never run")
    assert guard.call("b", lambda: "other") == "other"
    release.set()
    assert returned.wait(PATIENCE_S)
    # The answer of the call that hung is queued a moment after it returned.
    assert eventually("an answer to the same key", lambda: _try(guard)) == "again"
    guard.close()


def _try(guard: CallGuard) -> str | None:
    try:
        return guard.call("a", lambda: "again")
    except DeviceHungError:
        return None


def test_a_hanging_fake_device_has_reasons_and_the_others_have_numbers(
    begun: threading.Event, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Hanging(threading.Event):
        """What the hanging device waits for: its adapter's end."""

        def wait(self, timeout: float | None = None) -> bool:
            begun.set()
            return super().wait(timeout)

    monkeypatch.setattr("gpuproof.devices.fake.threading", SimpleNamespace(Event=Hanging))
    devices = open_devices({"GPUPROOF_FAKE_DEVICES": "3:hang"}, deadline_s=0.05, open_deadline_s=PATIENCE_S)

    first, second = devices.read("fast"), devices.read("slow")
    counters = devices.counters()
    processes = devices.processes()
    events = devices.poll_events()
    devices.close()

    hung = PhysicalIndex(2)
    for readings, expected in (
        (first, names(lane="fast")),
        (second, names(lane="fast") + names(lane="slow")),
    ):
        assert readings[PhysicalIndex(0)].reading.values["temp_gpu_c"] == 60
        assert readings[hung].reading.values == {}
        assert readings[hung].unavailable.keys() == set(expected)
    assert counters[hung].unavailable["energy_j"].startswith("the driver call did not return within 0.05 s")
    assert isinstance(processes[hung], str)
    assert [(event.physical_index, event.event) for event in events] == [(2, "hung")]


def test_a_lost_device_is_announced_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gpuproof.devices.fake.LOST_AFTER_S", 0.0)
    devices = open_devices(
        {"GPUPROOF_FAKE_DEVICES": "2:lost"}, deadline_s=PATIENCE_S, open_deadline_s=PATIENCE_S
    )

    devices.read("fast")
    devices.read("fast")
    events = devices.poll_events()
    devices.close()

    assert [(e.physical_index, e.event, e.message) for e in events] == [(1, "lost", "the fake GPU is lost")]
    assert devices.poll_events() == ()


def test_a_descriptor_that_a_driver_reload_left_behind_is_opened_anew(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "busy").write_text("42\n")
    files = SysfsFiles(tmp_path)
    files.text("busy")
    real, refusals = os.pread, [errno.ENODEV]

    def pread(descriptor: int, size: int, offset: int) -> bytes:
        if refusals:
            raise OSError(refusals.pop(), "")
        return real(descriptor, size, offset)

    monkeypatch.setattr(os, "pread", pread)

    assert files.number("busy") == 42
    refusals += [errno.EIO]
    with pytest.raises(DeviceError, match="busy: Input/output error"):
        files.number("busy")
    refusals += [errno.EPERM]
    with pytest.raises(DeviceError, match="may not read busy"):
        files.number("busy")
    files.close()

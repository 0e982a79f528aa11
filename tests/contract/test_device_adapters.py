"""What every device adapter keeps: each metric of a lane is a number or has a reason, and a lost device
stops its own readings only. Run for every vendor, through real bindings and files where there are any."""

from __future__ import annotations

import math
import shutil
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import get_args

import pytest

from fakes import nvml_library, sysfs_trees
from gpuproof.devices import fake, intel, replay
from gpuproof.devices.amd import adapter as amd
from gpuproof.devices.amd import library
from gpuproof.devices.base import DeviceAdapter, DeviceLostError, NotSupportedError, Readout, VendorDevice
from gpuproof.devices.nvidia import adapter as nvidia
from gpuproof.records.codec import to_json
from gpuproof.records.journal import Journal
from gpuproof.records.metrics import METRICS, names
from gpuproof.records.readings import (
    DeviceIdentity,
    DeviceReading,
    Lane,
    Recording,
    RecordingEnd,
    Sample,
    ThrottleReason,
)

LANES: tuple[Lane, ...] = ("fast", "slow")


@dataclass(kw_only=True)
class Clock:
    now_s: float = 1000.0

    def __call__(self) -> float:
        return self.now_s


@dataclass(kw_only=True)
class Subject:
    """An adapter with two devices, and how to lose the second."""

    adapter: DeviceAdapter
    lose_second: Callable[[], None]
    first_survives: bool = True

    @property
    def devices(self) -> tuple[VendorDevice, ...]:
        return self.adapter.identities()


def _nvidia(request: pytest.FixtureRequest, _tmp: Path) -> Subject:
    library: nvml_library.FakeNvml = request.getfixturevalue("nvml")
    return Subject(adapter=nvidia.open_adapter(), lose_second=lambda: library.update(g1_all="!15"))


def _amd(_request: pytest.FixtureRequest, tmp: Path) -> Subject:
    sysfs_trees.w7900(tmp, number=1)
    accelerator = sysfs_trees.mi300(tmp, number=9)
    return Subject(adapter=amd.open_adapter(tmp), lose_second=lambda: shutil.rmtree(accelerator))


def _amd_with_library(request: pytest.FixtureRequest, tmp: Path) -> Subject:
    request.getfixturevalue("amdsmi")
    sysfs_trees.w7900(tmp, number=1)
    accelerator = sysfs_trees.mi300(tmp, number=9)
    adapter = amd.open_adapter(tmp, open_library=library.open_library)
    return Subject(adapter=adapter, lose_second=lambda: shutil.rmtree(accelerator))


def _intel(_request: pytest.FixtureRequest, tmp: Path) -> Subject:
    sysfs_trees.arc_xe(tmp, number=0)
    integrated = sysfs_trees.i915(tmp, number=2)
    clock = Clock()
    return Subject(
        adapter=intel.open_adapter(tmp, clock=clock), lose_second=lambda: shutil.rmtree(integrated)
    )


def _fake(_request: pytest.FixtureRequest, _tmp: Path) -> Subject:
    clock = Clock()
    adapter = fake.open_adapter("2:lost", clock=clock)

    def lose() -> None:
        clock.now_s += fake.LOST_AFTER_S

    return Subject(adapter=adapter, lose_second=lose)


def _replay(_request: pytest.FixtureRequest, tmp: Path) -> Subject:
    clock = Clock()
    adapter = replay.open_adapter(recording(tmp / "recording.jsonl"), clock=clock)

    def end() -> None:
        clock.now_s += 11

    return Subject(adapter=adapter, lose_second=end, first_survives=False)


def recording(path: Path) -> Path:
    """Write a recording of two devices, ten seconds long."""
    devices = tuple(
        DeviceIdentity(
            physical_index=index,
            vendor="nvidia",
            vendor_index=index,
            framework_index=index,
            uuid=f"GPU-{index}",
            pci_bus_id=f"0000:{index:02x}:00.0",
            name="Recorded GPU",
            unavailable={"temp_mem_c": "no sensor"},
        )
        for index in (4, 5)
    )
    journal = Journal(path)
    journal.append(
        Recording(
            host="h",
            pid=1,
            boot_id=None,
            gpuproof_version="0",
            unix_s=0,
            monotonic_s=50,
            fast_interval_s=1,
            slow_interval_s=5,
            devices=devices,
            host_facts={},
        )
    )
    for second, power_w in ((0, 300.0), (5, 350.0)):
        reading = DeviceReading(
            values={"power_w": power_w, "energy_j": 100.0 * second}, throttle_reasons=("power_cap",)
        )
        journal.append(
            Sample(
                monotonic_s=50 + second, unix_s=0, lane="fast", devices={"4": reading, "5": reading}, host={}
            )
        )
    journal.append(
        RecordingEnd(
            monotonic_s=60, unix_s=0, samples=2, missed_ticks=0, max_jitter_s=0, own_cpu_s=0, reason="end"
        )
    )
    journal.close()
    return path


_SUBJECTS = {
    "nvidia": _nvidia,
    "amd": _amd,
    "amd with its library": _amd_with_library,
    "intel": _intel,
    "fake": _fake,
    "replay": _replay,
}


@pytest.fixture(params=list(_SUBJECTS))
def subject(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Subject]:
    built = _SUBJECTS[request.param](request, tmp_path)
    yield built
    built.adapter.close()


def _check_accounted(readout: Readout, expected: tuple[str, ...]) -> None:
    given, missing = readout.reading.values.keys(), readout.unavailable.keys()
    assert set(expected) == given | (missing - {"throttle_reasons"})
    assert not given & missing
    assert all(math.isfinite(value) for value in readout.reading.values.values())
    assert all(reason.strip() for reason in readout.unavailable.values())


def test_a_device_is_known_by_name_and_address_and_its_facts_are_the_catalogues(subject: Subject) -> None:
    devices = subject.devices

    assert len(devices) == 2
    assert len({device.vendor_index for device in devices}) == 2
    for device in devices:
        assert device.name
        assert device.pci_bus_id
        assert device.uuid or device.unavailable["uuid"]
        assert not device.static.keys() & device.unavailable.keys()
        assert None not in device.static.values()
        to_json(dict(device.static))


@pytest.mark.parametrize("lane", LANES)
def test_every_metric_of_a_lane_is_a_number_or_has_a_reason(subject: Subject, lane: Lane) -> None:
    for device in subject.devices:
        _check_accounted(subject.adapter.read(device.vendor_index, lane=lane), names(lane=lane))


def test_every_counter_is_a_number_or_has_a_reason_and_does_not_fall(subject: Subject) -> None:
    for device in subject.devices:
        before = subject.adapter.counters(device.vendor_index)
        after = subject.adapter.counters(device.vendor_index)
        _check_accounted(before, names(kind="counter"))
        assert all(after.reading.values[name] >= value for name, value in before.reading.values.items())
        assert all(METRICS[name].kind == "counter" for name in before.reading.values)


def test_throttle_reasons_are_of_the_vocabulary_or_say_why_not(subject: Subject) -> None:
    for device in subject.devices:
        readout = subject.adapter.read(device.vendor_index, lane="fast")
        if readout.reading.throttle_reasons is None:
            assert readout.unavailable["throttle_reasons"]
        else:
            assert set(readout.reading.throttle_reasons) <= set(get_args(ThrottleReason))
            assert "throttle_reasons" not in readout.unavailable


def _answer_or_refusal(ask: Callable[[], tuple[object, ...]]) -> tuple[object, ...] | str:
    try:
        return ask()
    except NotSupportedError as error:
        return error.cause


def test_processes_and_events_are_given_or_refused_with_a_reason(subject: Subject) -> None:
    answers = [_answer_or_refusal(subject.adapter.poll_events)]
    answers += [
        _answer_or_refusal(partial(subject.adapter.processes, device.vendor_index))
        for device in subject.devices
    ]
    assert all(isinstance(answer, tuple) or answer.strip() for answer in answers)
    assert len(answers) == 3


def test_a_lost_device_stops_its_own_readings_only(subject: Subject) -> None:
    first, second = subject.devices
    before = subject.adapter.read(first.vendor_index, lane="fast").reading.values.keys()
    subject.adapter.read(second.vendor_index, lane="fast")

    subject.lose_second()

    for lane in LANES:
        with pytest.raises(DeviceLostError):
            subject.adapter.read(second.vendor_index, lane=lane)
    with pytest.raises(DeviceLostError):
        subject.adapter.counters(second.vendor_index)
    if subject.first_survives:
        assert subject.adapter.read(first.vendor_index, lane="fast").reading.values.keys() >= before


def test_closing_twice_is_harmless(subject: Subject) -> None:
    subject.adapter.close()
    subject.adapter.close()

"""The fake devices, the replay of a recording, and discovery over all vendors."""

from __future__ import annotations

import json
import math
from pathlib import Path

import pytest

from fakes import sysfs_trees
from gpuproof.base.errors import UsageError
from gpuproof.devices import fake, replay
from gpuproof.devices.base import DeviceLostError, VendorEvent
from gpuproof.devices.describe import describe_devices
from gpuproof.devices.discovery import open_devices
from gpuproof.records.journal import Journal
from gpuproof.records.metrics import names
from gpuproof.records.readings import (
    Counters,
    DeviceIdentity,
    DeviceReading,
    DriverEvent,
    PhysicalIndex,
    Recording,
    Sample,
    UnavailableMetrics,
    VendorIndex,
)

FIRST, LAST = VendorIndex(0), VendorIndex(1)


class Clock:
    def __init__(self) -> None:
        self.now_s = 100.0

    def __call__(self) -> float:
        return self.now_s


def test_energy_is_the_integral_of_power() -> None:
    clock = Clock()
    adapter = fake.open_adapter("1", clock=clock)
    steps, joules = 10_000, 0.0
    for step in range(steps):
        clock.now_s = 100 + 7 * (step + 0.5) / steps
        joules += adapter.read(FIRST, lane="fast").reading.values["power_w"] * 7 / steps
    clock.now_s = 107

    assert adapter.counters(FIRST).reading.values["energy_j"] == pytest.approx(joules, rel=1e-6)


def test_a_frozen_clock_reads_the_same_twice() -> None:
    adapter = fake.open_adapter("2", clock=Clock())

    assert adapter.read(FIRST, lane="fast") == adapter.read(FIRST, lane="fast")


@pytest.mark.parametrize(
    ("scenario", "changed"),
    [
        (
            "thermal",
            {"temp_gpu_c": 91, "clock_sm_mhz": 900, "throttle_time_thermal_software_s": 4},
        ),
        (
            "power_cap",
            {"power_w": 150, "power_limit_w": 150, "clock_sm_mhz": 1100, "throttle_time_power_cap_s": 4},
        ),
        ("ecc", {"ecc_corrected_count": 4, "ecc_uncorrected_count": 1}),
    ],
)
def test_a_scenario_befalls_the_last_device_only(scenario: str, changed: dict[str, float]) -> None:
    clock = Clock()
    adapter = fake.open_adapter(f"2:{scenario}", clock=clock)
    clock.now_s += 4

    def values(index: VendorIndex) -> dict[str, float]:
        lanes = [adapter.read(index, lane=lane).reading.values for lane in ("fast", "slow")]
        return lanes[0] | lanes[1]

    healthy, ill = values(FIRST), values(LAST)

    assert {name: ill[name] for name in changed} == changed
    assert all(healthy[name] != ill[name] for name in changed)


def test_xid_comes_once_at_its_time() -> None:
    clock = Clock()
    adapter = fake.open_adapter("2:xid", clock=clock)

    assert adapter.poll_events() == ()
    clock.now_s += fake.EVENT_AFTER_S
    assert adapter.poll_events() == (VendorEvent(vendor_index=LAST, event="xid", code=79, message="XID 79"),)
    assert adapter.poll_events() == ()


def test_missing_fields_have_reasons_and_are_not_zero() -> None:
    readout = fake.open_adapter("1:na", clock=Clock()).read(FIRST, lane="fast")

    assert readout.unavailable["power_w"] == "[N/A] by scenario"
    assert "power_w" not in readout.reading.values
    assert readout.reading.throttle_reasons is None


@pytest.mark.parametrize("choice", ["", "x", "2:melted", "-1"])
def test_a_choice_that_is_none_is_a_usage_error(choice: str) -> None:
    with pytest.raises(UsageError, match="GPUPROOF_FAKE_DEVICES"):
        fake.open_adapter(choice)


def _recording(path: Path) -> Path:
    device = DeviceIdentity(
        physical_index=6,
        vendor="nvidia",
        vendor_index=0,
        framework_index=None,
        uuid="GPU-6",
        pci_bus_id="0000:06:00.0",
        name="Recorded GPU",
    )
    journal = Journal(path)
    records = [
        Recording(
            host="h",
            pid=1,
            boot_id=None,
            gpuproof_version="0",
            unix_s=0,
            monotonic_s=50,
            fast_interval_s=1,
            slow_interval_s=5,
            devices=(device,),
            host_facts={},
        ),
        Counters(monotonic_s=50, at="start", devices={"6": {"pcie_replay_count": 4}}),
        _sample(51, {"power_w": 300, "pcie_gen": 5}),
        _sample(53, {"power_w": 350}),
        UnavailableMetrics(monotonic_s=53, physical_index=6, reasons={"temp_gpu_c": "sensor failed"}),
        DriverEvent(monotonic_s=54, physical_index=6, event="xid", code=31, message="XID 31"),
    ]
    for record in records:
        journal.append(record)
    journal.close()
    return path


def _sample(second: float, values: dict[str, float]) -> Sample:
    reading = DeviceReading(values=values, throttle_reasons=("power_cap",))
    return Sample(monotonic_s=second, unix_s=0, lane="fast", devices={"6": reading}, host={})


def test_a_recording_plays_back_at_its_own_pace(tmp_path: Path) -> None:
    clock = Clock()
    adapter = replay.open_adapter(_recording(tmp_path / "r.jsonl"), clock=clock)

    seen = []
    for elapsed_s in (0, 1.5, 3.5):
        clock.now_s = 100 + elapsed_s
        seen.append(adapter.read(FIRST, lane="fast"))
    events = adapter.poll_events()
    clock.now_s = 104
    later = adapter.poll_events()
    slow = adapter.read(FIRST, lane="slow")

    assert [readout.reading.values for readout in seen] == [{}, {"power_w": 300}, {"power_w": 350}]
    assert seen[2].unavailable["temp_gpu_c"] == "sensor failed"
    assert slow.reading.values == {"pcie_gen": 5, "pcie_replay_count": 4}
    assert events == ()
    assert later == (VendorEvent(vendor_index=FIRST, event="xid", code=31, message="XID 31"),)
    assert adapter.identities()[0].static["recorded_vendor"] == "nvidia"
    clock.now_s = 104.5
    with pytest.raises(DeviceLostError, match="over"):
        adapter.read(FIRST, lane="fast")


def test_a_replay_keeps_names_but_never_claims_to_be_the_vendor(tmp_path: Path) -> None:
    devices = open_devices({"GPUPROOF_REPLAY_DEVICES": str(_recording(tmp_path / "r.jsonl"))})

    (identity,) = devices.identities
    devices.close()

    assert (identity.vendor, identity.uuid, identity.framework_index) == ("replay", "GPU-6", 0)


@pytest.mark.parametrize("content", [None, "", "not JSON\n"])
def test_a_file_that_is_no_recording_is_a_usage_error(tmp_path: Path, content: str | None) -> None:
    path = tmp_path / "r.jsonl"
    if content is not None:
        path.write_text(content)

    with pytest.raises(UsageError, match="GPUPROOF_REPLAY_DEVICES"):
        replay.open_adapter(path)


def test_all_vendors_of_a_host_are_numbered_together_by_pci_address(tmp_path: Path) -> None:
    sysfs_trees.w7900(tmp_path, number=1, pci="0000:83:00.0")
    sysfs_trees.arc_xe(tmp_path, number=0)  # 0000:05:00.0
    sysfs_trees.i915(tmp_path, number=2)  # 0000:00:02.0
    devices = open_devices({}, sysfs_root=tmp_path)

    for identity in devices.identities:
        assert identity.static.keys() | identity.unavailable.keys() >= set(names(kind="static"))
        assert not identity.static.keys() & identity.unavailable.keys()
    found = [(d.physical_index, d.vendor, d.vendor_index, d.framework_index) for d in devices.identities]
    readings = devices.read("fast")
    devices.close()

    assert found == [(0, "intel", 2, None), (1, "intel", 0, None), (2, "amd", 1, 0)]
    assert readings[PhysicalIndex(2)].reading.values["power_w"] == 164
    assert readings[PhysicalIndex(0)].reading.values["temp_gpu_c"] == 48


def test_a_host_without_devices_is_described_by_reasons(tmp_path: Path) -> None:
    described = describe_devices({}, sysfs_root=tmp_path)

    assert described["devices"] == []
    assert described["absent"].keys() == {"nvidia", "amd", "intel"}
    assert all(described["absent"].values())


def test_a_description_is_json_with_facts_and_reasons() -> None:
    described = json.loads(json.dumps(describe_devices({"GPUPROOF_FAKE_DEVICES": "2:mig"})))

    assert [device["physical_index"] for device in described["devices"]] == [0, 1, 2, 3]
    assert described["devices"][0]["static"]["power_limit_w"] == 300
    assert described["drivers"] == {"fake": {"version": "fake"}}
    assert described["devices"][3]["static"]["mig_parent_uuid"] == "FAKE-0001"
    assert math.isclose(described["devices"][3]["static"]["mem_total_bytes"], 8 * 2**30)

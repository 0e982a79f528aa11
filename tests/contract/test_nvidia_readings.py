"""NVIDIA readings through the real binding and a fake driver: each number is the one the driver was told."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from fakes import nvml_library
from gpuproof.devices.base import (
    DeviceLostError,
    DeviceProcess,
    DriverMissingError,
    VendorEvent,
)
from gpuproof.devices.discovery import open_devices
from gpuproof.devices.guard import GuardedDevices
from gpuproof.devices.nvidia import adapter as nvidia
from gpuproof.devices.other_processes import most_users, other_users
from gpuproof.records.metrics import names
from gpuproof.records.readings import PhysicalIndex, VendorIndex
from gpuproof.records.run import DeviceSharing
from standing_clock import stop_clock
from waiting import PATIENCE_S, eventually

GPU_0, GPU_1 = VendorIndex(0), VendorIndex(1)
UUID_0 = "GPU-00000000-aaaa-bbbb-cccc-000000000000"

FAST = {
    "util_gpu_percent": 87,
    "util_mem_ctrl_percent": 41,
    "mem_used_bytes": 3_221_225_472,
    "mem_reserved_bytes": 536_870_912,
    "power_w": 431.25,
    "power_instant_w": 455.5,
    "temp_gpu_c": 64,
    "temp_mem_c": 71,
    "clock_sm_mhz": 1755,
    "clock_mem_mhz": 2619,
    "pstate_level": 0,
    "energy_j": 9876.543,
}
SLOW = {
    "power_limit_w": 650,
    "fan_percent": 33,
    "pcie_gen": 5,
    "pcie_width": 16,
    "temp_margin_c": 25,
    "nvlink_links_active": 3,
    "remapped_rows_pending": 1,
    "remapped_rows_failed": 0,
    "pcie_tx_bytes": 123_456_789,
    "pcie_rx_bytes": 987_654_321,
    "pcie_replay_count": 7,
    "nvlink_tx_bytes": 2_097_152,
    "nvlink_rx_bytes": 1_048_576,
    "nvlink_crc_flit_error_count": 2,
    "nvlink_crc_data_error_count": 9,
    "nvlink_replay_count": 8,
    "nvlink_recovery_count": 6,
    "ecc_corrected_count": 12,
    "ecc_uncorrected_count": 1,
    "remapped_rows_corrected_count": 2,
    "remapped_rows_uncorrected_count": 3,
    "retired_pages_corrected_count": 4,
    "retired_pages_uncorrected_count": 5,
    "retired_pages_pending": 1,
    "throttle_time_power_cap_s": 8,
    "throttle_time_thermal_s": 4,
    "throttle_time_sync_boost_s": 1,
    "throttle_time_board_limit_s": 0.25,
    "throttle_time_idle_s": 0.125,
    "throttle_time_reliability_s": 0.0625,
    "throttle_time_thermal_software_s": 2.5,
    "throttle_time_thermal_hardware_s": 1.5,
    "throttle_time_power_brake_s": 0.5,
}
GPM = {
    "sm_active_percent": 91.5,
    "sm_occupancy_percent": 55.25,
    "tensor_active_percent": 48.5,
    "dram_active_percent": 62.75,
}
STATIC = {
    "driver_version": "999.42",
    "cuda_version": "12.4",
    "mem_total_bytes": 85_899_345_920,
    "power_limit_w": 650,
    "power_limit_default_w": 700,
    "power_limit_min_w": 200,
    "power_limit_max_w": 710,
    "temp_shutdown_c": 97,
    "temp_slowdown_c": 92,
    "temp_mem_max_c": 105,
    "temp_max_c": 89,
    "clock_sm_max_mhz": 1980,
    "clock_mem_max_mhz": 2620,
    "clock_sm_application_mhz": 1965,
    "clock_mem_application_mhz": 2618,
    "pcie_gen_max": 6,
    "pcie_width_max": 32,
    "vbios_version": "96.00.00",
    "compute_capability": "9.0",
    "fabric_state": "in progress",
    "ecc_mode": "enabled",
    "mig_mode": "disabled",
    "persistence_mode": "enabled",
}


@pytest.mark.promise("S4.1", "S4.2")
def test_fast_lane_has_every_number_in_our_units(nvml: nvml_library.FakeNvml) -> None:
    readout = nvidia.open_adapter().read(GPU_0, lane="fast")

    assert readout.reading.values == pytest.approx(FAST)
    assert readout.reading.throttle_reasons == ("power_cap",)


def test_slow_lane_has_every_number_and_gpm_from_the_second_reading_on(nvml: nvml_library.FakeNvml) -> None:
    adapter = nvidia.open_adapter()

    first = adapter.read(GPU_0, lane="slow")
    second = adapter.read(GPU_0, lane="slow")

    assert first.reading.values == pytest.approx(SLOW)
    assert "first" in first.unavailable["sm_active_percent"]
    assert second.reading.values == pytest.approx(SLOW | GPM)


def test_a_mean_that_is_no_number_is_missing_with_its_reason(nvml: nvml_library.FakeNvml) -> None:
    """An H200's driver answers nan where two samples are too near each other: the last of a recording was."""
    nvml.update(g0_gpm2="nan")
    adapter = nvidia.open_adapter()
    adapter.read(GPU_0, lane="slow")
    readout = adapter.read(GPU_0, lane="slow")
    assert "sm_active_percent" not in readout.reading.values
    assert readout.unavailable["sm_active_percent"] == "the driver returned nan, which is not a number"
    assert readout.reading.values["sm_occupancy_percent"] == GPM["sm_occupancy_percent"]


def test_static_facts_and_identity(nvml: nvml_library.FakeNvml) -> None:
    device = nvidia.open_adapter().identities()[0]

    assert device.static == pytest.approx(STATIC)
    assert (device.name, device.uuid, device.pci_bus_id) == ("Fake NVML GPU", UUID_0, "0000:10:00.0")


def test_counters_are_all_running_totals_and_no_gauge(nvml: nvml_library.FakeNvml) -> None:
    values = nvidia.open_adapter().counters(GPU_1).reading.values

    totals = {name: value for name, value in (FAST | SLOW).items() if name in names(kind="counter")}
    assert values == pytest.approx(totals)


@pytest.mark.parametrize(
    ("code", "reason"),
    [(3, "not supported"), (4, "may not read"), (999, "NVML")],
)
@pytest.mark.promise("F4.2")
def test_one_refused_field_takes_no_other_with_it(
    nvml: nvml_library.FakeNvml, code: int, reason: str
) -> None:
    nvml.update(g0_util=f"!{code}", g0_field82=f"!{code}", g0_reasons=f"!{code}")

    readout = nvidia.open_adapter().read(GPU_0, lane="fast")

    absent = {"util_gpu_percent", "util_mem_ctrl_percent", "temp_mem_c"}
    kept = {name: value for name, value in FAST.items() if name not in absent}
    assert readout.reading.values == pytest.approx(kept)
    assert readout.reading.throttle_reasons is None
    assert {n for n, why in readout.unavailable.items() if reason in why} >= absent | {"throttle_reasons"}


def test_energy_and_replays_fall_back_on_the_older_calls(nvml: nvml_library.FakeNvml) -> None:
    nvml.update(g0_field83="!3", g0_energy=5_000, g0_field94="!3", g0_replay=9)
    adapter = nvidia.open_adapter()

    assert adapter.read(GPU_0, lane="fast").reading.values["energy_j"] == 5
    assert adapter.read(GPU_0, lane="slow").reading.values["pcie_replay_count"] == 9


def test_pcie_is_measured_only_where_no_field_counts_it(nvml: nvml_library.FakeNvml) -> None:
    adapter = nvidia.open_adapter()
    assert (
        adapter.read(GPU_0, lane="slow").unavailable["pcie_tx_bytes_per_s"]
        == "not supported: this GPU counts bytes instead"
    )

    nvml.update(g1_field197="!3", g1_field198="!3")
    values = adapter.read(GPU_1, lane="slow").reading.values
    assert (values["pcie_tx_bytes_per_s"], values["pcie_rx_bytes_per_s"]) == (12.5e9, 2.25e6)
    assert not {"pcie_tx_bytes", "pcie_rx_bytes"} & values.keys()


def test_an_older_binding_without_the_new_names_reads_the_same(
    nvml: nvml_library.FakeNvml, monkeypatch: pytest.MonkeyPatch
) -> None:
    pynvml = pytest.importorskip("pynvml")
    for name in ("nvmlDeviceGetTemperatureV", "nvmlDeviceGetCurrentClocksEventReasons"):
        monkeypatch.delattr(pynvml, name)
    monkeypatch.delattr(pynvml, "nvmlDeviceGetMarginTemperature")
    adapter = nvidia.open_adapter()

    fast, slow = adapter.read(GPU_0, lane="fast"), adapter.read(GPU_0, lane="slow")

    assert fast.reading.values == pytest.approx(FAST)
    assert fast.reading.throttle_reasons == ("power_cap",)
    assert "nvidia-ml-py is too old" in slow.unavailable["temp_margin_c"]


_PRINT_READINGS = """
import json, os
from gpuproof.devices.nvidia import adapter as nvidia
adapter = nvidia.open_adapter()
fast = adapter.read(0, lane="fast")
slow = adapter.read(0, lane="slow")
missing = [dict(fast.unavailable), dict(slow.unavailable)]
print(json.dumps([fast.reading.values, fast.reading.throttle_reasons, *missing]))
"""


def _run(script: str, env: dict[str, str]) -> Any:
    process = subprocess.run(
        [sys.executable, "-c", script], env=os.environ | env, capture_output=True, text=True, timeout=300
    )
    assert process.stderr == ""
    return json.loads(process.stdout)


def test_an_older_driver_found_by_its_soname_reads_through_the_older_calls(tmp_path: Path) -> None:
    pytest.importorskip("pynvml")
    nvml_library.build(tmp_path, old_driver=True)
    answers = nvml_library.text({"s.gpus": 1} | nvml_library.gpu(0))

    values, reasons, fast_missing, slow_missing = _run(
        _PRINT_READINGS, {"LD_LIBRARY_PATH": str(tmp_path), "FAKE_NVML_VALUES": answers}
    )

    used_with_reserved = 3_221_225_472 + 536_870_912
    expected = FAST | {"mem_used_bytes": used_with_reserved}
    del expected["mem_reserved_bytes"]
    assert values == pytest.approx(expected)
    assert reasons == ["power_cap"]
    assert fast_missing["mem_reserved_bytes"] == "this driver counts it as used memory"
    assert "too old" in slow_missing["temp_margin_c"]


_PRINT_ABSENT = """
import json
from gpuproof.devices.discovery import open_devices
devices = open_devices({})
print(json.dumps([len(devices.identities), devices.absent["nvidia"]]))
"""


def test_without_the_library_there_is_no_device_but_a_reason(tmp_path: Path) -> None:
    pytest.importorskip("pynvml")
    (tmp_path / "libnvidia-ml.so.1").write_text("not a library")

    count, reason = _run(_PRINT_ABSENT, {"LD_LIBRARY_PATH": str(tmp_path)})

    assert count == 0
    assert reason == "libnvidia-ml.so.1 is not installed"


def test_without_the_binding_there_is_no_device_but_a_reason(tmp_path: Path) -> None:
    hide = "import sys; sys.modules['pynvml'] = None\n"

    count, reason = _run(hide + _PRINT_ABSENT, {})

    assert count == 0
    assert "nvidia-ml-py is not installed" in reason


def test_without_the_kernel_driver_the_reason_says_so(nvml: nvml_library.FakeNvml) -> None:
    nvml.remove("s.gpus")

    with pytest.raises(DriverMissingError, match="kernel driver is not loaded"):
        nvidia.open_adapter()


def test_a_jetson_is_refused_with_its_reason(nvml: nvml_library.FakeNvml, tmp_path: Path) -> None:
    nvml.set({})
    tree = tmp_path / "firmware/devicetree/base"
    tree.mkdir(parents=True)
    (tree / "compatible").write_bytes(b"nvidia,p3737-0000+p3701-0000\0nvidia,tegra234\0")
    assert open_devices({}, sysfs_root=tmp_path).absent["nvidia"] == nvidia.JETSON

    (tree / "compatible").write_bytes(b"raspberrypi,5-model-b\0")
    assert "Jetson" not in open_devices({}, sysfs_root=tmp_path).absent["nvidia"]


def test_mig_instances_follow_their_gpu_and_have_memory_and_processes_only(
    nvml: nvml_library.FakeNvml,
) -> None:
    nvml.update(g1_mig=1, g1_mig_max=7, g1_mig_count=2, g1_util="!3")
    nvml.update(g18_mem_total=1000, g18_mem_used=400, g18_mem_reserved=50, g18_gi=3, g18_ci=0)
    nvml.update(g19_mem_total=1000, g19_mem_used=500, g19_mem_reserved=50, g19_gi=4, g19_ci=1)
    env = {"CUDA_VISIBLE_DEVICES": "MIG-00000019"}
    devices = open_devices(env)

    identities = devices.identities
    readings = devices.read("fast")
    devices.close()

    assert [d.uuid for d in identities][2:] == ["MIG-00000018-aaaa", "MIG-00000019-aaaa"]
    assert [d.framework_index for d in identities] == [None, None, None, 0]
    assert identities[3].static["mig_gpu_instance_id"] == 4
    assert identities[3].static["mig_parent_uuid"] == identities[1].uuid
    assert readings[PhysicalIndex(3)].reading.values == {"mem_used_bytes": 500, "mem_reserved_bytes": 50}
    assert "whole GPU" in readings[PhysicalIndex(3)].unavailable["power_w"]
    assert "util_gpu_percent" not in readings[PhysicalIndex(1)].reading.values
    assert readings[PhysicalIndex(1)].reading.values["power_w"] == 431.25


def test_xid_and_uncorrected_errors_are_announced_once_for_their_gpu(nvml: nvml_library.FakeNvml) -> None:
    adapter = nvidia.open_adapter()
    nvml.push_event(1, 0x8, 79)
    nvml.push_event(0, 0x2, 0)

    assert adapter.poll_events() == (
        VendorEvent(vendor_index=GPU_1, event="xid", code=79, message="XID 79"),
        VendorEvent(
            vendor_index=GPU_0,
            event="ecc_uncorrected",
            code=None,
            message="a memory error that ECC could not correct",
        ),
    )
    assert adapter.poll_events() == ()


def test_processes_have_pid_and_memory_or_none(nvml: nvml_library.FakeNvml) -> None:
    nvml.remove("0.compute_mem1")
    nvml.update(g0_graphics=1, g0_graphics_pid0=99, g0_graphics_mem0=5)

    assert nvidia.open_adapter().processes(GPU_0) == (
        DeviceProcess(pid=4242, mem_used_bytes=2_147_483_648, kind="compute"),
        DeviceProcess(pid=4343, mem_used_bytes=None, kind="compute"),
        DeviceProcess(pid=99, mem_used_bytes=5, kind="graphics"),
    )


def test_a_driver_reloaded_in_mid_run_is_opened_again(nvml: nvml_library.FakeNvml) -> None:
    adapter = nvidia.open_adapter()
    nvml.update(g0_util="!3")
    assert "util_gpu_percent" in adapter.read(GPU_0, lane="fast").unavailable

    nvml.reload()
    nvml.update(g0_util=12)

    assert adapter.read(GPU_0, lane="fast").reading.values["util_gpu_percent"] == 12
    nvml.push_event(0, 0x8, 31)
    assert adapter.poll_events()[0].code == 31


def test_a_driver_that_is_gone_gives_reasons_until_it_is_back(nvml: nvml_library.FakeNvml) -> None:
    devices = open_devices({})
    nvml.reload()
    nvml.remove("s.gpus")

    gone = devices.read("fast")[PhysicalIndex(0)]
    nvml.set({"s.gpus": 2} | nvml_library.gpu(0) | nvml_library.gpu(1))
    back = devices.read("fast")[PhysicalIndex(0)]
    events = [event.event for event in devices.poll_events() if event.physical_index == 0]
    devices.close()

    assert gone.reading.values == {}
    assert set(gone.unavailable.values()) == {"the NVIDIA kernel driver is not loaded"}
    assert back.reading.values == pytest.approx(FAST)
    assert events == ["unreadable", "recovered"]


def _wait_until_answering(devices: GuardedDevices, index: PhysicalIndex) -> Mapping[str, float]:
    """Read until the hanging call has returned."""
    return eventually("an answer of the device", lambda: devices.read("fast")[index].reading.values)


def test_a_hanging_driver_call_stops_its_device_only_until_it_returns(
    nvml: nvml_library.FakeNvml, monkeypatch: pytest.MonkeyPatch
) -> None:
    stop_clock(monkeypatch, nvml.hangs)
    devices = open_devices({}, deadline_s=0.2, open_deadline_s=PATIENCE_S)
    nvml.update(g0_power="~")

    first, again = devices.read("fast"), devices.read("fast")
    nvml.update(g0_power=431_250)
    recovered = _wait_until_answering(devices, PhysicalIndex(0))
    events = [(event.physical_index, event.event) for event in devices.poll_events()]
    devices.close()

    for readings in (first, again):
        assert readings[PhysicalIndex(0)].reading.values == {}
        assert "did not return within 0.2 s" in readings[PhysicalIndex(0)].unavailable["power_w"]
        assert readings[PhysicalIndex(1)].reading.values["power_w"] == 431.25
    assert recovered == pytest.approx(FAST)
    assert events == [(0, "hung"), (0, "recovered")]


def test_physical_order_is_by_pci_address_and_the_framework_index_is_looked_up(
    nvml: nvml_library.FakeNvml,
) -> None:
    nvml.update(g0_pci_bus=0xC1, g1_pci_bus=0x0A)
    devices = open_devices({"CUDA_VISIBLE_DEVICES": UUID_0[:12]})

    first, second = devices.identities
    devices.close()

    assert (first.pci_bus_id, first.physical_index, first.vendor_index) == ("0000:0a:00.0", 0, 1)
    assert (second.pci_bus_id, second.physical_index, second.vendor_index) == ("0000:c1:00.0", 1, 0)
    assert (first.framework_index, second.framework_index) == (None, 0)
    assert "CUDA_VISIBLE_DEVICES" in first.unavailable["framework_index"]


@pytest.mark.parametrize("uuid", [UUID_0, UUID_0.removeprefix("GPU-")])
def test_neighbours_are_those_that_are_not_ours(nvml: nvml_library.FakeNvml, uuid: str) -> None:
    neighbours = other_users(uuid, our_pids=[4343])

    assert neighbours == DeviceSharing(other_processes=1, other_memory_bytes=2_147_483_648, missing=None)


def test_a_display_server_is_named_apart_and_is_no_neighbour(
    nvml: nvml_library.FakeNvml, tmp_path: Path
) -> None:
    for pid, name in ((4242, "Xorg"), (4343, "python")):
        (tmp_path / str(pid)).mkdir()
        (tmp_path / str(pid) / "comm").write_text(f"{name}\n")

    neighbours = other_users(UUID_0, our_pids=[4343], proc=tmp_path)

    assert neighbours == DeviceSharing(
        other_processes=0, other_memory_bytes=0, missing=None, display_servers=("Xorg",)
    )
    assert other_users(UUID_0, our_pids=[4343], proc=tmp_path / "gone").other_processes == 1


def test_neighbours_are_unknown_where_the_driver_does_not_list_ourselves(
    nvml: nvml_library.FakeNvml,
) -> None:
    neighbours = other_users(UUID_0, our_pids=[1])

    assert (neighbours.other_processes, neighbours.other_memory_bytes) == (None, None)
    assert "PID namespace" in (neighbours.missing or "")


def test_neighbours_with_untold_memory_are_counted_and_not_weighed(nvml: nvml_library.FakeNvml) -> None:
    nvml.remove("0.compute_mem0")

    neighbours = other_users(UUID_0, our_pids=[4343])

    assert (neighbours.other_processes, neighbours.other_memory_bytes) == (1, None)
    assert neighbours.missing == "the driver does not report the memory of every process"


def test_neighbours_are_unknown_without_a_driver(nvml: nvml_library.FakeNvml) -> None:
    nvml.remove("s.gpus")

    assert other_users(UUID_0, our_pids=[]).missing == "the NVIDIA kernel driver is not loaded"
    assert other_users(None, our_pids=[]).missing == "the device has no UUID"


def test_a_gpu_that_is_lost_from_the_start_is_listed_with_reasons(nvml: nvml_library.FakeNvml) -> None:
    nvml.update(g1_all="!15")
    devices = open_devices({})

    lost = next(device for device in devices.identities if device.vendor_index == 1)
    readings = devices.read("slow")
    devices.close()

    assert (lost.name, lost.uuid, lost.pci_bus_id) == ("NVIDIA GPU 1", None, None)
    assert "the GPU is lost" in lost.unavailable["uuid"]
    assert "the GPU is lost" in lost.unavailable["mem_total_bytes"]
    assert readings[PhysicalIndex(0)].reading.values == pytest.approx(FAST | SLOW)
    assert readings[PhysicalIndex(1)].reading.values == {}


def test_a_gpu_without_nvlink_gpm_fans_or_pstate_says_so(nvml: nvml_library.FakeNvml) -> None:
    nvml.update(g0_link0="!3", g0_link1="!3", g0_link2="!3", g0_link3="!3")
    nvml.update(g0_gpm=0, g0_fan="!3", g0_pstate=32, g0_field138="!3", g0_power="!3")
    adapter = nvidia.open_adapter()

    fast, slow = adapter.read(GPU_0, lane="fast"), adapter.read(GPU_0, lane="slow")

    for name in ("nvlink_links_active", "sm_active_percent", "fan_percent", "nvlink_tx_bytes"):
        assert slow.unavailable[name] == "not supported by this device or its current mode"
    assert fast.unavailable["pstate_level"] == "the driver does not know it"
    assert "power_w" not in fast.reading.values


def test_a_gpu_lost_while_its_links_are_counted_is_lost(nvml: nvml_library.FakeNvml) -> None:
    nvml.update(g0_link2="!15")

    with pytest.raises(DeviceLostError):
        nvidia.open_adapter().read(GPU_0, lane="slow")


def test_of_a_driver_without_events_no_gpu_is_heard_and_the_reason_is_told(
    nvml: nvml_library.FakeNvml,
) -> None:
    nvml.update(g0_event_types="!3", g1_event_types="!3")
    devices = open_devices({})
    assert devices.poll_events() == ()
    refused = "not supported by this device or its current mode"
    assert devices.events_unavailable == {0: refused, 1: refused}
    devices.close()


@pytest.mark.parametrize(
    ("offered", "reason"),
    [
        ("!3", "not supported by this device or its current mode"),
        (0x2, "not supported: the driver does not report XIDs for this GPU"),
        (0x1F, None),
    ],
)
def test_one_gpu_that_cannot_be_heard_is_told_beside_others_that_are(
    offered: object, reason: str | None, nvml: nvml_library.FakeNvml
) -> None:
    nvml.update(g1_event_types=offered)
    devices = open_devices({})
    nvml.push_event(0, 0x8, 43)
    heard = [(event.physical_index, event.code) for event in devices.poll_events()]
    devices.close()
    assert heard == [(0, 43)]
    assert devices.events_unavailable == ({} if reason is None else {1: reason})


def test_of_a_gpu_that_cannot_be_heard_no_mig_instance_can(nvml: nvml_library.FakeNvml) -> None:
    nvml.update(g1_mig=1, g1_mig_max=7, g1_mig_count=2, g1_event_types="!3")
    devices = open_devices({})
    devices.poll_events()
    devices.close()
    assert sorted(devices.events_unavailable) == [1, 2, 3]


def test_a_driver_that_lists_no_gpu_is_absent_with_that_reason(nvml: nvml_library.FakeNvml) -> None:
    nvml.set({"s.gpus": 0})

    assert open_devices({}).absent["nvidia"] == "the NVIDIA driver lists no GPU"


@pytest.mark.parametrize(
    ("bits", "reasons"),
    [
        (0x0, ()),
        (0x1, ("idle",)),
        (0x2, ("application_clocks",)),
        (0x4, ("power_cap",)),
        (0x8, ("hardware_slowdown",)),
        (0x10, ("sync_boost",)),
        (0x20, ("thermal_software",)),
        (0x40, ("thermal_hardware",)),
        (0x80, ("power_brake",)),
        (0x100, ("display_clocks",)),
        (0x200, ("board_limit",)),
        (0x400, ("reliability",)),
        (0x48, ("hardware_slowdown", "thermal_hardware")),
        (0x10004, ("power_cap", "other")),
    ],
)
def test_every_clock_event_bit_has_its_name(
    nvml: nvml_library.FakeNvml, bits: int, reasons: tuple[str, ...]
) -> None:
    nvml.update(g0_reasons=bits)

    assert nvidia.open_adapter().read(GPU_0, lane="fast").reading.throttle_reasons == reasons


def test_a_board_that_wires_some_links_only_counts_those(nvml: nvml_library.FakeNvml) -> None:
    nvml.update(g0_link0="!3", g0_field91=6, g0_link5=1, g0_link6=1)  # link 6 is past the GPU's six

    slow = nvidia.open_adapter().read(GPU_0, lane="slow")

    assert slow.reading.values["nvlink_links_active"] == 3


def test_gpm_that_is_refused_for_a_while_comes_back(nvml: nvml_library.FakeNvml) -> None:
    nvml.update(g0_gpm_sample="!4")
    adapter = nvidia.open_adapter()

    refused = adapter.read(GPU_0, lane="slow")
    nvml.remove("0.gpm_sample")
    adapter.read(GPU_0, lane="slow")
    measured = adapter.read(GPU_0, lane="slow")

    assert refused.unavailable["sm_active_percent"] == "this user may not read it"
    assert measured.reading.values == pytest.approx(SLOW | GPM)


def test_a_driver_that_hangs_while_it_is_opened_leaves_its_vendor_absent(
    nvml: nvml_library.FakeNvml,
) -> None:
    nvml.update(g1_all="~")

    devices = open_devices({}, open_deadline_s=0.2)
    nvml.update(g1_all=0)
    devices.close()

    assert devices.identities == ()
    assert devices.absent["nvidia"].endswith("UTC: the call to open its driver has not returned")


def test_neighbours_are_unknown_while_the_driver_hangs(nvml: nvml_library.FakeNvml) -> None:
    nvml.update(g0_compute="~")

    neighbours = other_users(UUID_0, our_pids=[4343], deadline_s=0.2)
    nvml.update(g0_compute=0)

    assert neighbours.other_processes is None
    assert "did not return within 0.2 s" in (neighbours.missing or "")


def test_neighbours_on_a_mig_instance_and_on_a_device_that_is_not_there(nvml: nvml_library.FakeNvml) -> None:
    nvml.update(g18_compute=1, g18_compute_pid0=55, g18_compute_mem0=7, g18_graphics=0)

    for uuid in ("MIG-00000018-aaaa", "00000018-aaaa", "GPU-00000018-aaaa"):
        assert other_users(uuid, our_pids=[]).other_memory_bytes == 7
    assert other_users("unheard-of", our_pids=[]).missing == "the driver does not know this device"


@pytest.mark.parametrize(
    ("begin", "end", "expected"),
    [(0, 2, 2), (2, 0, 2), (1, 1, 1), (None, 0, 0), (1, None, 1), (None, None, None)],
)
def test_users_at_either_end_of_a_window_are_its_neighbours(
    begin: int | None, end: int | None, expected: int | None
) -> None:
    def seen(others: int | None) -> DeviceSharing:
        return DeviceSharing(
            other_processes=others, other_memory_bytes=others, missing="why" if others is None else None
        )

    assert most_users(seen(begin), seen(end)) == seen(expected)

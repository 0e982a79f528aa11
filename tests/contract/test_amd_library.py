"""AMD's library through the real Python package and a fake libamd_smi.so, number by number.

Card 0 of the fake library sits at 0000:83:00.0, card 1 at 0000:05:00.0.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from fakes import amdsmi_library, sysfs_trees
from gpuproof.devices import amd, amd_smi
from gpuproof.devices.amd import AmdAdapter
from gpuproof.devices.base import (
    DeviceError,
    DeviceProcess,
    DriverMissingError,
    LibraryMissingError,
    NotSupportedError,
    VendorEvent,
)
from gpuproof.devices.discovery import open_devices
from gpuproof.records.metrics import names
from gpuproof.records.readings import PhysicalIndex, VendorIndex

BARE, W7900, MI300 = VendorIndex(4), VendorIndex(1), VendorIndex(9)

# What a card gives whose directory under /sys holds nothing but its address.
FAST = {
    "util_gpu_percent": 83,
    "util_mem_ctrl_percent": 44,
    "mem_used_bytes": 1_073_741_824,  # 1,024 MiB
    "power_w": 655,
    "power_instant_w": 702,
    "temp_gpu_c": 41,
    "temp_hotspot_c": 62,
    "temp_mem_c": 57,
    "clock_sm_mhz": 2101,
    "clock_mem_mhz": 1301,
    "energy_j": 15.25,  # 1,000,000 × 15.25 µJ
}
SLOW = {
    "power_limit_w": 750,
    "pcie_gen": 4,
    "pcie_width": 8,
    "pcie_replay_count": 6,
    "nvlink_links_active": 2,
    "nvlink_tx_bytes": 30_720,  # (10 + 20) KB on xGMI; the third link is PCIe
    "nvlink_rx_bytes": 3_072_000,
    "ecc_corrected_count": 21,
    "ecc_uncorrected_count": 2,
    "remapped_rows_pending": 1,
    "remapped_rows_failed": 0,
    "remapped_rows_uncorrected_count": 3,
    "throttle_time_hardware_slowdown_s": 0,
    "throttle_time_power_cap_s": 0,
    "throttle_time_thermal_hardware_s": 0,
    "throttle_time_voltage_regulator_s": 0,
    "throttle_time_thermal_memory_s": 0,
}
STATIC = {
    "mem_total_bytes": 206_141_652_992,  # 196,592 MiB
    "power_limit_w": 750,
    "power_limit_default_w": 760,
    "power_limit_min_w": 0,
    "power_limit_max_w": 770,
    "temp_slowdown_c": 101,
    "temp_shutdown_c": 106,
    "temp_mem_max_c": 95,
    "clock_sm_max_mhz": 2100,
    "clock_sm_min_mhz": 132,
    "clock_mem_max_mhz": 1300,
    "pcie_gen_max": 5,
    "pcie_width_max": 16,
    "compute_units": 304,
    "gfx_target": "gfx942",
    "oam_id": 5,
    "hip_id": 3,
    "kfd_node": 7,
    "driver_version": "6.12.12",
    "smi_uuid": "11ff74a1-0000-1000-80a5-123456789abc",
}


def _open(root: Path) -> AmdAdapter:
    return amd.open_adapter(root, open_library=amd_smi.open_library)


@pytest.fixture
def bare(tmp_path: Path) -> Path:
    sysfs_trees.card(tmp_path, 4, "amdgpu", "0000:83:00.0")
    return tmp_path


def test_a_card_without_files_is_read_through_the_library(
    amdsmi: amdsmi_library.FakeAmdSmi, bare: Path
) -> None:
    adapter = _open(bare)

    fast, slow = adapter.read(BARE, lane="fast"), adapter.read(BARE, lane="slow")

    assert fast.reading.values == pytest.approx(FAST)
    assert slow.reading.values == pytest.approx(SLOW)
    assert "no pwm1" in slow.unavailable["fan_percent"] or "hwmon" in slow.unavailable["fan_percent"]


def test_identity_and_static_facts_through_the_library(amdsmi: amdsmi_library.FakeAmdSmi, bare: Path) -> None:
    device = _open(bare).identities()[0]

    assert (device.name, device.uuid) == ("Fake Instinct", "GPU-0011223344556600")
    assert device.static == pytest.approx(STATIC)
    assert not device.unavailable


def test_counters_are_every_running_total_and_no_gauge(amdsmi: amdsmi_library.FakeAmdSmi, bare: Path) -> None:
    values = _open(bare).counters(BARE).reading.values

    totals = {name: value for name, value in (FAST | SLOW).items() if name in names(kind="counter")}
    assert values == pytest.approx(totals)


def test_the_files_come_first_and_the_library_fills_what_they_leave(
    amdsmi: amdsmi_library.FakeAmdSmi, tmp_path: Path
) -> None:
    sysfs_trees.w7900(tmp_path, number=1)  # at 0000:83:00.0
    adapter = _open(tmp_path)

    fast, slow = adapter.read(W7900, lane="fast"), adapter.read(W7900, lane="slow")
    device = adapter.identities()[0]

    of_files = {
        "util_gpu_percent": 95,
        "util_mem_ctrl_percent": 37,
        "mem_used_bytes": 12_884_901_888,
        "mem_host_mapped_bytes": 67_108_864,
        "power_w": 164,
        "temp_gpu_c": 37,
        "temp_hotspot_c": 52,
        "temp_mem_c": 60,
        "clock_sm_mhz": 1750,
        "clock_mem_mhz": 1124,
    }
    assert fast.reading.values == pytest.approx(of_files | {"power_instant_w": 702, "energy_j": 15.25})
    assert fast.reading.throttle_reasons == ("power_cap",)
    assert slow.reading.values == pytest.approx(
        {
            "power_limit_w": 241,
            "fan_percent": 20,
            "fan_rpm": 1520,
            "pcie_gen": 4,
            "pcie_width": 16,
            "pcie_replay_count": 3,
            "ecc_corrected_count": 14,
            "ecc_uncorrected_count": 1,
        }
        | {name: value for name, value in SLOW.items() if name.startswith(("nvlink", "remapped"))}
    )
    assert (device.name, device.uuid) == ("AMD Radeon PRO W7900", "GPU-0a1b2c3d4e5f6071")
    assert device.static["mem_total_bytes"] == 48_301_604_864


def test_cards_are_matched_by_pci_address_and_not_by_order(
    amdsmi: amdsmi_library.FakeAmdSmi, tmp_path: Path
) -> None:
    for number, pci in ((1, "0000:05:00.0"), (2, "0000:83:00.0"), (3, "0000:aa:00.0")):
        sysfs_trees.card(tmp_path, number, "amdgpu", pci)
    amdsmi.update(g0_gfx=11, g1_gfx=22)
    adapter = _open(tmp_path)

    readings = [adapter.read(VendorIndex(number), lane="fast") for number in (1, 2, 3)]

    assert [r.reading.values.get("util_gpu_percent") for r in readings] == [22, 11, None]
    assert "AMD's library does not list this card" in readings[2].unavailable["util_gpu_percent"]


def test_a_firmware_table_unknown_here_is_read_by_the_library(
    amdsmi: amdsmi_library.FakeAmdSmi, bare: Path
) -> None:
    sysfs_trees.write(
        bare / "devices/pci0000:00/0000:83:00.0", {"gpu_metrics": b"\x80\x01\x01\x08" + bytes(380)}
    )
    adapter = _open(bare)
    first = adapter.read(BARE, lane="fast")
    # 2 s later: of 2,000 cycles, 500 at the power limit and 250 with hot memory
    amdsmi.update(g0_cycles=12_000, g0_ppt=1_000, g0_hbm_heat=250, g0_firmware_ticks=1_200_000_000)

    second = adapter.read(BARE, lane="fast")
    seconds = adapter.counters(BARE).reading.values

    assert first.reading.throttle_reasons is None
    assert "first" in first.unavailable["throttle_reasons"]
    assert second.reading.throttle_reasons == ("power_cap", "thermal_memory")
    assert seconds["throttle_time_power_cap_s"] == pytest.approx(0.5)
    assert seconds["throttle_time_thermal_memory_s"] == pytest.approx(0.25)
    assert seconds["throttle_time_thermal_hardware_s"] == 0


@pytest.mark.parametrize(
    ("code", "reason"),
    [
        (2, "amdsmi: not supported by this card or driver"),
        (10, "amdsmi: this user may not read it"),
        (40, "amdsmi: the library has no data for it"),
        (16, "amdsmi: error 16, AMDSMI_STATUS_INTERNAL_EXCEPTION"),
        (9, "amdsmi: error 9, AMDSMI_STATUS_RETRY"),
    ],
)
def test_a_refusal_takes_one_call_with_it_and_keeps_both_reasons(
    amdsmi: amdsmi_library.FakeAmdSmi, bare: Path, code: int, reason: str
) -> None:
    amdsmi.update(g0_gfx=f"!{code}", g0_energy=f"!{code}", g0_cycles=f"!{code}")

    readout = _open(bare).read(BARE, lane="fast")

    refused = {"util_gpu_percent", "util_mem_ctrl_percent", "energy_j"}
    assert readout.reading.values == pytest.approx(
        {name: value for name, value in FAST.items() if name not in refused}
    )
    for name in refused:
        assert readout.unavailable[name].endswith(reason)
    assert readout.unavailable["util_gpu_percent"].startswith("this card or kernel has no gpu_busy_percent;")
    assert readout.reading.throttle_reasons is None
    assert readout.unavailable["throttle_reasons"].endswith(reason)


@pytest.mark.parametrize(
    ("field", "metric"),
    [
        ("temp0_0", "temp_gpu_c"),
        ("gfx", "util_gpu_percent"),
        ("umc", "util_mem_ctrl_percent"),
        ("power_now", "power_instant_w"),
        ("vram_used", "mem_used_bytes"),
        ("temp1_0", "temp_hotspot_c"),
        ("clock0", "clock_sm_mhz"),
        ("energy", "energy_j"),
        ("cap", "power_limit_w"),
        ("pcie_speed", "pcie_gen"),
        ("pcie_width", "pcie_width"),
        ("ecc_uncorrected", "ecc_uncorrected_count"),
        ("link0_read", "nvlink_rx_bytes"),
    ],
)
def test_a_field_left_at_all_ones_is_absent_and_never_a_number(
    amdsmi: amdsmi_library.FakeAmdSmi, bare: Path, field: str, metric: str
) -> None:
    empty = 0xFFFF if field.startswith("temp") else 2**64 - 1  # temperatures come from 16-bit fields
    amdsmi.update(**{f"g0_{field}": empty})
    adapter = _open(bare)

    readouts = [adapter.read(BARE, lane="fast"), adapter.read(BARE, lane="slow")]

    assert all(metric not in readout.reading.values for readout in readouts)
    reasons = [readout.unavailable[metric] for readout in readouts if metric in readout.unavailable]
    assert len(reasons) == 1
    assert reasons[0].endswith("amdsmi: the library answers N/A")


@pytest.mark.parametrize(
    ("answers", "metric", "value"),
    [
        ({"g0_power_average": 0xFFFF}, "power_w", 702),  # as on MI300: the power of now only
        ({"g0_temp0_0": "!2"}, "temp_gpu_c", 62),  # no edge sensor: the junction
        ({"g0_pcie": "!2"}, "pcie_replay_count", 4),  # the older call
        ({"g0_pcie_replays": 2**64 - 1}, "pcie_replay_count", 4),
    ],
)
def test_a_second_source_is_asked_where_the_first_is_silent(
    amdsmi: amdsmi_library.FakeAmdSmi, bare: Path, answers: dict[str, object], metric: str, value: float
) -> None:
    amdsmi.update(**answers)
    adapter = _open(bare)

    for _ in range(2):  # the second time, a refusal for good is remembered
        values = (
            adapter.read(BARE, lane="fast").reading.values | adapter.read(BARE, lane="slow").reading.values
        )
        assert values[metric] == value


@pytest.mark.parametrize(
    ("answers", "metric", "reason"),
    [
        ({"g0_energy": 0}, "energy_j", "energy counter stands at 0"),
        ({"g0_energy_uj": 0}, "energy_j", "energy counter stands at 0"),
        ({"g0_pcie_speed": 7_000}, "pcie_gen", "pcie_speed is 7000 MT/s, not a known link speed"),
        ({"g0_links": 0}, "nvlink_tx_bytes", "this card has no xGMI link"),
        ({"g0_xgmi": 0}, "nvlink_links_active", "this card has no xGMI link"),
        ({"g0_cap": 0}, "power_limit_w", "the library answers N/A"),
    ],
)
def test_an_answer_that_is_no_reading_is_a_reason(
    amdsmi: amdsmi_library.FakeAmdSmi, bare: Path, answers: dict[str, object], metric: str, reason: str
) -> None:
    amdsmi.update(**answers)
    adapter = _open(bare)

    unavailable = {
        **adapter.read(BARE, lane="fast").unavailable,
        **adapter.read(BARE, lane="slow").unavailable,
    }

    assert reason in unavailable[metric]


def test_what_is_refused_for_good_is_asked_once_and_what_is_busy_again(
    amdsmi: amdsmi_library.FakeAmdSmi, bare: Path
) -> None:
    amdsmi.update(g0_gfx="!2", g0_power="!30")
    adapter = _open(bare)
    first = adapter.read(BARE, lane="fast")
    amdsmi.update(g0_gfx=50, g0_power=1)

    second = adapter.read(BARE, lane="fast")

    assert "the card is busy" in first.unavailable["power_w"]
    assert second.reading.values["power_w"] == 655
    assert "not supported" in second.unavailable["util_gpu_percent"]


def test_unknown_facts_keep_their_reason(amdsmi: amdsmi_library.FakeAmdSmi, bare: Path) -> None:
    amdsmi.update(g0_market_name="!2", g0_hip_id="!10")

    device = _open(bare).identities()[0]

    assert device.name == "AMD GPU unknown"
    assert device.uuid is None
    assert device.unavailable["uuid"] == "this card has no unique_id; amdsmi: this user may not read it"
    assert "hip_id" not in device.static
    assert device.static["kfd_node"] == 7


def test_an_answer_that_the_binding_cannot_read_is_a_reason(
    amdsmi: amdsmi_library.FakeAmdSmi, bare: Path
) -> None:
    amdsmi.update(g0_serial="not hexadecimal")  # the binding makes a number of it

    device = _open(bare).identities()[0]

    assert device.name == "AMD GPU unknown"
    assert device.static["hip_id"] == 3


def test_a_function_that_an_older_package_lacks_is_a_reason(
    amdsmi: amdsmi_library.FakeAmdSmi, bare: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delattr("amdsmi.amdsmi_get_link_metrics")

    readout = _open(bare).read(BARE, lane="slow")

    assert readout.unavailable["nvlink_tx_bytes"].endswith(
        "amdsmi: this amdsmi is too old to offer amdsmi_get_link_metrics"
    )
    assert readout.reading.values["nvlink_links_active"] == 2


def test_processes_where_the_kernel_lists_none_for_the_card(
    amdsmi: amdsmi_library.FakeAmdSmi, bare: Path
) -> None:
    amdsmi.update(g0_processes=3, g0_process2_pid=os.getpid(), g0_process2_vram=4096)
    adapter = _open(bare)

    assert adapter.processes(BARE) == (
        DeviceProcess(pid=4242, mem_used_bytes=2_147_483_648, kind="compute"),
        DeviceProcess(pid=4343, mem_used_bytes=None, kind="compute"),
    )
    amdsmi.update(g0_processes="!10")
    with pytest.raises(NotSupportedError, match=r"no KFD node.*amdsmi: this user may not read it"):
        adapter.processes(BARE)


def test_events_of_every_card_in_their_order(amdsmi: amdsmi_library.FakeAmdSmi, tmp_path: Path) -> None:
    sysfs_trees.w7900(tmp_path, number=1)
    sysfs_trees.mi300(tmp_path, number=9)
    adapter = _open(tmp_path)

    before = adapter.poll_events()
    amdsmi.push_event(1, 2, "77:1\n")  # THERMAL_THROTTLE
    amdsmi.push_event(0, 3, "")  # GPU_PRE_RESET
    amdsmi.push_event(0, 12, "a process starts, which nobody asked for")
    amdsmi.push_event(0, 1, "4242:python")  # VMFAULT

    assert before == ()
    assert adapter.poll_events() == (
        VendorEvent(
            vendor_index=MI300,
            event="thermal_throttle",
            code=None,
            message="the card slows itself down for heat: 77:1",
        ),
        VendorEvent(
            vendor_index=W7900,
            event="gpu_pre_reset",
            code=None,
            message="the driver is about to reset the card",
        ),
        VendorEvent(
            vendor_index=W7900,
            event="vm_fault",
            code=None,
            message="a page fault of a GPU program: 4242:python",
        ),
    )
    assert adapter.poll_events() == ()
    assert amdsmi.event_mask(0) == amdsmi.event_mask(1) == 0b1111


def test_events_that_this_user_may_not_hear_are_a_reason(
    amdsmi: amdsmi_library.FakeAmdSmi, bare: Path
) -> None:
    amdsmi.update(g0_events="!10")

    with pytest.raises(NotSupportedError, match="this user may not read it"):
        _open(bare).poll_events()


def test_events_that_cannot_be_read_now_are_an_error_and_come_later(
    amdsmi: amdsmi_library.FakeAmdSmi, bare: Path
) -> None:
    adapter = _open(bare)
    amdsmi.push_event(0, 3, "")
    amdsmi.update(s_events="!12")

    with pytest.raises(DeviceError, match="error 12, AMDSMI_STATUS_IO"):
        adapter.poll_events()
    amdsmi.remove("s.events")

    assert [event.event for event in adapter.poll_events()] == ["gpu_pre_reset"]


def test_closing_lets_go_of_events_and_library(amdsmi: amdsmi_library.FakeAmdSmi, bare: Path) -> None:
    adapter = _open(bare)
    was_open = amdsmi.is_initialised

    adapter.close()

    assert was_open
    assert not amdsmi.is_initialised
    assert amdsmi.event_mask(0) == 0


def test_a_sleeping_card_keeps_the_library_shut(amdsmi: amdsmi_library.FakeAmdSmi, tmp_path: Path) -> None:
    asleep = sysfs_trees.mi300(tmp_path, number=9)
    sysfs_trees.write(asleep, {"power/runtime_status": "suspended"})
    sysfs_trees.w7900(tmp_path, number=1)
    adapter = _open(tmp_path)

    readout = adapter.read(W7900, lane="fast")

    assert not amdsmi.is_initialised
    assert readout.reading.values["util_gpu_percent"] == 95
    assert "a card is asleep" in readout.unavailable["energy_j"]
    with pytest.raises(NotSupportedError, match="a card is asleep"):
        adapter.poll_events()


@pytest.mark.parametrize(
    ("start", "error", "reason"),
    [
        ("!34", DriverMissingError, "finds no amdgpu driver"),
        ("!10", DeviceError, "this user may not read it"),
    ],
)
def test_a_library_that_does_not_start_leaves_the_files_alone(
    amdsmi: amdsmi_library.FakeAmdSmi,
    tmp_path: Path,
    start: str,
    error: type[DeviceError],
    reason: str,
) -> None:
    sysfs_trees.w7900(tmp_path, number=1)
    amdsmi.update(s_init=start)

    with pytest.raises(error, match=reason):
        amd_smi.open_library()
    readout = _open(tmp_path).read(W7900, lane="fast")

    assert readout.reading.values["power_w"] == 164
    assert "energy_j" not in readout.reading.values
    assert reason in readout.unavailable["energy_j"]


def test_a_library_that_cannot_place_its_cards_is_let_go(
    amdsmi: amdsmi_library.FakeAmdSmi, tmp_path: Path
) -> None:
    sysfs_trees.w7900(tmp_path, number=1)
    amdsmi.update(g0_bus="!6")

    readout = _open(tmp_path).read(W7900, lane="fast")

    assert not amdsmi.is_initialised
    assert readout.reading.values["power_w"] == 164
    assert "amdsmi: error 6, AMDSMI_STATUS_DRM_ERROR" in readout.unavailable["energy_j"]


def test_without_the_package_the_files_are_read_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sysfs_trees.w7900(tmp_path, number=1)
    monkeypatch.setitem(sys.modules, "amdsmi", None)

    with pytest.raises(LibraryMissingError, match="amdsmi is not installed"):
        amd_smi.open_library()
    readout = _open(tmp_path).read(W7900, lane="fast")

    assert readout.reading.values["power_w"] == 164
    assert "amdsmi: the Python package amdsmi is not installed" in readout.unavailable["energy_j"]


_OPEN = """
from gpuproof.devices import amd_smi
try:
    amd_smi.open_library()
except amd_smi.DeviceError as error:
    print(type(error).__name__, error.cause)
"""


def _opened_elsewhere(rocm: Path) -> str:
    env = {**os.environ, "ROCM_PATH": str(rocm), "ROCM_HOME": str(rocm)}
    done = subprocess.run(
        [sys.executable, "-c", _OPEN], env=env, capture_output=True, text=True, timeout=60, check=True
    )
    assert done.stderr == ""
    return done.stdout


def test_a_missing_library_is_one_line_and_the_package_prints_none(tmp_path: Path) -> None:
    amdsmi_library.wrapper()  # skips where the package is missing
    said = _opened_elsewhere(tmp_path)

    if not said:
        pytest.skip("this machine has AMD's own library")
    assert said.count("\n") == 1
    assert said.startswith("LibraryMissingError libamd_smi.so cannot be loaded (")


def test_a_library_of_another_release_is_named_as_such(tmp_path: Path) -> None:
    amdsmi_library.build(tmp_path, without="amdsmi_get_gpu_xcd_counter")

    said = _opened_elsewhere(tmp_path)

    assert said.startswith(
        "LibraryMissingError libamd_smi.so is of another ROCm release than the Python package"
    )
    assert "amdsmi_get_gpu_xcd_counter" in said


def test_all_devices_of_a_host_include_the_librarys_metrics(
    amdsmi: amdsmi_library.FakeAmdSmi, bare: Path
) -> None:
    amdsmi.push_event(0, 4, "")  # GPU_POST_RESET
    devices = open_devices({}, sysfs_root=bare)
    try:
        index = next(
            PhysicalIndex(identity.physical_index)
            for identity in devices.identities
            if identity.vendor == "amd"
        )
        readout = devices.read("slow")[index]
        events = [event.event for event in devices.poll_events() if event.physical_index == index]
    finally:
        devices.close()

    assert readout.reading.values == pytest.approx(FAST | SLOW)
    assert events == ["gpu_post_reset"]

"""AMD readings from trees like those of a workstation card and an accelerator, number by number."""

from __future__ import annotations

from pathlib import Path

import pytest

from fakes import sysfs_trees
from gpuproof.devices.amd import adapter as amd
from gpuproof.devices.base import DeviceProcess, DriverMissingError, NotSupportedError
from gpuproof.records.readings import VendorIndex

W7900, MI300 = VendorIndex(1), VendorIndex(9)


@pytest.fixture
def trees(tmp_path: Path) -> tuple[Path, Path, Path]:
    return tmp_path, sysfs_trees.w7900(tmp_path, number=1), sysfs_trees.mi300(tmp_path, number=9)


def test_a_cap_of_zero_is_no_limit(trees: tuple[Path, Path, Path]) -> None:
    (trees[1] / "hwmon/hwmon5/power1_cap").write_text("0\n")
    reading = amd.open_adapter(trees[0]).read(W7900, lane="slow")
    assert "power_limit_w" not in reading.reading.values
    assert reading.unavailable["power_limit_w"].startswith("not supported: power1_cap is 0")


@pytest.mark.promise("S4.1", "S4.2")
def test_workstation_card(trees: tuple[Path, Path, Path]) -> None:
    adapter = amd.open_adapter(trees[0])

    fast, slow = adapter.read(W7900, lane="fast"), adapter.read(W7900, lane="slow")

    assert fast.reading.values == pytest.approx(
        {
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
    )
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
    )
    assert "does not document its energy unit" in fast.unavailable["energy_j"]
    assert "no hwmon/hwmon5/power1_input" in fast.unavailable["power_instant_w"]


def test_workstation_identity(trees: tuple[Path, Path, Path]) -> None:
    device = amd.open_adapter(trees[0]).identities()[0]

    assert (device.name, device.uuid) == ("AMD Radeon PRO W7900", "GPU-0a1b2c3d4e5f6071")
    assert (device.vendor_index, device.pci_bus_id) == (1, "0000:83:00.0")
    assert device.static == pytest.approx(
        {
            "mem_total_bytes": 48_301_604_864,
            "power_limit_w": 241,
            "power_limit_default_w": 251,
            "power_limit_min_w": 100,
            "power_limit_max_w": 290,
            "temp_slowdown_c": 100,
            "temp_shutdown_c": 105,
            "temp_mem_max_c": 108,
            "clock_sm_max_mhz": 2060,
            "clock_sm_min_mhz": 500,
            "clock_mem_max_mhz": 1124,
            "pcie_gen_max": 5,
            "pcie_width_max": 16,
            "vbios_version": "113-D7070100-128",
            "performance_level": "auto",
        }
    )


@pytest.mark.parametrize(
    ("junction_c", "status", "reasons"),
    [
        (52, 1 << 36 | 1 << 0, ("power_cap",)),  # the hot-spot bit, stuck at 52 °C
        (105, 1 << 36 | 1 << 0, ("power_cap", "thermal_hardware")),  # five degrees below critical
        (104, 1 << 36, ()),
        (52, 1 << 35, ("thermal_hardware",)),
        (52, 1 << 34, ("thermal_memory",)),
        (52, 1 << 16 | 1 << 44, ("current_limit", "voltage_regulator")),
        (52, 1 << 47 | 1 << 60, ("hardware_slowdown", "other")),
        (52, 0, ()),
    ],
)
def test_throttle_bits_with_the_stuck_hot_spot_bit_believed_near_the_limit_only(
    trees: tuple[Path, Path, Path], junction_c: int, status: int, reasons: tuple[str, ...]
) -> None:
    sysfs_trees.write(
        trees[1],
        {
            "gpu_metrics": sysfs_trees.metrics_1_3(indep_throttle_status=status),
            "hwmon/hwmon5/temp2_input": f"{junction_c * 1000}",
        },
    )

    assert amd.open_adapter(trees[0]).read(W7900, lane="fast").reading.throttle_reasons == reasons


def test_accelerator_without_an_edge_sensor(trees: tuple[Path, Path, Path]) -> None:
    readout = amd.open_adapter(trees[0]).read(MI300, lane="fast")

    assert readout.reading.values == pytest.approx(
        {
            "util_gpu_percent": 100,
            "mem_used_bytes": 206_158_430_208,
            "power_w": 612,
            "power_instant_w": 612,
            "temp_gpu_c": 71,
            "temp_hotspot_c": 71,
            "temp_mem_c": 58,
            "energy_j": 1000,
        }
    )
    assert "no mem_busy_percent" in readout.unavailable["util_mem_ctrl_percent"]
    assert readout.reading.throttle_reasons is None
    assert "first" in readout.unavailable["throttle_reasons"]


def test_throttle_seconds_of_an_accelerator_from_its_cycle_counts(trees: tuple[Path, Path, Path]) -> None:
    adapter = amd.open_adapter(trees[0])
    before = adapter.counters(MI300).reading.values
    # 2 s later: of 2,000 cycles, 500 at the power limit and 250 with hot memory
    later = sysfs_trees.metrics_1_6(
        energy=65536 * 1600,
        cycles=12_000,
        residencies=(0, 1000, 0, 0, 250),
        firmware_ticks=10**9 + 2 * 10**8,
    )
    sysfs_trees.write(trees[2], {"gpu_metrics": later})

    after = adapter.counters(MI300).reading.values
    reasons = adapter.read(MI300, lane="fast").reading.throttle_reasons

    assert after["throttle_time_power_cap_s"] - before["throttle_time_power_cap_s"] == pytest.approx(0.5)
    assert after["throttle_time_thermal_memory_s"] == pytest.approx(0.25)
    assert after["throttle_time_thermal_hardware_s"] == 0
    assert after["energy_j"] - before["energy_j"] == pytest.approx(600)
    assert reasons == ("power_cap", "thermal_memory")


def test_cycle_counts_that_wrap_round_still_count(trees: tuple[Path, Path, Path]) -> None:
    def at(cycles: int, power_cap: int, ticks: int) -> None:
        table = sysfs_trees.metrics_1_6(
            energy=0, cycles=cycles % 2**32, residencies=(0, power_cap % 2**32, 0, 0, 0), firmware_ticks=ticks
        )
        sysfs_trees.write(trees[2], {"gpu_metrics": table})

    at(2**32 - 100, 2**32 - 10, 0)
    adapter = amd.open_adapter(trees[0])
    adapter.counters(MI300)
    at(2**32 + 100, 2**32 + 40, 10**8)  # 200 cycles in 1 s, 50 of them at the limit

    seconds = adapter.counters(MI300).reading.values["throttle_time_power_cap_s"]

    assert seconds == pytest.approx(0.25)


@pytest.mark.parametrize(
    ("table", "reason"),
    [
        (b"\xff\xff\x01\x08" + b"\0" * 100, "table 1.8 with 65535 bytes is not supported by this version"),
        (b"\x78\x00\x01\x06" + b"\0" * 116, "table 1.6 with 120 bytes is not supported by this version"),
        (b"\x01", "contains 1 bytes"),
    ],
)
def test_an_unknown_table_is_a_reason_and_not_a_guess(
    trees: tuple[Path, Path, Path], table: bytes, reason: str
) -> None:
    sysfs_trees.write(trees[2], {"gpu_metrics": table})

    readout = amd.open_adapter(trees[0]).read(MI300, lane="fast")

    assert readout.reading.throttle_reasons is None
    assert reason in readout.unavailable["throttle_reasons"]
    assert reason in readout.unavailable["energy_j"]


def test_fields_that_the_firmware_left_at_all_ones_are_absent(trees: tuple[Path, Path, Path]) -> None:
    table = sysfs_trees.metrics_1_6(
        energy=2**64 - 1, cycles=2**32 - 1, residencies=(0, 0, 0, 0, 0), firmware_ticks=1
    )
    sysfs_trees.write(trees[2], {"gpu_metrics": table})

    readout = amd.open_adapter(trees[0]).read(MI300, lane="fast")

    assert readout.unavailable["energy_j"] == "not supported: the firmware does not fill the energy counter"
    assert readout.reading.throttle_reasons is None


def test_a_sleeping_card_is_left_asleep(trees: tuple[Path, Path, Path]) -> None:
    sysfs_trees.write(trees[1], {"power/runtime_status": "suspended"})

    readout = amd.open_adapter(trees[0]).read(W7900, lane="fast")

    assert readout.reading.values == {}
    assert set(readout.unavailable.values()) == {"the card is asleep; reading it would wake it"}


def test_a_file_without_a_number_is_a_reason(trees: tuple[Path, Path, Path]) -> None:
    sysfs_trees.write(trees[1], {"gpu_busy_percent": "N/A", "current_link_speed": "Unknown"})
    adapter = amd.open_adapter(trees[0])

    fast, slow = adapter.read(W7900, lane="fast"), adapter.read(W7900, lane="slow")

    assert fast.unavailable["util_gpu_percent"] == "gpu_busy_percent contains 'N/A', not a number"
    assert slow.unavailable["pcie_gen"] == "current_link_speed contains 'Unknown', not a known link speed"


def test_processes_are_those_of_the_cards_kfd_node(trees: tuple[Path, Path, Path]) -> None:
    adapter = amd.open_adapter(trees[0])

    assert adapter.processes(MI300) == (DeviceProcess(pid=777, mem_used_bytes=4_294_967_296, kind="compute"),)
    assert adapter.identities()[1].static["kfd_node"] == 2
    with pytest.raises(NotSupportedError, match="no KFD node"):
        adapter.processes(W7900)


def test_clocks_come_from_the_table_where_there_is_no_sensor(trees: tuple[Path, Path, Path]) -> None:
    sysfs_trees.write(trees[2], {"pp_dpm_sclk": "S: 19Mhz *\n0: 500Mhz\n1: 2100Mhz", "pp_dpm_mclk": "none"})

    readout = amd.open_adapter(trees[0]).read(MI300, lane="fast")

    assert readout.reading.values["clock_sm_mhz"] == 19
    assert readout.unavailable["clock_mem_mhz"] == "pp_dpm_mclk lists no clock"


def test_without_the_driver_or_a_card_the_reason_says_which(tmp_path: Path) -> None:
    with pytest.raises(DriverMissingError, match="not loaded"):
        amd.open_adapter(tmp_path)
    (tmp_path / "module/amdgpu").mkdir(parents=True)
    with pytest.raises(DriverMissingError, match="has no card"):
        amd.open_adapter(tmp_path)

"""AMD's library through the real Python package and a fake libamd_smi.so, number by number.

Card 0 of the fake library sits at 0000:83:00.0, card 1 at 0000:05:00.0.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from fakes import amdsmi_library, sysfs_trees
from gpuproof.devices.amd import adapter as amd
from gpuproof.devices.amd import library
from gpuproof.devices.amd.adapter import AmdAdapter
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
    return amd.open_adapter(root, open_library=library.open_library)


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


def test_the_library_comes_first_and_the_files_give_what_it_does_not(
    amdsmi: amdsmi_library.FakeAmdSmi, tmp_path: Path
) -> None:
    sysfs_trees.w7900(tmp_path, number=1)  # at 0000:83:00.0
    amdsmi.update(g0_power="!2", g0_energy="!2", g0_temp2_0="!2", g0_ecc_corrected="!2", g0_links="!2")
    adapter = _open(tmp_path)

    fast, slow = adapter.read(W7900, lane="fast"), adapter.read(W7900, lane="slow")
    device = adapter.identities()[0]

    of_files = {"power_w": 164, "temp_mem_c": 60, "mem_host_mapped_bytes": 67_108_864}
    of_library = {name: value for name, value in FAST.items() if name not in ("power_instant_w", "energy_j")}
    assert fast.reading.values == pytest.approx(of_library | of_files)
    assert fast.unavailable["energy_j"] == (
        "not supported: gpu_metrics 1.3 does not document its energy unit; "
        "amdsmi: not supported by this card or driver"
    )
    of_files = {"fan_percent": 20, "fan_rpm": 1520, "ecc_corrected_count": 14, "ecc_uncorrected_count": 1}
    of_library = {name: value for name, value in SLOW.items() if not name.endswith("x_bytes")}
    assert slow.reading.values == pytest.approx(of_library | of_files)
    assert (device.name, device.uuid) == ("AMD Radeon PRO W7900", "GPU-0a1b2c3d4e5f6071")
    assert device.static == pytest.approx(
        STATIC | {"vbios_version": "113-D7070100-128", "performance_level": "auto"}
    )


def test_the_librarys_bytes_fans_and_memory_errors(amdsmi: amdsmi_library.FakeAmdSmi, bare: Path) -> None:
    amdsmi.update(
        g0_bytes0_used=1_073_741_825,
        g0_bytes0_total=206_141_652_993,
        g0_bytes2_used=4_097,
        g0_fan_level=51,
        g0_fan_rpm=1_520,
        g0_umc_corrected=20,
        g0_umc_uncorrected=1,
    )
    adapter = _open(bare)

    values = adapter.read(BARE, lane="fast").reading.values | adapter.read(BARE, lane="slow").reading.values

    expected = {"mem_used_bytes": 1_073_741_825, "mem_host_mapped_bytes": 4_097}
    expected |= {"fan_percent": 20, "fan_rpm": 1_520, "ecc_corrected_count": 20, "ecc_uncorrected_count": 1}
    assert values == pytest.approx(FAST | SLOW | expected, rel=1e-12)
    assert adapter.identities()[0].static["mem_total_bytes"] == 206_141_652_993


@pytest.mark.parametrize(
    ("junction_c", "reasons"), [(62, ("power_cap",)), (106, ("power_cap", "thermal_hardware"))]
)
def test_throttle_bits_are_the_files_where_the_library_counts_no_cycles(
    amdsmi: amdsmi_library.FakeAmdSmi, tmp_path: Path, junction_c: int, reasons: tuple[str, ...]
) -> None:
    sysfs_trees.w7900(tmp_path, number=1)
    # The binding makes "true" of the library's own bits. The hot-spot bit counts near 111 °C only.
    amdsmi.update(g0_cycles=2**64 - 1, g0_throttle_bits=1 << 36 | 1 << 0, g0_temp1_0=junction_c)

    readouts = [_open(tmp_path).read(W7900, lane=lane) for lane in ("fast", "slow")]

    assert readouts[0].reading.throttle_reasons == reasons
    assert "does not count throttling" in readouts[1].unavailable["throttle_time_power_cap_s"]


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
        assert reason in readout.unavailable[name]
    of_files = "not supported: this card or kernel has no gpu_busy_percent"
    both = (of_files, reason) if code == 2 else (reason, of_files)  # what may change comes first
    assert readout.unavailable["util_gpu_percent"] == "; ".join(both)
    assert readout.reading.throttle_reasons is None
    assert reason in readout.unavailable["throttle_reasons"]
    assert readout.unavailable["throttle_reasons"].startswith("not supported" if code == 2 else reason)


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
    assert reasons[0].startswith("amdsmi: the library answers N/A; ")


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
        ({"g0_energy": 0}, "energy_j", "energy counter is at 0"),
        ({"g0_energy_uj": 0}, "energy_j", "energy counter is at 0"),
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
    assert (
        device.unavailable["uuid"]
        == "amdsmi: this user may not read it; not supported: this card has no unique_id"
    )
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
        "amdsmi: not supported: this amdsmi is too old to provide amdsmi_get_link_metrics"
    )
    assert readout.reading.values["nvlink_links_active"] == 2


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

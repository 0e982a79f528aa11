"""Why a case was slow, from what was read meanwhile."""

from __future__ import annotations

from pathlib import Path

import pytest

import recordings as rec
from gpuproof.launches.explanations import energy_per_item, explain
from gpuproof.readings.evidence import DeviceWindow, HostWindow, WindowReadings, read_window


def window(*devices: DeviceWindow, host: HostWindow | None = None) -> WindowReadings:
    return WindowReadings(
        begin_monotonic_s=0.0, end_monotonic_s=10.0, devices=devices, host=host or HostWindow()
    )


def sentences(readings: WindowReadings, slower_by: dict[int, float] | None = None) -> list[str]:
    return [finding.sentence for finding in explain(readings, slower_by=slower_by)]


def test_a_thermal_slowdown_names_its_share_and_the_clocks() -> None:
    hot = DeviceWindow(
        physical_index=3,
        throttle_shares={"thermal_software": 0.41, "application_clocks": 0.9, "power_cap": 0.004},
        clock_sm_mhz=1410.0,
        clock_sm_max_mhz=1980.0,
    )
    assert sentences(window(hot), {3: 0.18}) == [
        "GPU 3: −18 %: software thermal slowdown in 41 % of the window; SM clock 1,980 → 1,410 MHz"
    ]


@pytest.mark.parametrize(
    ("cap_w", "said"),
    [
        (500.0, "500 W (below the default of 700 W)"),
        (700.0, "700 W (the default)"),
    ],
)
def test_a_power_cap_is_a_limit_and_says_whose(cap_w: float, said: str) -> None:
    (finding,) = explain(
        window(
            DeviceWindow(
                physical_index=0,
                throttle_shares={"power_cap": 0.4},
                power_limit_w=cap_w,
                power_limit_default_w=700.0,
            )
        )
    )
    assert finding.gravity == "limit"
    assert finding.sentence == f"GPU 0: power cap in 40 % of the window; {said}"


def test_faults_come_first_and_unknown_is_not_sound() -> None:
    silent = DeviceWindow(physical_index=0, throttle_shares=None)
    capped = DeviceWindow(physical_index=1, throttle_shares={"power_cap": 0.49})
    broken = DeviceWindow(physical_index=2, throttle_shares={}, events=("xid 79: fell off the bus",))
    found = explain(window(silent, capped, broken))
    assert [(f.gravity, f.physical_index) for f in found] == [("fault", 2), ("limit", 1), ("unknown", 0)]
    assert found[0].sentence == "GPU 2: xid 79: fell off the bus"


def test_a_sound_device_on_a_quiet_host_gives_no_finding() -> None:
    assert explain(window(DeviceWindow(physical_index=0, throttle_shares={"idle": 0.02}))) == ()


def test_what_the_host_did_is_a_remark_and_its_limit_is_decided_elsewhere() -> None:
    starved = DeviceWindow(physical_index=0, throttle_shares={"idle": 0.35}, util_gpu_percent=40.0)
    host = HostWindow(
        cpu_percent=97.0, cpu_max_core_percent=100.0, cpu_iowait_percent=12.0, swap_growth_bytes=2.0**20
    )
    assert sentences(window(starved, host=host)) == [
        "host CPU was saturated: 97.0 % busy over the window",
        "the host waited for its disks for 12.0 % of CPU time",
        "the host swapped: 1.00 MiB more at the end",
    ]


def test_energy_per_item_adds_the_devices_and_says_its_method() -> None:
    """(950 / 0.95 + 500) J over 100 samples."""
    first = DeviceWindow(
        physical_index=0,
        throttle_shares={},
        energy_j=950.0,
        energy_method="counter",
        energy_coverage=0.95,
    )
    second = DeviceWindow(
        physical_index=1, throttle_shares={}, energy_j=500.0, energy_method="counter", energy_coverage=1.0
    )
    result = energy_per_item(window(first, second), items=100, item="sample")
    assert result.energy_j_per_item == pytest.approx(15.0)
    assert result.sentence == (
        "15.0 J/sample over 2 GPU(s), from energy counters, which cover 95 % of the window"
    )


@pytest.mark.parametrize(
    ("device", "said"),
    [
        (
            DeviceWindow(physical_index=0, throttle_shares={}, energy_missing="no counter"),
            "GPU 0: no counter",
        ),
        (
            DeviceWindow(
                physical_index=0,
                throttle_shares={},
                energy_j=1.0,
                energy_method="counter",
                energy_coverage=0.5,
            ),
            "GPU 0: its energy is known for only 50 % of the window",
        ),
    ],
)
def test_no_energy_is_said_and_not_made_up(device: DeviceWindow, said: str) -> None:
    result = energy_per_item(window(device), items=10, item="sample")
    assert (result.energy_j_per_item, result.sentence) == (None, f"no energy: {said}")


def test_energy_of_no_items_is_refused() -> None:
    with pytest.raises(ValueError, match="needs a positive number of items, not 0"):
        energy_per_item(window(), items=0, item="sample")


def test_a_recording_is_cut_to_the_measured_window(tmp_path: Path) -> None:
    """Hot from 10 s on; the case ran from 10 to 20 s, eleven readings: all of it throttled, 2,000 J."""
    samples = [
        rec.sample(
            t,
            {
                0: {
                    "clock_sm_mhz": 1410.0 if t >= 10 else 1980.0,
                    "temp_gpu_c": 60.0 + t,
                    "energy_j": 200.0 * t,
                }
            },
            reasons={0: ("thermal_software",) if t >= 10 else ()},
            host={"cpu_percent": 10.0, "swap_used_bytes": 2.0**20 * t},
        )
        for t in range(21)
    ]
    recording = rec.loaded(tmp_path, [rec.header([rec.identity()]), *samples])
    readings = read_window(
        recording, begin_monotonic_s=rec.MONOTONIC_S + 10, end_monotonic_s=rec.MONOTONIC_S + 20
    )
    assert sentences(readings) == [
        "GPU 0: software thermal slowdown in 100 % of the window; SM clock 1,980 → 1,410 MHz; up to 80 °C",
        "the host swapped: 10.0 MiB more at the end",
    ]
    assert energy_per_item(readings, items=1000, item="sample").energy_j_per_item == pytest.approx(2.0)

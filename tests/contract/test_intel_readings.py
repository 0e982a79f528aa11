"""Intel readings from trees like those of a discrete card on xe and an integrated GPU on i915."""

from __future__ import annotations

from pathlib import Path

import pytest

from fakes import sysfs_trees
from gpuproof.devices import intel
from gpuproof.devices.base import DriverMissingError
from gpuproof.records.readings import VendorIndex

XE, I915 = VendorIndex(0), VendorIndex(2)


class Clock:
    def __init__(self) -> None:
        self.now_s = 0.0

    def __call__(self) -> float:
        return self.now_s


@pytest.mark.promise("S4.1", "F4.1")
def test_discrete_card_with_watts_and_utilisation_from_two_readings(tmp_path: Path) -> None:
    device, clock = sysfs_trees.arc_xe(tmp_path), Clock()
    adapter = intel.open_adapter(tmp_path, clock=clock)

    first = adapter.read(XE, lane="fast")
    clock.now_s = 4.0
    sysfs_trees.write(
        device,
        {
            "hwmon/hwmon3/energy1_input": "5760000000",  # 760 J in 4 s
            "tile0/gt0/gtidle/idle_residency_ms": "11000",  # 1 of 4 s idle
        },
    )
    second = adapter.read(XE, lane="fast")

    assert "first" in first.unavailable["power_w"]
    assert "first" in first.unavailable["util_gpu_percent"]
    assert second.reading.values == pytest.approx(
        {
            "util_gpu_percent": 75,
            "power_w": 190,
            "energy_j": 5760,
            "temp_gpu_c": 61,
            "temp_mem_c": 66,
            "clock_sm_mhz": 2350,
        }
    )
    assert second.reading.throttle_reasons == ("power_cap", "thermal_hardware")


def test_discrete_card_slow_lane_and_facts_with_the_link_of_its_own_switch(tmp_path: Path) -> None:
    sysfs_trees.arc_xe(tmp_path)
    adapter = intel.open_adapter(tmp_path)

    slow, device = adapter.read(XE, lane="slow"), adapter.identities()[0]

    assert slow.reading.values == {"power_limit_w": 190, "fan_rpm": 1210, "pcie_gen": 4, "pcie_width": 8}
    assert (device.name, device.pci_bus_id) == ("Intel GPU 0xe20b", "0000:05:00.0")
    assert device.static == pytest.approx(
        {
            "power_limit_w": 190,
            "power_limit_default_w": 200,
            "clock_sm_max_mhz": 2850,
            "clock_sm_min_mhz": 400,
            "temp_slowdown_c": 100,
            "pcie_gen_max": 5,
            "pcie_width_max": 16,
            "driver": "xe",
        }
    )


def test_integrated_gpu_on_i915(tmp_path: Path) -> None:
    sysfs_trees.i915(tmp_path)
    adapter = intel.open_adapter(tmp_path)

    fast, slow = adapter.read(I915, lane="fast"), adapter.read(I915, lane="slow")

    assert fast.reading.values == {"energy_j": 2, "temp_gpu_c": 48, "clock_sm_mhz": 1450}
    assert fast.reading.throttle_reasons == ()
    assert fast.unavailable["temp_mem_c"] == "not supported: this card or kernel has no vram temperature"
    assert slow.unavailable["power_limit_w"] == "not supported: power1_max is 0, so the limit is disabled"


def test_an_energy_counter_that_goes_back_gives_no_watts(tmp_path: Path) -> None:
    device, clock = sysfs_trees.arc_xe(tmp_path), Clock()
    adapter = intel.open_adapter(tmp_path, clock=clock)
    adapter.read(XE, lane="fast")
    clock.now_s = 1.0
    sysfs_trees.write(device, {"hwmon/hwmon3/energy1_input": "10"})

    readout = adapter.read(XE, lane="fast")

    assert "went back" in readout.unavailable["power_w"]
    assert readout.reading.values["energy_j"] == pytest.approx(1e-5)


def test_a_kernel_without_throttle_files_says_so(tmp_path: Path) -> None:
    device = sysfs_trees.arc_xe(tmp_path)
    (device / "tile0/gt0/freq0/throttle/status").unlink()

    readout = intel.open_adapter(tmp_path).read(XE, lane="fast")

    assert readout.reading.throttle_reasons is None
    assert "no tile0/gt0/freq0/throttle/status" in readout.unavailable["throttle_reasons"]


def test_without_the_drivers_the_reason_says_so(tmp_path: Path) -> None:
    with pytest.raises(DriverMissingError, match="neither xe nor i915 is loaded"):
        intel.open_adapter(tmp_path)

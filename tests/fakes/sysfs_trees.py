"""Writes what amdgpu, xe and i915 show under /sys, file by file, below a root of the test's choice.

The gpu_metrics tables are laid out here by offset, independently of the code under test.
"""

from __future__ import annotations

import struct
from pathlib import Path


def write(base: Path, files: dict[str, str | bytes]) -> None:
    """Write each file below `base`; texts end in a line feed, as in sysfs."""
    for name, content in files.items():
        path = base / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content if isinstance(content, bytes) else f"{content}\n".encode())


def card(root: Path, number: int, driver: str, pci: str, *, path: str | None = None) -> Path:
    """Make cardN with its PCI device and driver links; return the device's directory."""
    device = root / "devices" / (path or f"pci0000:00/{pci}")
    directory = root / "class/drm" / f"card{number}"
    for made in (device, directory, root / "module" / driver, root / "bus/pci/drivers" / driver):
        made.mkdir(parents=True, exist_ok=True)
    (directory / "device").symlink_to(device)
    (device / "driver").symlink_to(root / "bus/pci/drivers" / driver)
    write(device, {"uevent": f"DRIVER={driver}\nPCI_SLOT_NAME={pci}"})
    return device


def metrics_1_3(*, indep_throttle_status: int) -> bytes:
    """Lay out a gpu_metrics table 1.3 (120 bytes) that says nothing but why the card is held back."""
    table = bytearray(b"\xff" * 120)
    struct.pack_into("<HBB", table, 0, 120, 1, 3)
    struct.pack_into("<Q", table, 112, indep_throttle_status)
    return bytes(table)


def metrics_1_6(*, energy: int, cycles: int, residencies: tuple[int, ...], firmware_ticks: int) -> bytes:
    """Lay out a gpu_metrics table 1.6 (384 bytes); residencies: prochot, ppt, socket, regulator, HBM."""
    table = bytearray(b"\xff" * 384)
    struct.pack_into("<HBB", table, 0, 384, 1, 6)
    struct.pack_into("<Q", table, 88, energy)
    struct.pack_into("<6I", table, 104, cycles, *residencies)
    struct.pack_into("<Q", table, 328, firmware_ticks)
    return bytes(table)


def w7900(root: Path, number: int = 1, pci: str = "0000:83:00.0") -> Path:
    """A workstation card: edge, junction and memory sensors, a fan, table 1.3."""
    device = card(root, number, "amdgpu", pci)
    write(
        device,
        {
            "vendor": "0x1002",
            "device": "0x7448",
            "unique_id": "0a1b2c3d4e5f6071",
            "product_name": "AMD Radeon PRO W7900",
            "vbios_version": "113-D7070100-128",
            "power/runtime_status": "active",
            "gpu_busy_percent": "95",
            "mem_busy_percent": "37",
            "mem_info_vram_used": "12884901888",
            "mem_info_vram_total": "48301604864",
            "mem_info_gtt_used": "67108864",
            "current_link_speed": "16.0 GT/s PCIe",
            "current_link_width": "16",
            "max_link_speed": "32.0 GT/s PCIe",
            "max_link_width": "16",
            "pcie_replay_count": "3",
            "pp_dpm_sclk": "0: 500Mhz\n1: 1750Mhz *\n2: 2060Mhz",
            "pp_dpm_mclk": "0: 96Mhz\n1: 1124Mhz *",
            "ras/umc_err_count": "ue: 1\nce: 14",  # codespell:ignore ue
            "power_dpm_force_performance_level": "auto",
            "gpu_metrics": metrics_1_3(indep_throttle_status=1 << 36 | 1 << 0),
            "hwmon/hwmon5/power1_average": "164000000",
            "hwmon/hwmon5/power1_cap": "241000000",
            "hwmon/hwmon5/power1_cap_default": "251000000",
            "hwmon/hwmon5/power1_cap_min": "100000000",
            "hwmon/hwmon5/power1_cap_max": "290000000",
            "hwmon/hwmon5/temp1_label": "edge",
            "hwmon/hwmon5/temp1_input": "37000",
            "hwmon/hwmon5/temp1_crit": "100000",
            "hwmon/hwmon5/temp1_emergency": "105000",
            "hwmon/hwmon5/temp2_label": "junction",
            "hwmon/hwmon5/temp2_input": "52000",
            "hwmon/hwmon5/temp2_crit": "110000",
            "hwmon/hwmon5/temp3_label": "mem",
            "hwmon/hwmon5/temp3_input": "60000",
            "hwmon/hwmon5/temp3_crit": "108000",
            "hwmon/hwmon5/freq1_label": "sclk",
            "hwmon/hwmon5/freq1_input": "1750000000",
            "hwmon/hwmon5/freq2_label": "mclk",
            "hwmon/hwmon5/freq2_input": "1124000000",
            "hwmon/hwmon5/fan1_input": "1520",
            "hwmon/hwmon5/pwm1": "51",
        },
    )
    return device


def mi300(root: Path, number: int = 9, pci: str = "0000:05:00.0") -> Path:
    """An accelerator: no edge sensor, no fan, one power file, table 1.6, a KFD node with a process."""
    device = card(root, number, "amdgpu", pci)
    write(
        device,
        {
            "device": "0x74a1",
            "unique_id": "0x5566778899aabbcc",
            "gpu_busy_percent": "100",
            "mem_info_vram_used": "206158430208",
            "mem_info_vram_total": "206141652992",
            "current_compute_partition": "SPX",
            "gpu_metrics": metrics_1_6(
                energy=65536 * 1000, cycles=10_000, residencies=(0, 500, 0, 0, 0), firmware_ticks=10**9
            ),
            "hwmon/hwmon2/power1_input": "612000000",
            "hwmon/hwmon2/temp2_label": "junction",
            "hwmon/hwmon2/temp2_input": "71000",
            "hwmon/hwmon2/temp2_crit": "100000",
            "hwmon/hwmon2/temp3_label": "mem",
            "hwmon/hwmon2/temp3_input": "58000",
        },
    )
    write(
        root / "class/kfd/kfd",
        {
            "topology/nodes/0/properties": "cpu_cores_count 96\nlocation_id 0",
            "topology/nodes/0/gpu_id": "0",
            "topology/nodes/2/properties": f"location_id {0x05 << 8}\ndomain 0",
            "topology/nodes/2/gpu_id": "28851",
            "proc/777/vram_28851": "4294967296",
            "proc/778/vram_99999": "1",
        },
    )
    return device


def arc_xe(root: Path, number: int = 0) -> Path:
    """A discrete card on xe, behind a PCIe switch of its own."""
    slot = "pci0000:00/0000:00:01.0/0000:03:00.0"
    pci = "0000:05:00.0"
    device = card(root, number, "xe", pci, path=f"{slot}/0000:04:01.0/{pci}")
    link = {"max_link_speed": "32.0 GT/s PCIe", "max_link_width": "16"}
    write(
        root / "devices" / slot,
        {"vendor": "0x8086", "current_link_speed": "16.0 GT/s PCIe", "current_link_width": "8", **link},
    )
    write(
        root / "devices/pci0000:00/0000:00:01.0", {"vendor": "0x8086", "current_link_speed": "16.0 GT/s PCIe"}
    )
    write(
        device,
        {
            "vendor": "0x8086",
            "device": "0xe20b",
            "current_link_speed": "2.5 GT/s PCIe",
            "current_link_width": "1",
            "tile0/gt0/freq0/act_freq": "2350",
            "tile0/gt0/freq0/cur_freq": "2850",
            "tile0/gt0/freq0/rp0_freq": "2850",
            "tile0/gt0/freq0/rpn_freq": "400",
            "tile0/gt0/gtidle/idle_residency_ms": "10000",
            "tile0/gt0/freq0/throttle/status": "1",
            "tile0/gt0/freq0/throttle/reason_pl1": "1",
            "tile0/gt0/freq0/throttle/reason_pl2": "1",
            "tile0/gt0/freq0/throttle/reason_pl4": "0",
            "tile0/gt0/freq0/throttle/reason_thermal": "1",
            "tile0/gt0/freq0/throttle/reason_prochot": "0",
            "tile0/gt0/freq0/throttle/reason_ratl": "0",
            "tile0/gt0/freq0/throttle/reason_vr_thermalert": "0",
            "tile0/gt0/freq0/throttle/reason_vr_tdc": "0",
            "hwmon/hwmon3/energy1_label": "card",
            "hwmon/hwmon3/energy1_input": "5000000000",
            "hwmon/hwmon3/energy2_label": "pkg",
            "hwmon/hwmon3/energy2_input": "4000000000",
            "hwmon/hwmon3/power1_max": "190000000",
            "hwmon/hwmon3/power1_rated_max": "200000000",
            "hwmon/hwmon3/power1_crit": "400000000",
            "hwmon/hwmon3/temp2_label": "pkg",
            "hwmon/hwmon3/temp2_input": "61000",
            "hwmon/hwmon3/temp2_crit": "100000",
            "hwmon/hwmon3/temp3_label": "vram",
            "hwmon/hwmon3/temp3_input": "66000",
            "hwmon/hwmon3/fan1_input": "1210",
        },
    )
    return device


def i915(root: Path, number: int = 2) -> Path:
    """An integrated GPU on i915: its GT files below cardN, one energy counter and one sensor, no labels."""
    device = card(root, number, "i915", "0000:00:02.0")
    write(
        device,
        {
            "device": "0x4680",
            "hwmon/hwmon1/energy1_input": "2000000",
            "hwmon/hwmon1/power1_max": "0",
            "hwmon/hwmon1/temp1_input": "48000",
        },
    )
    write(
        root / "class/drm" / f"card{number}",
        {
            "gt/gt0/rps_act_freq_mhz": "1450",
            "gt/gt0/rps_RP0_freq_mhz": "1550",
            "gt/gt0/rc6_residency_ms": "500",
            "gt/gt0/throttle_reason_status": "0",
        },
    )
    return device

"""Builds the fake NVML library and loads it where the real binding looks for `libnvidia-ml.so.1`."""

from __future__ import annotations

import ctypes
import os
import shutil
import subprocess
from pathlib import Path

import pytest

SOURCE = Path(__file__).with_name("fake_nvml.c")


def build(directory: Path, *, old_driver: bool = False) -> Path:
    """Compile the library into `directory`; without a compiler skip, or fail where CI runs."""
    compiler = shutil.which("cc")
    if compiler is None:
        if os.environ.get("CI") == "true":
            pytest.fail("CI has no C compiler (cc); the NVML tests need one")
        pytest.skip("no C compiler (cc) here to build the fake NVML")
    library = directory / "libnvidia-ml.so.1"
    flags = ["-O1", "-fPIC", "-shared", "-fvisibility=hidden", "-pthread", "-Wall", "-Wextra", "-Werror"]
    flags += ["-Wno-format-nonliteral", "-Wno-format-truncation", "-Wno-format-extra-args"]
    flags += ["-DOLD_DRIVER"] if old_driver else []
    command = [compiler, *flags, "-Wl,-soname,libnvidia-ml.so.1", "-o", str(library), str(SOURCE)]
    subprocess.run(command, check=True, timeout=300)
    return library


class FakeNvml:
    """The loaded library: what it answers is what the test set."""

    def __init__(self, path: Path) -> None:
        self._library = ctypes.CDLL(str(path), mode=ctypes.RTLD_GLOBAL)
        self._library.fake_nvml_push_event.argtypes = [ctypes.c_int, ctypes.c_uint64, ctypes.c_uint64]
        self._values: dict[str, object] = {}

    def set(self, values: dict[str, object]) -> None:
        """Replace every answer."""
        self._values = dict(values)
        self._send()

    def update(self, **values: object) -> None:
        """Change answers; `g0_power` is key `power` of device 0 and `g0_all` every key of it."""
        for name, value in values.items():
            device, _, key = name.partition("_")
            self._values[f"{device[1:]}.{'*' if key == 'all' else key}"] = value
        self._send()

    def remove(self, key: str) -> None:
        """Forget an answer."""
        del self._values[key]
        self._send()

    def reload(self) -> None:
        """Behave as after an unload and load of the driver."""
        self._library.fake_nvml_reload()

    def push_event(self, device: int, event_type: int, data: int) -> None:
        """Queue an event."""
        self._library.fake_nvml_push_event(device, event_type, data)

    def hangs(self) -> int:
        """Count the calls that have begun not to return."""
        return int(self._library.fake_nvml_hangs())

    def _send(self) -> None:
        self._library.fake_nvml_set(text(self._values).encode())


def text(values: dict[str, object]) -> str:
    """Write answers as the library reads them."""
    return ";".join(f"{key}={value}" for key, value in values.items())


def gpu(index: int) -> dict[str, object]:
    """Answers of a healthy GPU, each number different, in NVML's units."""
    return {
        f"{index}.{key}": value
        for key, value in {
            "pci_bus": 0x10 + index,
            "util": 87,
            "util_mem": 41,
            "mem_total": 85_899_345_920,
            "mem_used": 3_221_225_472 + index,
            "mem_reserved": 536_870_912,
            "power": 431_250,
            "power_limit": 650_000,
            "power_default": 700_000,
            "power_min": 200_000,
            "power_max": 710_000,
            "temp0": 64,
            "threshold0": 97,
            "threshold1": 92,
            "threshold2": 105,
            "threshold3": 89,
            "margin": 25,
            "clock1": 1_755,
            "clock2": 2_619,
            "clock_max1": 1_980,
            "clock_max2": 2_620,
            "clock_app1": 1_965,
            "clock_app2": 2_618,
            "pstate": 0,
            "fan": 33,
            "reasons": 0x4,
            "pcie_gen": 5,
            "pcie_width": 16,
            "pcie_gen_max": 6,
            "fabric_state": 2,
            "pcie_width_max": 32,
            "persistence": 1,
            "ecc_mode": 1,
            "mig": 0,
            "capability": 9,
            "ecc0_0": 12,
            "ecc1_0": 1,
            "rows0": 2,
            "rows1": 3,
            "rows2": 1,
            "rows3": 0,
            "link0": 1,
            "link1": 1,
            "link2": 0,
            "link3": 1,
            "pcie_rate0": 12_500_000,
            "pcie_rate1": 2_250,
            "field29": 4,
            "field30": 5,
            "field31": 1,
            "field38": 2,
            "field45": 9,
            "field52": 8,
            "field59": 6,
            "field82": 71,
            "field83": 9_876_543,
            "field94": 7,
            "field138": 2_048,
            "field139": 1_024,
            "field186": 455_500,
            "field197": 123_456_789,
            "field198": 987_654_321,
            "field269": 2_500_000_000,
            "field270": 1_500_000_000,
            "field271": 500_000_000,
            "violation0": 8_000_000_000,
            "violation1": 4_000_000_000,
            "violation2": 1_000_000_000,
            "violation3": 250_000_000,
            "violation4": 125_000_000,
            "violation5": 62_500_000,
            "event_types": 0x1F,
            "gpm": 1,
            "gpm2": 91.5,
            "gpm3": 55.25,
            "gpm5": 48.5,
            "gpm10": 62.75,
            "compute": 2,
            "compute_pid0": 4_242,
            "compute_mem0": 2_147_483_648,
            "compute_pid1": 4_343,
            "compute_mem1": 1_073_741_824,
            "graphics": 0,
        }.items()
    }

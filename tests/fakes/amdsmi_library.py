"""Builds the fake libamd_smi.so and lets the real Python package amdsmi load it.

The package looks up every function of the library while it is imported. Those that `fake_amdsmi.c` does not
define are generated from the names in the installed package; each returns NOT_SUPPORTED.
"""

from __future__ import annotations

import ctypes
import importlib.util
import os
import re
import shutil
import subprocess
from pathlib import Path
from typing import NoReturn

import pytest

SOURCE = Path(__file__).with_name("fake_amdsmi.c")
_NOT_SUPPORTED = 2


def wrapper() -> Path:
    """Find the installed package's list of functions; without it skip, or fail where CI runs."""
    found = importlib.util.find_spec("amdsmi")
    if found is None or found.origin is None:
        _impossible("the Python package amdsmi is not installed")
    return Path(str(found.origin)).with_name("amdsmi_wrapper.py")


def build(root: Path, *, without: str = "") -> Path:
    """Compile the library into `root/lib`, where ROCM_PATH=root makes the package look first.

    `without` names a function to leave out, as of another release.
    """
    compiler = shutil.which("cc")
    if compiler is None:
        _impossible("no C compiler (cc) here to build the fake libamd_smi.so")
    stubs = root / "stubs.c"
    stubs.write_text(_stubs(wrapper().read_text(), without))
    library = root / "lib/libamd_smi.so"
    library.parent.mkdir()
    flags = ["-O1", "-fPIC", "-shared", "-fvisibility=hidden", "-Wall", "-Wextra", "-Werror"]
    flags += ["-Wno-format-truncation", "-Wl,-soname,libamd_smi.so", "-o", str(library)]
    subprocess.run([compiler, *flags, str(SOURCE), str(stubs)], check=True, timeout=300)
    return library


def _stubs(bound_names: str, without: str) -> str:
    defined = set(re.findall(r"^API \w+ \*?(amdsmi_\w+)\(", SOURCE.read_text(), re.MULTILINE))
    wanted = set(re.findall(r"_libraries\['libamd_smi\.so'\]\.(\w+)", bound_names))
    assert len(wanted) > 100
    assert defined <= wanted
    lines = [
        f'__attribute__((visibility("default"))) int {name}(void) {{ return {_NOT_SUPPORTED}; }}'
        for name in sorted(wanted - defined - {without})
    ]
    return "\n".join([*lines, ""])


def _impossible(reason: str) -> NoReturn:
    if os.environ.get("CI") == "true":
        pytest.fail(f"{reason}, and CI must drive AMD's bindings")
    pytest.skip(reason)


class FakeAmdSmi:
    """The loaded library: what it answers is what the test set."""

    def __init__(self, path: Path) -> None:
        self._library = ctypes.CDLL(str(path))
        self._library.fake_amdsmi_mask.restype = ctypes.c_uint64
        self._values: dict[str, object] = {}

    def set(self, values: dict[str, object]) -> None:
        """Replace every answer."""
        self._values = dict(values)
        self._send()

    def update(self, **values: object) -> None:
        """Change answers; `g0_gfx` is key `gfx` of card 0, `g0_all` every call on it, `s_init` the start."""
        for name, value in values.items():
            device, _, key = name.partition("_")
            self._values[f"{device.removeprefix('g')}.{'*' if key == 'all' else key}"] = value
        self._send()

    def remove(self, *keys: str) -> None:
        """Forget answers."""
        for key in keys:
            del self._values[key]
        self._send()

    def reset(self) -> None:
        """Forget every answer, event and user, as a host without the driver."""
        self.set({})
        self._library.amdsmi_shut_down()

    def push_event(self, card: int, kind: int, message: str) -> None:
        """Queue an event."""
        self._library.fake_amdsmi_push_event(card, kind, message.encode())

    @property
    def is_initialised(self) -> bool:
        """Whether somebody holds the library open."""
        return bool(self._library.fake_amdsmi_is_initialised())

    def event_mask(self, card: int) -> int:
        """Return the kinds of events that are listened for on a card, as bits."""
        return int(self._library.fake_amdsmi_mask(card))

    def _send(self) -> None:
        text = ";".join(f"{key}={value}" for key, value in self._values.items())
        self._library.fake_amdsmi_set(text.encode())


def gpu(index: int, *, bus: int) -> dict[str, object]:
    """Answers of a healthy card on PCI bus `bus`, each number different, in the library's units."""
    return {
        f"{index}.{key}": value
        for key, value in {
            "bus": bus,
            "device": 0,
            "market_name": "Fake Instinct",
            "serial": "0xaabb",
            "oam": 5,
            "units": 304,
            "target": 0x942,
            "uuid": "11ff74a1-0000-1000-80a5-123456789abc",
            "hip_id": 3,
            "hip_uuid": f"GPU-00112233445566{index:02d}",
            "kfd_node": 7,
            "driver": "6.12.12",
            "gfx": 83,
            "umc": 44,
            "power": 1,
            "power_now": 702,
            "power_average": 655,
            "cap": 750_000_000,
            "cap_default": 760_000_000,
            "cap_min": 0,
            "cap_max": 770_000_000,
            "energy": 1_000_000,
            "energy_uj": 15.25,
            "vram_used": 1024,
            "vram_total": 196_592,
            "temp0_0": 41,
            "temp1_0": 62,
            "temp2_0": 57,
            "temp0_5": 101,
            "temp0_7": 106,
            "temp1_5": 111,
            "temp1_7": 116,
            "temp2_5": 95,
            "clock0": 2101,
            "clock0_min": 132,
            "clock0_max": 2100,
            "clock4": 1301,
            "clock4_max": 1300,
            "pcie": 1,
            "pcie_width": 8,
            "pcie_speed": 16_000,
            "pcie_width_max": 16,
            "pcie_speed_max": 32_000,
            "pcie_replays": 6,
            "replay_counter": 4,
            "ecc_corrected": 21,
            "ecc_uncorrected": 2,
            "pages_retired": 3,
            "pages_pending": 1,
            "pages_failed": 0,
            "links": 3,
            "link0_kind": 2,
            "link0_read": 1000,
            "link0_write": 10,
            "link1_kind": 2,
            "link1_read": 2000,
            "link1_write": 20,
            "link2_kind": 1,
            "link2_read": 4000,
            "link2_write": 40,
            "xgmi": 4,
            "xgmi0": 1,
            "xgmi1": 1,
            "xgmi2": 0,
            "xgmi3": 2,
            "processes": 2,
            "process0_pid": 4242,
            "process0_vram": 2_147_483_648,
            "process1_pid": 4343,
            "process1_vram": 0,
            "cycles": 10_000,
            "firmware_ticks": 1_000_000_000,
            "prochot": 0,
            "ppt": 500,
            "socket_heat": 0,
            "regulator_heat": 0,
            "hbm_heat": 0,
            "events": 1,
        }.items()
    }

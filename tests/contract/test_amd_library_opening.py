"""AMD's library as a guest: what it lists and announces, when it is opened, and what stands without it."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from fakes import amdsmi_library, sysfs_trees
from gpuproof.devices.amd import adapter as amd
from gpuproof.devices.amd import library
from gpuproof.devices.amd.adapter import AmdAdapter
from gpuproof.devices.base import (
    DeviceError,
    DeviceProcess,
    DriverMissingError,
    LibraryMissingError,
    NotSupportedError,
    VendorEvent,
)
from gpuproof.records.readings import VendorIndex

BARE, W7900, MI300 = VendorIndex(4), VendorIndex(1), VendorIndex(9)


def _open(root: Path) -> AmdAdapter:
    return amd.open_adapter(root, open_library=library.open_library)


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
    with pytest.raises(DeviceError, match=r"^amdsmi: this user may not read it; .*no KFD node") as refused:
        adapter.processes(BARE)
    assert not isinstance(refused.value, NotSupportedError)  # another time, it may
    amdsmi.update(g0_processes="!2")
    with pytest.raises(NotSupportedError, match=r"^not supported: .*no KFD node.*; amdsmi: not supported"):
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
            message="the card is thermally throttled: 77:1",
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
            message="a page fault in a GPU program: 4242:python",
        ),
    )
    assert adapter.poll_events() == ()
    assert amdsmi.event_mask(0) == amdsmi.event_mask(1) == 0b1111


def test_events_that_this_user_may_not_hear_are_a_reason(
    amdsmi: amdsmi_library.FakeAmdSmi, bare: Path
) -> None:
    amdsmi.update(g0_events="!10")

    adapter = _open(bare)
    assert adapter.poll_events() == ()
    assert list(adapter.unheard.values()) == ["this user may not read it"]


def test_one_card_that_cannot_be_heard_is_told_beside_others_that_are(
    amdsmi: amdsmi_library.FakeAmdSmi, tmp_path: Path
) -> None:
    sysfs_trees.w7900(tmp_path, number=1)
    sysfs_trees.mi300(tmp_path, number=9)
    amdsmi.update(g1_events="!10")
    adapter = _open(tmp_path)
    amdsmi.push_event(0, 3, "")  # GPU_PRE_RESET
    assert [(event.vendor_index, event.event) for event in adapter.poll_events()] == [
        (W7900, "gpu_pre_reset")
    ]
    assert adapter.unheard == {MI300: "this user may not read it"}


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
        library.open_library()
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
        library.open_library()
    readout = _open(tmp_path).read(W7900, lane="fast")

    assert readout.reading.values["power_w"] == 164
    assert "amdsmi: the Python package amdsmi is not installed" in readout.unavailable["energy_j"]


_OPEN = """
from gpuproof.devices.amd import library
try:
    library.open_library()
except library.DeviceError as error:
    print(type(error).__name__, error.cause)
"""


def _opened_elsewhere(rocm: Path) -> str:
    env = {**os.environ, "ROCM_PATH": str(rocm), "ROCM_HOME": str(rocm)}
    done = subprocess.run(
        [sys.executable, "-c", _OPEN], env=env, capture_output=True, text=True, timeout=300, check=True
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
        "LibraryMissingError libamd_smi.so and the Python package are from different ROCm releases"
    )
    assert "amdsmi_get_gpu_xcd_counter" in said

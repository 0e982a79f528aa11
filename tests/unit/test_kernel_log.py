"""Lines of the kernel's log beside a recording: whose they are, from when on, and why some were not read."""

from __future__ import annotations

import errno
import os
from collections.abc import Sequence
from pathlib import Path

import pytest

from gpuproof.hardware.events import event_kinds
from gpuproof.monitor import kernel_log
from gpuproof.monitor.kernel_log import KernelLog
from gpuproof.records.readings import KERNEL_LOG, UNREAD, DeviceIdentity

XID = "6,10,1000,-;NVRM: Xid (PCI:0000:{bus}:00): 31, pid=7, name=python, Ch 00000008"
PORT = "pcieport {port}: PCIe Bus Error: severity=Correctable, type=Data Link Layer, (Receiver ID)"


def device(index: int, address: str | None) -> DeviceIdentity:
    return DeviceIdentity(
        physical_index=index,
        vendor="nvidia",
        vendor_index=index,
        framework_index=index,
        uuid=None,
        pci_bus_id=address,
        name="made up",
    )


DEVICES = (device(0, "00000000:01:00.0"), device(1, "0000:1b:00.0"), device(2, None))


@pytest.fixture
def log(tmp_path: Path) -> Path:
    path = tmp_path / "kmsg"
    path.write_text(XID.format(bus="01") + "\n")
    return path


def told(reader: KernelLog, devices: Sequence[DeviceIdentity] = DEVICES) -> list[tuple[int | None, str]]:
    events = list(reader.poll(5.0, devices))
    assert {(event.event, event.monotonic_s) for event in events} <= {(KERNEL_LOG, 5.0)}
    return [(event.physical_index, event.message) for event in events]


def write(log: Path, *lines: str) -> None:
    with log.open("a") as file:
        file.writelines(f"{line}\n" for line in lines)


def test_lines_count_from_the_begin_of_the_recording_on_and_once(log: Path) -> None:
    reader = KernelLog(log)
    assert told(reader) == []  # what was there is of before, or of another boot's log
    write(log, XID.format(bus="1B".lower()))
    assert told(reader) == [(1, XID.format(bus="1b"))]
    assert told(reader) == []


def test_a_line_is_of_the_device_that_it_names_or_of_the_host(log: Path) -> None:
    reader = KernelLog(log)
    switch = "4,1,2,-;nvidia-nvswitch0: SXid (PCI:0000:c1:00.0): 20034, Fatal, Link 30 LTSSM Fault Up"
    unnamed = "[drm:amdgpu_job_timedout [amdgpu]] *ERROR* ring sdma0 timeout, signaled seq=1, emitted seq=2"
    write(
        log,
        switch,
        unnamed,
        XID.format(bus="77"),  # of a GPU that is not recorded
        "e1000e 0000:00:19.0: PCIe Bus Error: severity=Correctable, type=Physical Layer, (Receiver ID)",
        "usb 1-1: new high-speed USB device",
        " SUBSYSTEM=pci",
        XID.format(bus="01"),
    )
    assert told(reader) == [(None, switch), (None, unnamed), (0, XID.format(bus="01"))]


def test_an_error_of_the_port_above_one_device_is_of_that_device(tmp_path: Path, log: Path) -> None:
    """Two devices below a switch share its upper port; each has a lower port alone."""
    pci = tmp_path / "pci"
    pci.mkdir()
    for bus, port in (("01", "0000:02:01.0"), ("1b", "0000:02:02.0")):
        place = tmp_path / "sys" / "pci0000:00" / "0000:00:03.1" / port / f"0000:{bus}:00.0"
        place.mkdir(parents=True)
        (pci / f"0000:{bus}:00.0").symlink_to(place)
    reader = KernelLog(log, pci=pci)
    write(log, *(PORT.format(port=port) for port in ("0000:02:01.0", "0000:02:02.0", "0000:00:03.1")))
    assert told(reader) == [(0, PORT.format(port="0000:02:01.0")), (1, PORT.format(port="0000:02:02.0"))]


def test_a_log_that_is_not_there_says_why(tmp_path: Path) -> None:
    reader = KernelLog(tmp_path / "kmsg")
    assert told(reader) == [(None, f"{UNREAD}{tmp_path / 'kmsg'}: No such file or directory")]
    assert told(reader) == []


def test_a_log_that_cannot_be_read_any_more_says_so_once(tmp_path: Path) -> None:
    """A folder can be opened, and not read."""
    reader = KernelLog(tmp_path)
    ((_, message),) = told(reader)
    assert message.removeprefix(UNREAD) in (os.strerror(errno.EISDIR), os.strerror(errno.EINVAL))
    assert told(reader) == []


def test_a_flood_is_kept_in_part_and_the_rest_is_counted(log: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kernel_log, "MOST_LINES", 3)
    reader = KernelLog(log)
    write(log, *[XID.format(bus="01")] * 5)
    assert told(reader) == [*[(0, XID.format(bus="01"))] * 3, (None, f"{UNREAD}2 driver lines beyond 3")]
    write(log, XID.format(bus="01"))
    assert told(reader) == [(None, f"{UNREAD}1 driver lines beyond 3")]


def test_a_log_that_has_nothing_new_does_not_hold_the_sampler_up(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A pipe without data answers as /dev/kmsg does; it has no end to go to."""
    path = tmp_path / "pipe"
    os.mkfifo(path)
    monkeypatch.setattr(os, "lseek", lambda *_: 0)
    held = os.open(path, os.O_RDWR)
    try:
        reader = KernelLog(path)
        assert told(reader) == []
        os.write(held, f"{XID.format(bus='01')}\n".encode())
        assert told(reader) == [(0, XID.format(bus="01"))]
    finally:
        os.close(held)


def test_every_listed_pcie_error_is_recorded(log: Path) -> None:
    names = [code for source, code in event_kinds() if source == "pcie_aer" and code.isalpha()]
    lines = [
        f"4,1,2,-;nvidia 0000:01:00.0:    [14] {name:22} (First)" for name in names if "Correct" not in name
    ]
    reader = KernelLog(log)
    write(log, *lines)
    assert told(reader) == [(0, line) for line in lines]
    assert len(lines) == 25

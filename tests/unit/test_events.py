"""What drivers announce, by code and by line of the kernel's log: every message is replayed as printed."""

from __future__ import annotations

import json
import re
from typing import get_args

import pytest
from click.testing import CliRunner

from gpuproof.cli.main import cli
from gpuproof.hardware.events import (
    LONGEST_LINE,
    Scope,
    Severity,
    Source,
    Word,
    event_kinds,
    event_titled,
    find_event,
    is_harmless,
    named_event,
    read_message,
)
from gpuproof.records.outcome import Actor
from gpuproof.records.readings import KERNEL_LOG, UNREAD, DriverEvent

LINES = [
    # leptonai/gpud 4a8de33a, xid/testdata/dmesg-with-xid-119.log (dmesg -T)
    (
        "[Sun Feb 23 16:24:18 2025] NVRM: Xid (PCI:0000:9b:00): 119, pid=2024380, name=nvidia-smi, Timeout "
        "after 6s of waiting for RPC response from GPU4 GSP! Expected function 103 "
        "(GSP_RM_ALLOC) (0x2081 0x4).",
        ("xid", "119", "0000:9b:00", 2024380, "nvidia-smi", None, None),
    ),
    # NVIDIA/open-gpu-kernel-modules 595.45.04, kern_gpu_error_cont_ga100.c: a GPU instance
    (
        "NVRM: Xid (PCI:0000:01:00 GPU-I:05): 94, pid=7194, Contained: CE User Channel "
        "(0x9). RST: No, D-RST: No",
        ("xid", "94", "0000:01:00", 7194, None, "5", None),
    ),
    # the same, kernel_rc.c: GPU and compute instance; as /dev/kmsg has it
    (
        "6,1234,5678000,-;NVRM: Xid (PCI:0000:01:00 GPU-I:02 GPU-CI:00): 31, pid=12, "
        "name=python3, Ch 00000008",
        ("xid", "31", "0000:01:00", 12, "python3", "2", 5.678),
    ),
    # NVIDIA/open-gpu-kernel-modules issue 1150 (journalctl -k)
    (
        "May 18 11:00:00 node kernel: NVRM: Xid (PCI:0000:dc:00): 45, pid=1818990, name=python3, Ch 00000001 "
        "caused by previous Xid 149",
        ("xid", "45", "0000:dc:00", 1818990, "python3", None, None),
    ),
    # leptonai/gpud, xid/kmsg_test.go: no process, and an older driver without `PCI:`
    (
        "[171167.621162] NVRM: Xid (PCI:0009:01:00): 154, GPU recovery action changed from 0x0 (None) to 0x4",
        ("xid", "154", "0009:01:00", None, None, None, 171167.621162),
    ),
    ("NVRM: Xid (0000:03:00): 14, Channel 00000001", ("xid", "14", "0000:03:00", None, None, None, None)),
    ("NVRM: Xid (PCI:0000:01:00): 000, x", ("xid", "0", "0000:01:00", None, None, None, None)),
    (
        "[111111111.111] NVRM: Xid (PCI:0000:05:00): 79, pid='<unknown>', "
        "name=<unknown>, GPU has fallen off the bus.",
        ("xid", "79", "0000:05:00", None, None, None, 111111111.111),
    ),
    # leptonai/gpud, sxid/kmsg_test.go
    (
        "[131453.740743] nvidia-nvswitch0: SXid (PCI:0000:00:00.0): 20034, Fatal, Link 30 LTSSM Fault Up",
        ("sxid", "20034", "0000:00:00", None, None, None, 131453.740743),
    ),
    (
        "nvidia-nvswitch3: SXid (PCI:0000:05:00.0): 12028, Non-fatal, Link 32 egress "
        "non-posted PRIV error (First)",
        ("sxid", "12028", "0000:05:00", None, None, None, None),
    ),
    # Linux Documentation/PCI/pcieaer-howto.rst
    (
        "0000:50:00.0: PCIe Bus Error: severity=Uncorrectable (Fatal), type=Transaction "
        "Layer, (Requester ID)",
        ("pcie_aer", "Uncorrectable (Fatal)", "0000:50:00", None, None, None, None),
    ),
    (
        "0000:50:00.0:    [20] UnsupReq               (First)",
        ("pcie_aer", "UnsupReq", "0000:50:00", None, None, None, None),
    ),
    # older kernels' words: rwth-i6/returnn issue 1500, wilicc/gpu-burn issue 1
    (
        "[  +0.000004] pcieport 0000:00:03.0: PCIe Bus Error: severity=Uncorrected (Fatal), type=Transaction "
        "Layer, (Requester ID)",
        ("pcie_aer", "Uncorrected (Fatal)", "0000:00:03", None, None, None, None),
    ),
    (
        "[74785.660380] pcieport 0000:00:02.0: PCIe Bus Error: severity=Corrected, type=Data Link Layer, "
        "id=0010(Transmitter ID)",
        ("pcie_aer", "Corrected", "0000:00:02", None, None, None, 74785.660380),
    ),
    # pop-os/pop issue 3363
    (
        "Sep 19 16:18:02 bubz kernel: [68183.615810] pcieport 0000:00:03.1: PCIe Bus Error: "
        "severity=Correctable, type=Data Link Layer, (Transmitter ID)",
        ("pcie_aer", "Correctable", "0000:00:03", None, None, None, 68183.615810),
    ),
    (
        "[68183.637907] pcieport 0000:00:03.1:    [ 6] BadTLP                ",
        ("pcie_aer", "BadTLP", "0000:00:03", None, None, None, 68183.637907),
    ),
    # osinit.c and nv.c of NVIDIA's modules; a record of several lines has \x0a in /dev/kmsg
    (
        "NVRM: GPU 0000:29:00.0: GPU has fallen off the bus.",
        ("kernel", "nvidia-off-the-bus", "0000:29:00", None, None, None, None),
    ),
    (
        r"3,9,1000000,-;NVRM: The NVIDIA GPU 0000:18:00.0\x0aNVRM: (PCI ID: 10de:2901) "
        r"installed in this system "
        r"has\x0aNVRM: fallen off the bus and is not responding to commands.",
        ("kernel", "nvidia-off-the-bus", "0000:18:00", None, None, None, 1.0),
    ),
    (
        "NVRM: GPU 0000:01:00.0: rm_init_adapter failed, device minor number 0",
        ("kernel", "nvidia-init-failed", "0000:01:00", None, None, None, None),
    ),
    (
        "NVRM: GPU 0000:01:00.0: RmInitAdapter failed! (0x26:0x56:1482)",
        ("kernel", "nvidia-init-failed", "0000:01:00", None, None, None, None),
    ),
    # test_dmesg_analyzer.py of AMD's node-scraper
    (
        "kern  :err   : 2024-11-24T17:53:23,028841-06:00 amdgpu 0000:08:00.0: amdgpu: Saved bad pages 176 "
        "reaches threshold value 128",
        ("amd_ras", "pages-over", "0000:08:00", None, None, None, None),
    ),
    # pop-os/cosmic-epoch issue 3764, and an older kernel's of tomsom/yoga-linux issue 38
    (
        "[  312.522692] amdgpu 0000:28:00.0: ring gfx_0.0.0 timeout, signaled seq=57638, emitted seq=57641",
        ("kernel", "amdgpu-ring-timeout", "0000:28:00", None, None, None, 312.522692),
    ),
    (
        "[drm:amdgpu_job_timedout [amdgpu]] *ERROR* ring sdma0 timeout, signaled "
        "seq=121570, emitted seq=121572",
        ("kernel", "amdgpu-ring-timeout", None, None, None, None, None),
    ),
    (
        "[  312.774536] amdgpu 0000:28:00.0: GPU reset begin!. Source:  1",
        ("kernel", "amdgpu-reset", "0000:28:00", None, None, None, 312.774536),
    ),
    # pop-os/cosmic-comp issue 2626
    (
        "Jul 24 12:26:20 macross kernel: amdgpu 0000:08:00.0: amdgpu: GPU reset(2) succeeded!",
        ("kernel", "amdgpu-reset-done", "0000:08:00", None, None, None, None),
    ),
    # what AMD's node-scraper (dmesg_analyzer.py) looks for
    (
        "amdgpu 0000:08:00.0: amdgpu: GPU reset(3) failed",
        ("kernel", "amdgpu-reset-failed", "0000:08:00", None, None, None, None),
    ),
    (
        "amdgpu 0000:08:00.0: amdgpu: Fatal error during GPU init",
        ("kernel", "amdgpu-init-failed", "0000:08:00", None, None, None, None),
    ),
    (
        "amdgpu 0000:de:00.0: amdgpu: socket: 0 2 deferred hardware errors detected in umc block",
        ("amd_ras", "deferred", "0000:de:00", None, None, None, None),
    ),
    # Linux amdgpu_ras.c and amdgpu_umc.c
    (
        "amdgpu 0000:c3:00.0: amdgpu: {5}socket: 0, die: 1, 2 new uncorrectable hardware "
        "errors detected in umc block",
        ("amd_ras", "uncorrectable", "0000:c3:00", None, None, None, None),
    ),
    (
        "amdgpu 0000:0b:00.0: 1048560 correctable hardware errors detected in umc block",
        ("amd_ras", "correctable", "0000:0b:00", None, None, None, None),
    ),
    # ROCm/legacy-rocm-build issue 4021
    (
        "[13850.912648] amdgpu 0000:1c:00.0: {1}uncorrectable hardware "
        "error(ERREVENT_ATHUB_INTERRUPT) detected!",
        ("amd_ras", "uncorrectable", "0000:1c:00", None, None, None, 13850.912648),
    ),
    # Linux amdkfd, kfd_int_process_v9.c; amdgpu_ras_eeprom.c
    (
        "amdgpu 0000:1c:00.0: amdgpu: poison is consumed by client 27, kick off gpu reset flow",
        ("amd_ras", "poison", "0000:1c:00", None, None, None, None),
    ),
    (
        "amdgpu 0000:1c:00.0: amdgpu: RAS records:240 exceeds 90% of threshold:256",
        ("amd_ras", "pages-near", "0000:1c:00", None, None, None, None),
    ),
    # CachyOS/linux-cachyos issue 892; Linux xe_guc_submit.c
    (
        "[18448.914740] xe 0000:00:02.0: [drm] Tile0: GT0: reset started",
        ("kernel", "xe-gt-reset", "0000:00:02", None, None, None, 18448.914740),
    ),
    (
        "[18448.921815] xe 0000:00:02.0: [drm] *ERROR* Tile0: GT0: reset failed (-ETIMEDOUT)",
        ("kernel", "xe-reset-failed", "0000:00:02", None, None, None, 18448.921815),
    ),
    (
        "[18448.921820] xe 0000:00:02.0: [drm] *ERROR* CRITICAL: Xe has declared device "
        "0000:00:02.0 as wedged.",
        ("kernel", "xe-wedged", "0000:00:02", None, None, None, 18448.921820),
    ),
    (
        "xe 0000:03:00.0: [drm] Tile0: GT0: Engine reset: engine_class=ccs, logical_mask: 0x1, guc_id=28",
        ("kernel", "xe-engine-reset", "0000:03:00", None, None, None, None),
    ),
]

NO_EVENTS = [
    "",
    "6,1,0,-;Linux version 6.8.0-53-generic",
    "NVRM: loading NVIDIA UNIX Open Kernel Module for x86_64  595.45.04",
    "NVRM: Xid error: xyz, invalid data",
    "NVRM: Xid (PCI:0000:01:0",  # torn
    "[131453.740758] nvidia-nvswitch0: SXid (PCI:0000:a9:00.0): 20034, Data {0x50610002, 0x10100030}",
    "nvidia-nvswitch0: SXid (PCI:0000:a9:00.0): 20034, Severity 1 Engine instance 30 Sub-engine instance 00",
    "nvidia-nvswitch0: SXid (PCI:0000:00:00.0): xyz, Fatal error",
    "pcieport 0000:00:03.1: AER: Correctable error message received from 0000:00:00.0",
    "pcieport 0000:00:03.1:   device [1022:1453] error status/mask=00000040/00006000",
    "[74785.660559] pcieport 0000:00:02.0:    [12] Replay Timer Timeout  ",  # its line before says it
    "amdgpu 0000:c3:00.0: amdgpu: no uncorrectable hardware errors detected in umc block",
    "amdgpu 0000:c3:00.0: amdgpu: 0 uncorrectable hardware errors detected in umc block",
    "amdgpu 0000:28:00.0: amdgpu: GPU reset succeeded, trying to resume",
    "amdgpu 0000:33:00.0: amdgpu: ring gfx_0.0.0 uses VM inv eng 0 on hub 0",
    "[ 1.0] GPU vom Bus gefallen",
]


@pytest.mark.parametrize(("line", "expected"), LINES)
def test_a_line_is_read_as_its_driver_prints_it(line: str, expected: tuple[object, ...]) -> None:
    found = read_message(line)
    assert found is not None
    assert (
        found.source,
        found.code,
        found.pci_bus_id,
        found.pid,
        found.process,
        found.instance,
        found.since_boot_s,
    ) == expected


@pytest.mark.parametrize("line", NO_EVENTS)
def test_other_lines_are_no_events(line: str) -> None:
    assert read_message(line) is None


def test_every_message_is_replayed_and_of_a_listed_code() -> None:
    replayed = {(found.source, found.code) for line, _ in LINES if (found := read_message(line))}
    worded = {key for key in event_kinds() if key[0] in ("kernel", "amd_ras")}
    assert worded <= replayed
    assert {key for key in replayed if key not in event_kinds()} == {("xid", "14"), ("xid", "0")}


def test_a_line_is_read_no_further_than_the_kernel_writes_one() -> None:
    assert (
        read_message(" " * LONGEST_LINE + "NVRM: Xid (PCI:0000:01:00): 79, GPU has fallen off the bus.")
        is None
    )


def test_patterns_repeat_no_repetition() -> None:
    """Nested or leading repetitions take time in powers of the length of a line."""
    from gpuproof.hardware.events import _table

    for row in _table()["messages"]:
        assert not re.search(r"[*+]\)[*+?]", row["pattern"])
        assert not re.match(r"\.[*+]", row["pattern"])
        assert ".*" not in row["pattern"]


def test_every_kind_has_what_its_reader_needs() -> None:
    for (source, code), kind in event_kinds().items():
        assert (kind.source, kind.code) == (source, code)
        assert kind.source in get_args(Source)
        assert kind.severity in get_args(Severity)
        assert kind.scope in get_args(Scope)
        assert kind.word in get_args(Word)
        assert kind.actor in get_args(Actor)
        assert kind.name or source == "driver"
        assert kind.next_step
        assert kind.reference
        assert kind.as_of
        assert event_titled(kind.title) is kind


def test_only_what_a_program_may_cause_can_be_a_jobs() -> None:
    """Bus, fabric, power and memory may be why a job ended: never what it left."""
    scopes = {
        code: find_event("xid", str(code)).scope for code in (48, 63, 64, 74, 79, 94, 95, 54, 13, 43, 45)
    }
    assert {code for code, scope in scopes.items() if scope == "application"} == {13, 43, 45}
    assert {scopes[48], scopes[94], scopes[64]} == {"memory"}
    assert (scopes[74], scopes[79], scopes[54]) == ("fabric", "bus", "power")
    assert not [k for k in event_kinds().values() if k.source in ("sxid", "pcie_aer") and k.is_of_application]


@pytest.mark.parametrize("source", get_args(Source))
def test_an_unlisted_code_is_unknown_and_never_good(source: Source) -> None:
    kind = find_event(source, "123456")
    assert (kind.severity, kind.scope, kind.status) == ("unknown", "unknown", "ERROR")
    assert kind.next_step


@pytest.mark.parametrize(
    ("title", "severity", "status"),
    [
        ("sxid 20034", "fatal", "FAIL"),
        ("sxid 12028", "error", "FAIL"),  # non-fatal by its guide, and the VM has to be restarted
        ("sxid 22013", "info", "WARN"),
        ("sxid 20009", "unknown", "ERROR"),  # in no document that is public
        ("pcie_aer BadTLP", "info", "WARN"),
        ("pcie_aer Corrected", "info", "WARN"),
        ("pcie_aer Uncorrected (Fatal)", "fatal", "FAIL"),
        ("pcie_aer Uncorrectable (Non-Fatal)", "warning", "WARN"),
        ("pcie_aer Uncorrectable (Fatal)", "fatal", "FAIL"),
        ("amd_ras correctable", "info", "WARN"),
        ("amd_ras uncorrectable", "error", "FAIL"),
        ("kernel amdgpu-ring-timeout", "warning", "WARN"),
        ("kernel xe-wedged", "fatal", "FAIL"),
        ("lost", "error", "FAIL"),
        ("not_answering", "unknown", "ERROR"),
    ],
)
def test_a_title_says_how_grave_it_is(title: str, severity: str, status: str) -> None:
    kind = event_titled(title)
    assert (kind.title, kind.severity, kind.status) == (title, severity, status)


def test_recorded_lines_get_their_kind_and_others_are_left_out() -> None:
    def named(message: str, event: str = KERNEL_LOG) -> str | None:
        made = DriverEvent(monotonic_s=1.0, physical_index=0, event=event, code=None, message=message)
        found = named_event(made)
        return None if found is None else found.title

    assert named("NVRM: GPU 0000:29:00.0: GPU has fallen off the bus.") == "kernel nvidia-off-the-bus"
    assert named("NVRM: loading NVIDIA UNIX Open Kernel Module") is None
    assert named("the device responds again", event="recovered") == "recovered"
    assert named(f"{UNREAD}7 lines") == KERNEL_LOG


@pytest.mark.parametrize(
    ("message", "is_so"),
    [
        ("pcieport 0000:00:03.1:    [ 6] BadTLP                ", True),
        ("amdgpu 0000:28:00.0: GPU reset begin!. Source:  1", False),
        ("NVRM: GPU 0000:29:00.0: GPU has fallen off the bus.", False),
    ],
)
def test_what_corrects_itself_casts_no_doubt_on_what_ran(message: str, is_so: bool) -> None:
    event = named_event(
        DriverEvent(monotonic_s=1.0, physical_index=0, event=KERNEL_LOG, code=None, message=message)
    )
    assert event is not None
    assert is_harmless(event) == is_so


def test_what_the_library_tells_is_never_harmless() -> None:
    """As before there were lines: an XID beside a window is a fault of it."""
    assert not is_harmless(
        DriverEvent(monotonic_s=1.0, physical_index=0, event="xid", code=43, message="XID 43")
    )


def test_the_table_is_printed_and_given_to_programs() -> None:
    printed = CliRunner().invoke(cli, ["rules", "events"])
    assert printed.exit_code == 0
    (line,) = [line for line in printed.stdout.splitlines() if line.startswith("xid 79 ")]
    assert line.split()[2:5] == ["fatal", "administrator", "RESTART_BM"]
    assert line.endswith("GPU has fallen off the bus [https://docs.nvidia.com/deploy/xid-errors/]")
    given = json.loads(CliRunner().invoke(cli, ["rules", "events", "--json"]).stdout)
    assert len(given) == len(printed.stdout.splitlines()) == len(event_kinds())
    assert {"source": "sxid", "code": "20034", "name": "LTSSM Fault Up"}.items() <= next(
        row for row in given if row["code"] == "20034"
    ).items()

"""What drivers announced of the host, on the page of a recording: told, and no more lines than kinds."""

from __future__ import annotations

from pathlib import Path

from gpuproof.observe.recording_page import recording_page, recording_result
from gpuproof.records.page import Notices, Page
from gpuproof.records.readings import UNREAD, DriverEvent
from recordings import MONOTONIC_S, header, identity, loaded, sample

SWITCH = "4,{at},2,-;nvidia-nvswitch0: SXid (PCI:0000:c1:00.0): 20034, Fatal, Link {at} LTSSM Fault Up"


def shown(folder: Path, *messages: str, place: int | None = None) -> Page:
    events = [
        DriverEvent(
            monotonic_s=MONOTONIC_S + at, physical_index=place, event="kernel", code=None, message=message
        )
        for at, message in enumerate(messages, 1)
    ]
    samples = [sample(float(at), {0: {"power_w": 100.0}}) for at in range(9)]
    return recording_page(recording_result(loaded(folder, [header([identity(0)]), *samples, *events])))


def test_errors_of_a_switch_are_the_reason_and_many_are_one_line(tmp_path: Path) -> None:
    page = shown(tmp_path, *(SWITCH.format(at=at) for at in range(5)))
    told = f"sxid 20034 5 times, from 1.00 s to 5.00 s: {SWITCH.format(at=0)}"
    assert page.verdict is not None
    assert told in page.verdict.reason


def test_a_log_that_was_not_read_is_no_event(tmp_path: Path) -> None:
    page = shown(tmp_path, f"{UNREAD}/dev/kmsg: Permission denied")
    assert page.verdict is not None
    assert page.verdict.reason == "nothing unusual in the readings"
    assert "kernel's log: gpuproof: not read: /dev/kmsg: Permission denied" in repr(page)


def test_lines_of_one_kind_on_a_device_are_one_notice(tmp_path: Path) -> None:
    lines = (f"6,{at},2,-;NVRM: Xid (PCI:0000:01:00): 45, pid={at}, name=python, " for at in range(5))
    page = shown(tmp_path, *lines, place=0)
    assert repr(page).count("xid 45 5 times") >= 1
    assert "pid=4" not in repr(page)


def test_an_xid_of_both_library_and_log_is_one_notice(tmp_path: Path) -> None:
    line = "6,1,2,-;NVRM: Xid (PCI:0000:10:00): 45, pid=7, name=python, "
    events = [
        DriverEvent(monotonic_s=MONOTONIC_S + 1, physical_index=0, event=event, code=code, message=message)
        for event, code, message in (("xid", 45, "XID 45"), ("kernel", None, line))
    ]
    samples = [sample(float(at), {0: {"power_w": 100.0}}) for at in range(9)]
    result = recording_result(loaded(tmp_path, [header([identity(0)]), *samples, *events]))
    (notices,) = [s.notices for s in recording_page(result).sections if isinstance(s, Notices)]
    assert [one.text for one in notices if one.word == "event"] == [f"xid 45 at 1.00 s: {line}"]

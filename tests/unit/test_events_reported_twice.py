"""Events that the driver's library and the kernel's log both report: one event, not two."""

from __future__ import annotations

from dataclasses import replace

import pytest

from gpuproof.hardware.events import is_harmless, named_events
from gpuproof.records.readings import KERNEL_LOG, DriverEvent


@pytest.mark.parametrize(
    ("reports", "expected"),
    [
        ("log 0, library 1", "0 xid both"),
        ("library 0, log 1", "0 xid both"),
        ("library 0, library 1, log 2, log 3", "0 xid both, 1 xid both"),
        ("log 0, log 1, log 2, library 3", "0 xid both, 1 xid 31 log, 2 xid 31 log"),  # NVML may drop some
        ("library 0, log 301", "0 xid library, 301 xid 31 log"),
        ("library 0, library 200, log 400", "0 xid library, 200 xid both"),
    ],
)
def test_what_library_and_log_both_report_is_one_event(reports: str, expected: str) -> None:
    line = "NVRM: Xid (PCI:0000:01:00): 31, pid=7, name=python, Ch 00000008"

    def event(report: str) -> DriverEvent:
        source, at_s = report.split()
        is_log = source == "log"
        kind = (KERNEL_LOG, None, line) if is_log else ("xid", 31, "XID 31")
        name, code, message = kind
        return DriverEvent(monotonic_s=float(at_s), physical_index=0, event=name, code=code, message=message)

    def text(event: DriverEvent) -> str:
        source = "log" if event.code is None else "library" if event.message == "XID 31" else "both"
        return f"{event.monotonic_s:g} {event.event} {source}"

    events = [event(report) for report in reports.split(", ")]
    assert ", ".join(map(text, named_events(events))) == expected
    others = [replace(one, physical_index=1) for one in events if one.event == KERNEL_LOG]
    apart = named_events([*(one for one in events if one.event != KERNEL_LOG), *others])
    assert len(apart) == len(events)  # of two devices


def test_what_the_library_reports_too_is_never_harmless() -> None:
    log = "NVRM: Xid (PCI:0000:01:00): 154, pid=7, name=python, GPU recovery action changed"
    events = [
        DriverEvent(monotonic_s=1.0, physical_index=0, event=event, code=code, message=message)
        for event, code, message in ((KERNEL_LOG, None, log), ("xid", 154, "XID 154"))
    ]
    assert is_harmless(*named_events(events[:1]))
    assert not is_harmless(*named_events(events))

"""Driver events: XIDs, SXids, AMD RAS, PCIe errors, and other kernel log lines.

Input: a kind of event, or a line as printed by dmesg, journalctl or /dev/kmsg. Output: what the event alone
says about its device, according to `events.toml`, which lists the sources. A code that is not listed is
unknown, which does not mean that it is harmless.
"""

from __future__ import annotations

import re
from collections import defaultdict, deque
from collections.abc import Iterable
from dataclasses import dataclass, replace
from functools import cache
from typing import Any, Final, Literal, get_args

import tomllib

from gpuproof.base.files import packaged_text
from gpuproof.records.outcome import Actor
from gpuproof.records.readings import KERNEL_LOG, UNREAD, DriverEvent

Source = Literal["xid", "sxid", "amd_ras", "pcie_aer", "kernel", "driver"]
"""`driver`: events from our own device readings, and increases in driver counters."""
Severity = Literal["fatal", "error", "warning", "info", "unknown"]
Scope = Literal["application", "gpu", "memory", "bus", "fabric", "power", "host", "unknown"]
Word = Literal["application", "reset the device", "restart the host", "vendor", "cannot tell"]
TITLES: Final = {"xid": "XID", "sxid": "SXid", "amd_ras": "AMD RAS", "pcie_aer": "PCIe AER"}
UNLISTED: Final = "unlisted"
RESTARTS: Final = ("RESTART_APP", "program")
"""Actions that include restarting the application."""
WITHIN_S: Final = 300.0
"""Maximum gap in seconds between events with the same code on the same device that form one incident; also
between reports of one event by the driver's library and the kernel log."""
LONGEST_LINE: Final = 1024
"""Maximum number of characters to read per line: the kernel's own limit (LOG_LINE_MAX)."""
ADDRESS: Final = re.compile(r"\b(?P<pci>[0-9a-f]{4,8}:[0-9a-f]{2}:[0-9a-f]{2})\b", re.IGNORECASE)
INSTANCE: Final = re.compile(r"\bGPU-I:(\d+)")
"""Line for a partitioned GPU: `NVRM: Xid (PCI:0000:01:00 GPU-I:05 GPU-CI:00): 31, …`."""
PROCESS: Final = re.compile(r"\bpid[=:' ]+(?P<pid>\d+)(?:, name=(?P<name>[^,\n]+))?")
"""Line for a whole GPU: `NVRM: Xid (PCI:0000:01:00): 31, pid=1234, name=python, …`."""
SINCE_BOOT: Final = re.compile(r"(?:^|\s)\[ *(?P<s>\d+\.\d+)\]|^\d+,\d+,(?P<us>\d+),[^;]*;")


@dataclass(frozen=True, slots=True, kw_only=True)
class EventKind:
    """What a kind of event (or an incident, given its workload) says about its device."""

    source: Source
    code: str
    name: str
    """Name of the event; empty if the title already says it."""
    severity: Severity
    scope: Scope
    action: str
    """The vendor's name for the action, in capitals, or our own name."""
    word: Word
    actor: Actor
    next_step: str
    reference: str
    as_of: str
    evidence: str

    @property
    def title(self) -> str:
        """Source and code, e.g. `xid 31`; for events from our own readings, only the name."""
        return self.code if self.source == "driver" else f"{self.source} {self.code}"

    @property
    def heading(self) -> str:
        """The title shown to users, including the meaning: `XID 31 (GPU memory page fault)`."""
        title = f"{TITLES[self.source]} {self.code}" if self.source in TITLES else self.title
        return f"{title} ({self.name})" if self.name else title

    @property
    def status(self) -> Literal["WARN", "FAIL", "ERROR"]:
        """Verdict: WARN means no evidence against the device; ERROR means that the meaning is unknown."""
        if self.severity == "unknown":
            return "ERROR"
        return "FAIL" if self.severity in ("fatal", "error") else "WARN"

    @property
    def is_of_application(self) -> bool:
        """Whether an application can cause the event; if so, a job may leave it on all its hosts."""
        return self.scope == "application"

    @property
    def is_restart(self) -> bool:
        """Whether restarting the application is recommended; the verdict depends on who owns it."""
        return self.action in RESTARTS


@dataclass(frozen=True, slots=True, kw_only=True)
class KernelMessage:
    """A kernel log line that describes an event."""

    source: Source
    code: str
    pci_bus_id: str | None
    """PCI domain, bus and device, e.g. `0000:01:00`; NVRM does not print the function."""
    pid: int | None
    process: str | None
    instance: str | None
    """GPU instance number on a partitioned GPU."""
    since_boot_s: float | None


def find_event(source: Source, code: str) -> EventKind:
    """Return the meaning of a code; if it is not listed, severity and scope are unknown."""
    listed = event_kinds().get((source, code))
    if listed is not None:
        return listed
    row = {"action": UNLISTED, "source": source, "scope": "unknown", "reference": "none", "as_of": ""}
    return _kind(row, code, "not in the catalogue")


def event_titled(title: str) -> EventKind:
    """Return the meaning of an event by its title, e.g. `xid 79` or `lost`.

    >>> event_titled("xid 79").name, *(event_titled(f"xid {code}").status for code in (79, 43, 999))
    ('GPU has fallen off the bus', 'FAIL', 'WARN', 'ERROR')
    """
    word, _, code = title.partition(" ")
    source = next((source for source in get_args(Source) if source == word), None)
    return find_event("driver", title) if source is None else find_event(source, code)


def read_message(line: str) -> KernelMessage | None:
    """Return the event reported by a kernel log line; None if the line is not an event.

    >>> read_message("[13.5] NVRM: Xid (PCI:0000:01:00): 31, pid=7, name=python, Ch 00000008").code
    '31'
    """
    line = line[:LONGEST_LINE]
    rows = (row for row in _table()["messages"] if row["driver"] in line)
    matched = next(((row, m) for row in rows if (m := re.search(row["pattern"], line))), None)
    if matched is None:
        return None
    row, match = matched
    address, process, instance = ADDRESS.search(line), PROCESS.search(line), INSTANCE.search(line)
    since, code = SINCE_BOOT.search(line), row.get("code") or match["code"]
    return KernelMessage(
        source=row["source"],
        code=str(int(code)) if code.isdigit() else code,
        pci_bus_id=None if address is None else address["pci"].lower(),
        pid=None if process is None else int(process["pid"]),
        process=None if process is None else process["name"],
        instance=None if instance is None else str(int(instance[1])),
        since_boot_s=None if since is None else float(since["s"] or int(since["us"]) / 1e6),
    )


def named_event(event: DriverEvent) -> DriverEvent | None:
    """Return a recorded event with its kind as the title; None if it is a log line without an event."""
    if event.event != KERNEL_LOG or event.message.startswith(UNREAD):
        return event
    message = read_message(event.message)
    return None if message is None else replace(event, event=f"{message.source} {message.code}")


def named_events(events: Iterable[DriverEvent]) -> tuple[DriverEvent, ...]:
    """Name events with `named_event`; merge events reported by both the library and the log.

    A merged event has the time of the first report, and the log's message, which may identify the process.
    """
    named: list[DriverEvent] = []
    reported_by_one: defaultdict[tuple[int | None, str, bool], deque[int]] = defaultdict(deque)
    for event in events:
        one, by_log = named_event(event), event.event == KERNEL_LOG
        if one is None:
            continue
        by_other = reported_by_one[one.physical_index, one.title, not by_log]
        while by_other and event.monotonic_s - named[by_other[0]].monotonic_s > WITHIN_S:
            by_other.popleft()
        if by_other:
            other = named[by_other[0]]
            line, library = (one, other) if by_log else (other, one)
            named[by_other.popleft()] = replace(library, monotonic_s=other.monotonic_s, message=line.message)
        else:
            reported_by_one[one.physical_index, one.title, by_log].append(len(named))
            named.append(one)
    return tuple(named)


def is_harmless(event: DriverEvent) -> bool:
    """Return whether this is a corrected error in the log only, which affects no measurement."""
    is_of_log = event.code is None and read_message(event.message) is not None
    return is_of_log and event_titled(event.title).severity == "info"


@cache
def event_kinds() -> dict[tuple[str, str], EventKind]:
    """Return all listed kinds of event, by source and code."""
    groups = _table()["events"]
    return {
        (group["source"], code): _kind(group, code, name)
        for group in groups
        for code, name in group["names"].items()
    }


def _kind(group: dict[str, Any], code: str, name: str) -> EventKind:
    action = group["action"]
    said = {key: value for key, value in group.items() if key != "names"}
    evidence = "the catalogue has no action for this event" if action == UNLISTED else "by itself"
    evidence = f"by its code alone ({action})" if action.isupper() else evidence
    return EventKind(**{**_table()["actions"][action], **said}, code=code, name=name, evidence=evidence)


@cache
def _table() -> dict[str, Any]:
    return tomllib.loads(packaged_text("hardware/events.toml"))

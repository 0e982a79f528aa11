"""What drivers announce: XIDs, SXids, AMD's RAS, PCIe errors and other lines of the kernel's log.

In: a kind of event, or a line as dmesg, journalctl or /dev/kmsg has it. Out: what it says of its device by
itself, by `events.toml`, which has the sources; a code that is not listed is unknown, and no good sign.
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
"""`driver`: what our reading of devices announces, and totals of drivers that grew."""
Severity = Literal["fatal", "error", "warning", "info", "unknown"]
Scope = Literal["application", "gpu", "memory", "bus", "fabric", "power", "host", "unknown"]
Word = Literal["application", "reset the device", "restart the host", "vendor", "cannot tell"]
TITLES: Final = {"xid": "XID", "sxid": "SXid", "amd_ras": "AMD RAS", "pcie_aer": "PCIe AER"}
UNLISTED: Final = "unlisted"
RESTARTS: Final = ("RESTART_APP", "program")
"""Actions that ask to restart the application."""
WITHIN_S: Final = 300.0
"""Events of one code on one device are one incident where no more than this lies between two of them; so are
the reports of one event by the driver's library and by the kernel's log."""
LONGEST_LINE: Final = 1024
"""Characters that are read of a line: the kernel's own limit of one (LOG_LINE_MAX)."""
ADDRESS: Final = re.compile(r"\b(?P<pci>[0-9a-f]{4,8}:[0-9a-f]{2}:[0-9a-f]{2})\b", re.IGNORECASE)
INSTANCE: Final = re.compile(r"\bGPU-I:(\d+)")
"""Of a divided GPU: `NVRM: Xid (PCI:0000:01:00 GPU-I:05 GPU-CI:00): 31, …`."""
PROCESS: Final = re.compile(r"\bpid[=:' ]+(?P<pid>\d+)(?:, name=(?P<name>[^,\n]+))?")
"""`NVRM: Xid (PCI:0000:01:00): 31, pid=1234, name=python, …`."""
SINCE_BOOT: Final = re.compile(r"(?:^|\s)\[ *(?P<s>\d+\.\d+)\]|^\d+,\d+,(?P<us>\d+),[^;]*;")


@dataclass(frozen=True, slots=True, kw_only=True)
class EventKind:
    """What a kind of event says of its device; of an incident, after what ran is known."""

    source: Source
    code: str
    name: str
    """Empty of what its title tells."""
    severity: Severity
    scope: Scope
    action: str
    """Its vendor's in capitals, or ours."""
    word: Word
    actor: Actor
    next_step: str
    reference: str
    as_of: str
    evidence: str

    @property
    def title(self) -> str:
        """Its source and code, as in `xid 31`; of what our reading announces, the name alone."""
        return self.code if self.source == "driver" else f"{self.source} {self.code}"

    @property
    def heading(self) -> str:
        """As a reader knows it, with its meaning: `XID 31 (GPU memory page fault)`."""
        title = f"{TITLES[self.source]} {self.code}" if self.source in TITLES else self.title
        return f"{title} ({self.name})" if self.name else title

    @property
    def status(self) -> Literal["WARN", "FAIL", "ERROR"]:
        """WARN: no evidence against the device; ERROR: unknown."""
        if self.severity == "unknown":
            return "ERROR"
        return "FAIL" if self.severity in ("fatal", "error") else "WARN"

    @property
    def is_of_application(self) -> bool:
        """Whether an application can cause it, so that a job that ends may leave it on all its hosts."""
        return self.scope == "application"

    @property
    def is_restart(self) -> bool:
        """Whether it asks to restart the application: then whose that is decides."""
        return self.action in RESTARTS


@dataclass(frozen=True, slots=True, kw_only=True)
class KernelMessage:
    """A line of the kernel's log that is an event."""

    source: Source
    code: str
    pci_bus_id: str | None
    """Domain, bus and device, as in `0000:01:00`: NVRM writes no function."""
    pid: int | None
    process: str | None
    instance: str | None
    """Of a divided GPU: the number of the instance."""
    since_boot_s: float | None


def find_event(source: Source, code: str) -> EventKind:
    """Return what a code says; of one that is not listed severity and scope are unknown."""
    listed = event_kinds().get((source, code))
    if listed is not None:
        return listed
    row = {"action": UNLISTED, "source": source, "scope": "unknown", "reference": "none", "as_of": ""}
    return _kind(row, code, "not in the catalogue")


def event_titled(title: str) -> EventKind:
    """Return what an event says by its title, as in `xid 79` or `lost`.

    >>> event_titled("xid 79").name, *(event_titled(f"xid {code}").status for code in (79, 43, 999))
    ('GPU has fallen off the bus', 'FAIL', 'WARN', 'ERROR')
    """
    word, _, code = title.partition(" ")
    source = next((source for source in get_args(Source) if source == word), None)
    return find_event("driver", title) if source is None else find_event(source, code)


def read_message(line: str) -> KernelMessage | None:
    """Return the event that a line of a kernel's log is; None of any other line.

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
    """Return what was recorded with its kind as its title; None of a line of the log that is no event."""
    if event.event != KERNEL_LOG or event.message.startswith(UNREAD):
        return event
    message = read_message(event.message)
    return None if message is None else replace(event, event=f"{message.source} {message.code}")


def named_events(events: Iterable[DriverEvent]) -> tuple[DriverEvent, ...]:
    """Return events as `named_event` names them; what the library and the log both report is one of them.

    It has the time of the first report and the message of the log's, which may name the process.
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
    """Say whether the log alone reports an error that was corrected, which affects no measurement."""
    is_of_log = event.code is None and read_message(event.message) is not None
    return is_of_log and event_titled(event.title).severity == "info"


@cache
def event_kinds() -> dict[tuple[str, str], EventKind]:
    """Return all kinds that are listed, by source and code."""
    groups = _table()["events"]
    return {
        (group["source"], code): _kind(group, code, name)
        for group in groups
        for code, name in group["names"].items()
    }


def _kind(group: dict[str, Any], code: str, name: str) -> EventKind:
    action = group["action"]
    said = {key: value for key, value in group.items() if key != "names"}
    evidence = "the catalogue has no action for it" if action == UNLISTED else "by itself"
    evidence = f"by its code alone ({action})" if action.isupper() else evidence
    return EventKind(**{**_table()["actions"][action], **said}, code=code, name=name, evidence=evidence)


@cache
def _table() -> dict[str, Any]:
    return tomllib.loads(packaged_text("hardware/events.toml"))

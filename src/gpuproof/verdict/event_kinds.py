"""What each announcement of a driver says of a device by itself.

XIDs by NVIDIA's catalogue (`xids.csv`), others by name. Ours is what an action comes to (`xid_actions.csv`).

>>> meaning_of("xid 79").name, *(meaning_of(f"xid {code}").status for code in (79, 43, 999))
('GPU has fallen off the bus', 'FAIL', 'WARN', 'ERROR')
"""

from __future__ import annotations

import csv
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from typing import Any, Final, Literal

from gpuproof.records.outcome import Actor

Word = Literal["application", "reset the device", "restart the host", "vendor", "cannot tell"]
XIDS: Final = "https://docs.nvidia.com/deploy/xid-errors/"
TREND: Final = "ecc_corrected_count"
WORDS: Final[Mapping[str, Word]] = {
    "RESTART_APP": "application",
    "WORKFLOW_XID_45": "application",
    "RESET_GPU": "reset the device",
    "WORKFLOW_XID_48": "reset the device",
    "WORKFLOW_NVLINK_ERR": "reset the device",
    "WORKFLOW_NVLINK5_ERR": "reset the device",
    "RESTART_BM": "restart the host",
    "RESTART_VM": "restart the host",
    "CHECK_MECHANICALS": "vendor",
    "CONTACT_SUPPORT": "vendor",
    "lost": "restart the host",
    "hung": "restart the host",
    "ecc_uncorrected": "reset the device",
    "ecc_uncorrected_count": "reset the device",
    "remapped_rows_failed": "vendor",
}
"""By the catalogue's immediate action, or by the event's name; of others nobody can tell."""
OF_MEMORY: Final = ("94",)
"""Restart the application, says the catalogue; what it met is memory, and no cleanup of a job's."""
OF_APPLICATION: Final = ("43", "45")
"""What an application's end leaves, beside the codes that ask to restart it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EventMeaning:
    """What a kind of event says of its device, before anybody knows what ran."""

    name: str
    """Empty of what its title tells."""
    action: str
    """Of the catalogue; empty where it has none."""
    status: Literal["WARN", "FAIL", "ERROR"]
    word: Word
    next_step: str
    responsible: Actor
    is_of_application: bool = False
    """Whether an application can cause it, so that a job that ends may leave it on all its hosts."""

    @property
    def is_restart(self) -> bool:
        """Whether it asks to restart the application: then whose that is decides."""
        return self.action == "RESTART_APP"


@cache
def meaning_of(title: str) -> EventMeaning:
    """Return what an event says by its title; an XID that the catalogue lacks is an ERROR."""
    source, _, code = title.partition(" ")
    row = table("xids.csv", "code").get(code, {}) if source == "xid" else {}
    action = str(row.get("immediate action", "")) if source == "xid" else ""
    key = action if source == "xid" else title if title in ("not_answering", TREND) else "event"
    said: Mapping[str, Any] = table("xid_actions.csv", "action")[key]
    name = row.get("meaning", "not in the catalogue").partition(" -- ")[0] if source == "xid" else ""
    return EventMeaning(
        name=name,
        action=action,
        status=said["status"],
        word=WORDS.get(action or title, "cannot tell"),
        next_step=said["next_step"],
        responsible=said["actor"],
        is_of_application=(action == "RESTART_APP" and code not in OF_MEMORY) or code in OF_APPLICATION,
    )


@cache
def table(name: str, key: str) -> Mapping[str, Mapping[str, str]]:
    """Return the rows of a table by one of its columns."""
    text = files("gpuproof").joinpath("verdict", "checks", name).read_text(encoding="utf-8")
    rows = csv.DictReader(line for line in text.splitlines() if not line.startswith("#"))
    return {row[key]: row for row in rows}

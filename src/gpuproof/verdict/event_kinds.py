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
OF_MEMORY: Final = ("94",)
"""Restart the application, says the catalogue; what it met is memory, and no cleanup of a job's."""
OF_APPLICATION: Final = ("43", "45")
"""What an application's end leaves, beside the codes that ask to restart it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EventMeaning:
    """What an event says of its device: by itself, or of an incident after what ran is known."""

    name: str
    """Empty of what its title tells."""
    action: str
    """Of the catalogue; empty where it has none."""
    status: Literal["WARN", "FAIL", "ERROR"]
    """WARN: it speaks against no device."""
    word: Word
    actor: Actor
    next_step: str
    is_of_application: bool
    """Whether an application can cause it, so that a job that ends may leave it on all its hosts."""
    evidence: str

    @property
    def is_restart(self) -> bool:
        """Whether it asks to restart the application: then whose that is decides."""
        return self.action == "RESTART_APP"


@cache
def meaning_of(title: str) -> EventMeaning:
    """Return what an event says by its title; an XID that the catalogue lacks is an ERROR."""
    source, _, code = title.partition(" ")
    row = table("xids.csv", "code").get(code, {"meaning": "not in the catalogue", "immediate action": ""})
    name, action = (row["meaning"], row["immediate action"]) if source == "xid" else ("", "")
    actions = table("xid_actions.csv", "action")
    said: Mapping[str, Any] = actions[action] if source == "xid" else actions.get(title, actions["event"])
    is_of_application = (action == "RESTART_APP" and code not in OF_MEMORY) or code in OF_APPLICATION
    alone = f"by its code alone ({action})" if action else "the catalogue has no action for it"
    return EventMeaning(
        **{**said, "action": action},
        name=name.partition(" -- ")[0],
        is_of_application=is_of_application,
        evidence=alone if source == "xid" else "by itself",
    )


@cache
def table(name: str, key: str) -> Mapping[str, Mapping[str, str]]:
    """Return the rows of a table by one of its columns."""
    text = files("gpuproof").joinpath("verdict", "checks", name).read_text(encoding="utf-8")
    rows = csv.DictReader(line for line in text.splitlines() if not line.startswith("#"))
    return {row[key]: row for row in rows}

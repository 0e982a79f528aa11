"""Where do the readings of a recording come from, and the figures of two sides, and how is that written?

In: a recording, or the provenance of A and of B. Out: a `Provenance`, which every page opens with. What is
not known is None with the reason.

>>> device_text({"NVIDIA H200": 8, "NVIDIA A100": 1})
'8 × NVIDIA H200, NVIDIA A100'
"""

from __future__ import annotations

import shlex
from collections import Counter
from collections.abc import Iterable, Mapping
from datetime import datetime, timezone
from typing import Any, Final

from gpuproof.readings.recording import RecordingData
from gpuproof.records.page import Fact, Provenance

UNTYPED: Final = "it was made beside a recording, or on its node"
NO_FRAMEWORK: Final = "a recording reads drivers and the host, and no framework"


def of_recording(recording: RecordingData) -> Provenance:
    """Return where the readings of a recording come from."""
    header, began_s = recording.recording, recording.began_unix_s
    devices = [track.identity for track in recording.devices]
    driver = together(device.static.get("driver_version") for device in devices)
    date = None if began_s is None else date_text(datetime.fromtimestamp(began_s, timezone.utc))
    command = shlex.join(header.command) if header.command else None
    return Provenance(
        facts=(
            Fact("date", date, "this format has no date"),
            Fact("host", header.host or None, "this format names no host"),
            Fact("device", device_text(Counter(device.name for device in devices)), "no GPU was read"),
            Fact("driver", driver, "the recording has no driver's version"),
            Fact("CUDA or ROCm", None, NO_FRAMEWORK),
            Fact("torch", None, NO_FRAMEWORK),
            Fact("gpuproof", header.gpuproof_version or None, f"imported from {recording.format}"),
        ),
        command=Fact("command", command, "a recording holds it with --keep-command alone"),
    )


def side_by_side(a: Provenance, b: Provenance, *, command: str | None = None) -> Provenance:
    """Return where the figures of A and B come from: once what both share; `command` compares them again."""
    facts = zip((*a.facts, a.command, *a.details), (*b.facts, b.command, *b.details), strict=False)
    both = tuple(_both(*pair) for pair in facts)
    num = len(a.facts)
    return Provenance(facts=both[:num], command=Fact("command", command, UNTYPED), details=both[num:])


def _both(a: Fact, b: Fact) -> Fact:
    if a == b:
        return a
    texts = [f"{side} {fact.text or f'not known: {fact.missing}'}" for side, fact in (("A", a), ("B", b))]
    return Fact(" or ".join(dict.fromkeys((a.name, b.name))), "; ".join(texts))


def device_text(models: Mapping[str, int]) -> str | None:
    """Name models of devices with how many there are of each; None where there is none."""
    return ", ".join(f"{num} × {name}" if num > 1 else name for name, num in models.items()) or None


def together(values: Iterable[Any]) -> str | None:
    """Name what there is, each once; None where there is nothing."""
    return ", ".join(dict.fromkeys(str(value) for value in values if value)) or None


def date_text(when: datetime) -> str:
    """Write a date with its zone."""
    return f"{when:%Y-%m-%d %H:%M} {when.tzname() or '(no zone was recorded)'}"

"""Everything that is known of a run, for whoever judges it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gpuproof.records.case import Case
from gpuproof.records.collected import CaseRecords


@dataclass(frozen=True, kw_only=True)
class Evidence:
    """The launches of a run, with what was asked and what was read beside them."""

    description: Mapping[str, Any]
    """run.json."""
    config: Any
    launches: tuple[CaseRecords, ...]
    hosts: tuple[Mapping[str, Any], ...]
    """As run.json holds them; empty for this machine."""
    recording_at: Callable[[Case, str], Path | None]
    """Where the recording of a host beside a launch lies."""

"""Everything that is known of a run, for whoever judges it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
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
    hosts: tuple[Mapping[str, Any], ...] = ()
    """As run.json holds them; empty for this machine."""
    folder_of: Callable[[Case], Path]
    """Where a launch keeps its files, recordings of its hosts among them."""

    def only(self, case_id: str, *, config: Any) -> Evidence:
        """Return the evidence of one case, as of a run whose recipe is `config`."""
        chosen = tuple(launch for launch in self.launches if launch.case.case_id == case_id)
        return replace(self, config=config, launches=chosen)

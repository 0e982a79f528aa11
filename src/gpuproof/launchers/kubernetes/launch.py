"""One launch on Kubernetes: its objects, how it stands, and the steps of its end."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from gpuproof.launchers.base import HostError
from gpuproof.launchers.kubernetes.manifests import Kind
from gpuproof.records.case import Case
from gpuproof.records.work.placed import Placed

FAILED_STATUS = 1


@dataclass(frozen=True, slots=True)
class Made:
    """An object that was made, and is to be removed."""

    name: str
    uid: str
    kind: Kind


class KubernetesLaunch:
    """The pods of one case."""

    def __init__(self, case: Case, folder: Path, *, wake: Callable[[], object]) -> None:
        self.case = case
        self.folder = folder
        self.name = ""
        self.command = ""
        self.placed: Placed | None = None
        self.status: int | None = None
        self.error: HostError | None = None
        self.is_over = False
        self.waits_for: str | None = "to be sent to the cluster"
        self.since_s = time.monotonic()
        """Since when it waits to begin."""
        self.made: list[Made] = []
        self.num_end_asked = 0
        self.num_end_told = 0
        self.ending_since_s: float | None = None
        """Since when its pods were told to end, because one has, or because it was asked for."""
        self.leaving_since_s: float | None = None
        """Since when its objects are being removed."""
        self.ended_with = FAILED_STATUS
        """The status that it will have when all is gone."""
        self._wake = wake

    def end(self, grace_s: float) -> None:
        """Have the ranks told to end; asked again, the pods are removed at once. Does not wait."""
        del grace_s
        if not self.is_over:
            self.num_end_asked += 1
            self._wake()

    def finish(self) -> None:
        """Note that it is over."""
        self.status = self.ended_with
        self.waits_for = None
        self.is_over = True

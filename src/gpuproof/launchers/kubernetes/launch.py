"""One launch on Kubernetes: its objects, how it stands, and the steps of its end."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from gpuproof.launchers.kubernetes.manifests import Kind
from gpuproof.launchers.queue import FAILED_STATUS, QueuedLaunch
from gpuproof.records.case import Case


@dataclass(frozen=True, slots=True)
class ClusterObject:
    """An object that was made, and is to be removed."""

    name: str
    uid: str
    kind: Kind


class KubernetesLaunch(QueuedLaunch):
    """The pods of one case."""

    def __init__(self, case: Case, folder: Path, *, wake: Callable[[], object]) -> None:
        super().__init__(case, folder, wake=wake)
        self.name = ""
        self.objects: list[ClusterObject] = []
        self.ending_since_s: float | None = None
        """Since when its pods were told to end, because one has, or because it was asked for."""
        self.leaving_since_s: float | None = None
        """Since when its objects are being removed."""
        self.ended_with = FAILED_STATUS
        """The status that it will have when all is gone."""

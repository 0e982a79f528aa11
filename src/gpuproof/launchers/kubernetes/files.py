"""The files of a launch on their way: what its pods are given, and what they give back.

In: a case and its folder. Out: the content of the launch's ConfigMap; and, from a pod, files in that folder.
"""

from __future__ import annotations

import tarfile
from collections.abc import Sequence
from functools import cache
from pathlib import Path, PurePosixPath
from typing import IO

from gpuproof.base.errors import RecordError, UsageError
from gpuproof.launchers.archive import build_archive
from gpuproof.launchers.kubernetes.pods import ARCHIVE
from gpuproof.processes.scratch import scratch_folder
from gpuproof.records.case import Case
from gpuproof.store import layout

ROOM_BYTES = 2**20
"""What a ConfigMap holds (https://kubernetes.io/docs/concepts/configuration/configmap/)."""


def pod_files(case: Case, folder: Path) -> dict[str, bytes]:
    """Return by key what a launch's pods are given.

    Raises:
        UsageError: it is more than fits.
    """
    contents = {ARCHIVE: _archive(), layout.SPEC: (folder / layout.SPEC).read_bytes()}
    if case.data_file is not None:
        contents["data"] = (layout.run_folder(folder) / case.data_file).read_bytes()
    size = sum(map(len, contents.values()))
    if size > ROOM_BYTES:
        raise UsageError(
            f"{case.data_file} is too large to be given to pods: {size} bytes with the node side, "
            f"and a ConfigMap holds {ROOM_BYTES}",
            place="data",
            next_step="Set claim and claim_folder in the file of --on kubernetes:FILE, or take other data",
        )
    return contents


@cache
def _archive() -> bytes:
    with scratch_folder() as folder:
        return build_archive(folder / ARCHIVE).read_bytes()


def take_files(archive: IO[bytes], folder: Path) -> None:
    """Write what a pod sent into the launch's folder.

    Raises:
        RecordError: it is damaged, or would write elsewhere.
    """
    try:
        with tarfile.open(fileobj=archive, mode="r:gz") as sent:
            for member in sent:
                _take(sent, member, folder)
    except (tarfile.TarError, EOFError, OSError) as error:
        raise RecordError(f"what the pod sent is damaged: {error}", place=str(folder)) from error


def _take(sent: tarfile.TarFile, member: tarfile.TarInfo, folder: Path) -> None:
    path = PurePosixPath(member.name)
    content = sent.extractfile(member) if member.isfile() else None
    if content is None or path.is_absolute() or ".." in path.parts:
        raise RecordError(f"{member.name!r} is no file of a launch", place=str(folder))
    target = folder / path
    target.parent.mkdir(parents=True, exist_ok=True)
    with target.open("wb") as file:
        while part := content.read(2**20):
            file.write(part)


def join_output(folder: Path) -> None:
    """Put what the pods' processes printed into one file, in the order of node ranks."""
    parts: Sequence[Path] = sorted(
        folder.glob("launcher-output-*.txt"), key=lambda path: int(path.stem.rpartition("-")[2])
    )
    with (folder / layout.LAUNCHER_OUTPUT).open("ab") as output:
        for part in parts:
            output.write(part.read_bytes())
            part.unlink()
    for left in folder.glob("task-*.pid"):
        left.unlink()

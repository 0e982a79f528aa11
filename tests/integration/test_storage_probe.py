"""The probe of a disk where the disk, its limits or its folder do not let it through: said, and no figure."""

from __future__ import annotations

import errno
import json
import os
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from gpuproof.base.errors import ExitCode
from gpuproof.records.work.probe import StorageSpec
from gpuproof.worker.probes import storage
from running import TIMEOUT_S, clean_environment, gpuproof_command, run_directory
from waiting import eventually

LIMIT_BYTES = 3_000_000
READ_ONLY = 'mount --bind "$0" "$0" && mount -o remount,ro,bind "$0" && exec "$@"'
"""Also for root, whom permissions do not keep out."""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "disk").mkdir()
    return tmp_path / "disk"


def trying(folder: Path, *, file_bytes: str = "16M") -> list[str]:
    return gpuproof_command(
        *("run", "probe", "--probe.name=storage", "--distributed.device=cpu", "--run.run_id=r"),
        *(
            "--monitoring.enabled=false",
            "--distributed.threads_per_rank=1",
            "--probe.storage.block_bytes=256K",
        ),
        *(f"--probe.storage.folder={folder}", f"--probe.storage.file_bytes={file_bytes}"),
    )


def ended(command: list[str], tmp_path: Path, *, meanwhile: Callable[[], None] = lambda: None) -> Any:
    """Run it to its end; return the result."""
    with subprocess.Popen(
        command,
        cwd=tmp_path,
        env=clean_environment(),
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    ) as process:
        try:
            meanwhile()
            output, _ = process.communicate(timeout=TIMEOUT_S)
        finally:
            process.kill()
    assert "Traceback" not in output
    result = json.loads((run_directory(tmp_path, "r", "probe").root / "result.json").read_text())
    assert (result["exit_code"], process.returncode) == (ExitCode.UNFIT_ENVIRONMENT,) * 2, output
    assert not result["measures"]
    return result


def why(result: Any) -> str:
    (failure,) = result["failures"]
    return str(failure["message"])


def test_a_limit_on_the_size_of_files_is_said(folder: Path, tmp_path: Path) -> None:
    result = ended(["prlimit", f"--fsize={LIMIT_BYTES}", *trying(folder)], tmp_path)
    assert "could not be written and read: File too large" in why(result)
    assert list(folder.iterdir()) == []


def test_a_folder_that_takes_nothing_is_said(folder: Path, tmp_path: Path) -> None:
    within = ["unshare", "--mount", "--map-root-user", "sh", "-c", READ_ONLY, str(folder)]
    result = ended([*within, *trying(folder)], tmp_path)
    assert "is not a folder that this user can write to on this host" in why(result)


def test_a_folder_that_vanishes_is_said(folder: Path, tmp_path: Path) -> None:
    def vanish() -> None:
        eventually(
            "a file of the probe's", lambda: list(folder.glob(".gpuproof-storage-*")), pause=lambda: None
        )
        shutil.rmtree(folder)

    result = ended(trying(folder, file_bytes="256M"), tmp_path, meanwhile=vanish)
    assert "could not be written and read: No such file or directory" in why(result)


def test_a_file_system_that_takes_the_flag_and_no_read_is_read_through_the_cache(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As some network file systems do; the kernel's answer is the one thing here that is not real."""
    path = tmp_path / "file"
    path.write_bytes(os.urandom(2**16))
    spec = StorageSpec(
        folder=str(tmp_path),
        file_bytes=2**16,
        block_bytes=2**14,
        random_block_bytes=4096,
        random_reads=5,
        time_limit_s=5.0,
    )
    trial = storage._Trial(path=path, spec=spec, bench=Beats(), written_bytes=2**16)  # type: ignore[arg-type]
    read = os.preadv

    def refused(file: int, *rest: Any) -> int:
        is_direct = int(Path(f"/proc/self/fdinfo/{file}").read_text().split("flags:\t")[1].split()[0], 8)
        if is_direct & os.O_DIRECT:
            raise OSError(errno.EINVAL, "Invalid argument")
        return read(file, *rest)

    monkeypatch.setattr(os, "preadv", refused)
    figures = list(trial.read())
    assert [figure.evidence[0] for figure in figures] == [storage.FORGOTTEN] * 2
    assert [len(figure.durations_s) for figure in figures] == [4, 5]


class Beats:
    """What a trial needs of a rank."""

    class identity:  # noqa: N801  # as the rank names it
        rank = 0

    def beat(self) -> None: ...

    def count(self, times_s: list[float]) -> None: ...

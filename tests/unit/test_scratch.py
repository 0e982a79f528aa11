"""Temporary folders: gone at the end, and swept when their owner was killed; nobody else's is touched."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from gpuproof.processes.scratch import OWNER, make_scratch, scratch_folder, sweep

MAKE_AND_STAY = """
from gpuproof.processes.scratch import make_scratch
scratch = make_scratch()
(scratch.path / "inside").write_text("kept while its owner lives")
print(scratch.path, flush=True)
input()
"""


@pytest.fixture
def temporary(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    return tmp_path


def test_a_folder_goes_at_the_end_and_with_an_exception(temporary: Path) -> None:
    def fail_within() -> None:
        with scratch_folder("of-a-test-") as folder:
            (folder / "below").mkdir()
            assert folder.parent == temporary
            raise RuntimeError

    with pytest.raises(RuntimeError):
        fail_within()
    assert list(temporary.iterdir()) == []


def test_a_killed_owners_folder_is_swept_by_the_next_and_a_living_ones_is_not(temporary: Path) -> None:
    with subprocess.Popen(
        [sys.executable, "-c", MAKE_AND_STAY],
        env={**os.environ, "TMPDIR": str(temporary)},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as owner:
        assert owner.stdout is not None
        theirs = Path(owner.stdout.readline().strip())
        with scratch_folder() as ours:
            assert sweep() == 0
            assert (theirs / "inside").is_file()
            assert ours.is_dir()
        owner.kill()
        owner.wait()
        made = make_scratch()
        assert list(temporary.iterdir()) == [made.path]
        made.remove()


def test_what_is_not_told_as_a_dead_owners_is_left(temporary: Path) -> None:
    elsewhere = temporary / "elsewhere"
    elsewhere.mkdir()
    (elsewhere / OWNER).touch()
    (temporary / "gpuproof-link").symlink_to(elsewhere)
    unowned, pipe, linked = (temporary / f"gpuproof-{name}" for name in ("unowned", "pipe", "linked"))
    for folder in (unowned, pipe, linked):
        folder.mkdir()
    os.mkfifo(pipe / OWNER)
    (linked / OWNER).symlink_to(elsewhere / OWNER)
    (temporary / "gpuproof-file").touch()
    (temporary / "torchelastic_of_somebody").mkdir()
    before = sorted(temporary.iterdir())
    assert sweep(temporary) == 0
    assert sorted(temporary.iterdir()) == before


def test_another_users_folder_is_left(temporary: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = temporary / "gpuproof-theirs"
    folder.mkdir()
    (folder / OWNER).touch()
    with monkeypatch.context() as as_another:
        as_another.setattr(os, "geteuid", lambda: folder.stat().st_uid + 1)
        assert sweep(temporary) == 0
    assert sweep(temporary) == 1

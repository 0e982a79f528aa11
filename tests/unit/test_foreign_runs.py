"""A run directory that came from elsewhere: nothing outside is written, and pipes are not waited for."""

from __future__ import annotations

import os
import shutil
from pathlib import Path
from typing import Any

import pytest

from gpuproof.base.errors import EnvironmentUnfitError, RecordError
from gpuproof.base.files import link_plain, place_inside, read_plain, write_text
from gpuproof.campaign.conclude import conclude
from gpuproof.store import layout
from gpuproof.store.run import RunDirectory, read_case, write_whole

RUNS = Path(__file__).parents[1] / "replay" / "runs"
OUTSIDE = "what lies outside"


@pytest.fixture
def outside(tmp_path: Path) -> Path:
    path = tmp_path / "outside" / "own.txt"
    path.parent.mkdir()
    path.write_text(OUTSIDE)
    return path


def run_of(kind: str, tmp_path: Path) -> RunDirectory:
    shutil.copytree(RUNS / kind / "run", tmp_path / "run")
    return RunDirectory.open(tmp_path / "run")


@pytest.mark.parametrize("kind", ["generation", "fleet_recipe"])
def test_a_report_writes_through_no_link(kind: str, tmp_path: Path, outside: Path) -> None:
    run = run_of(kind, tmp_path)
    conclude(run)
    made = [path for path in run.root.rglob("*") if path.is_file() and layout.CASES not in path.parts]
    made = [path for path in made if path.name != layout.DESCRIPTION]
    for path in made:
        for link in (
            path,
            path.with_name(f".{path.name}.part"),
            path.with_name(f".{path.name}.{os.getpid()}"),
        ):
            link.unlink(missing_ok=True)
            link.symlink_to(outside)
    conclude(run)
    assert outside.read_text() == OUTSIDE
    assert len(made) > 1
    assert not any(path.is_symlink() for path in made)


def test_a_folder_that_is_a_link_is_not_written_into(tmp_path: Path, outside: Path) -> None:
    run = run_of("fleet_load", tmp_path)
    conclude(run)
    tree = run.root / "hosts"
    shutil.rmtree(tree)
    tree.symlink_to(outside.parent)
    with pytest.raises(RecordError, match="leads outside the folder"):
        conclude(run)
    assert list(outside.parent.iterdir()) == [outside]


def test_a_lock_is_not_cut_and_no_link_is_followed(tmp_path: Path, outside: Path) -> None:
    run = run_of("generation", tmp_path)
    lock = run.root / layout.LOCK
    lock.write_text("kept")
    with run.locked():
        assert lock.read_text() == "kept"
    lock.unlink()
    lock.symlink_to(outside)
    with pytest.raises(EnvironmentUnfitError, match="cannot be written"), run.locked():
        pass
    assert outside.read_text() == OUTSIDE


@pytest.mark.parametrize("name", ["../x", "/etc/x", "a/../../x", "", "a\0b"])
def test_a_name_that_leads_out_is_refused(name: str, tmp_path: Path) -> None:
    with pytest.raises(RecordError, match="leads out"):
        place_inside(tmp_path, name)


def test_a_launch_that_calls_itself_by_another_name_is_refused(tmp_path: Path) -> None:
    run = run_of("generation", tmp_path)
    folder = run.root / "cases" / "main" / "0"
    text = (folder / layout.SPEC).read_text()
    (folder / layout.SPEC).write_text(text.replace('"case_id": "main"', '"case_id": "../../../outside"'))
    with pytest.raises(RecordError, match="is in the folder of another"):
        read_case(folder)


def test_what_is_written_aside_follows_no_link_and_leaves_nothing(tmp_path: Path, outside: Path) -> None:
    target = tmp_path / "made.json"
    target.symlink_to(outside)
    for write in (write_text, write_whole):
        write(target, "new")
        assert (target.read_text(), target.is_symlink(), outside.read_text()) == ("new", False, OUTSIDE)
        assert sorted(path.name for path in tmp_path.iterdir()) == ["made.json", "outside"]


def made_odd(kind: str, path: Path) -> Any:
    if kind == "pipe":
        os.mkfifo(path)
    elif kind == "device":
        path.symlink_to("/dev/zero")
    else:
        path.mkdir()


@pytest.mark.parametrize("kind", ["pipe", "device", "folder"])
def test_what_is_no_plain_file_is_refused_at_once(kind: str, tmp_path: Path) -> None:
    odd = tmp_path / "odd"
    made_odd(kind, odd)
    with pytest.raises(OSError, match=r"it is a (pipe|device), not a plain file|Is a directory"):
        read_plain(odd)


def test_a_link_is_not_copied(tmp_path: Path, outside: Path) -> None:
    link = tmp_path / "trace.json"
    link.symlink_to(outside)
    with pytest.raises(OSError, match="symbolic links"):
        link_plain(link, tmp_path / "copy.json")
    assert not (tmp_path / "copy.json").exists()

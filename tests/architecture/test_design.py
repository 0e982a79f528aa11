"""docs/design.md names what is there: packages, the files that it points to, the commands of the worker."""

from __future__ import annotations

import re
from pathlib import Path

from gpuproof.worker.__main__ import COMMANDS, launched_commands

ROOT = Path(__file__).parents[2]
PACKAGE = ROOT / "src" / "gpuproof"
DESIGN = (ROOT / "docs" / "design.md").read_text(encoding="utf-8")
QUOTED = frozenset(re.findall(r"`([^`\n]+)`", DESIGN))

PATH = re.compile(r"[\w./-]+/|[\w/-]+\.(?:py|md|toml)")
"""A quoted word that is a folder or a file, whichever folder it is read from."""


def is_there(path: str) -> bool:
    """Say whether a path is one of ours, from the root, the package or a folder within it."""
    return any((folder / path).exists() for folder in (ROOT, PACKAGE)) or any(PACKAGE.rglob(path))


def test_every_package_is_named() -> None:
    packages = {
        found.stem
        for found in PACKAGE.iterdir()
        if not found.name.startswith("__") and (found.suffix == ".py" or (found / "__init__.py").exists())
    }
    assert packages - QUOTED == set()


def test_every_path_is_one_of_ours() -> None:
    paths = {word for word in QUOTED if PATH.fullmatch(word)}
    assert len(paths) > 50
    assert {path for path in paths if not is_there(path)} == set()


def test_a_path_that_is_not_there_is_found() -> None:
    assert not is_there("verdict/nowhere.py")


def test_every_command_of_the_worker_is_named() -> None:
    listed = next(word for word in QUOTED if word.startswith("python -m gpuproof.worker run |"))
    assert set(listed.removeprefix("python -m gpuproof.worker ").split(" | ")) == {
        *COMMANDS,
        *launched_commands(),
    }

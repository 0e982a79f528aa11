"""Every import that documentation and examples show works, and so do those of 0.2 under their old names."""

from __future__ import annotations

import re
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path

import pytest

import gpuproof

ROOT = Path(__file__).parents[2]
SHOWN = re.compile(r"^\s*from (gpuproof(?:\.\w+)*) import (\w+(?:, \w+)*)", re.M)
PAGES = [ROOT / "README.md", *(ROOT / "docs").rglob("*.md"), *(ROOT / "examples").rglob("*.py")]


def shown_imports() -> list[tuple[str, str]]:
    pages = [page for page in PAGES if "decisions" not in page.parts]
    found = [pair for page in pages for pair in SHOWN.findall(page.read_text(encoding="utf-8"))]
    return sorted({(module, name) for module, names in found for name in names.split(", ")})


@pytest.mark.parametrize(("module", "name"), shown_imports())
def test_an_import_that_documentation_shows_works(module: str, name: str) -> None:
    submodule = hasattr(import_module(module), "__path__") and find_spec(f"{module}.{name}") is not None
    assert submodule or hasattr(import_module(module), name)


def test_documentation_shows_the_imports_of_plug_ins() -> None:
    shown = {module for module, _ in shown_imports()}
    assert {"gpuproof.suites.base", "gpuproof.verdict.check", "gpuproof.workloads.info.base"} <= shown


@pytest.mark.parametrize("old", gpuproof.MOVED)
def test_a_module_is_found_under_the_name_that_it_had(old: str) -> None:
    module = import_module(old)
    now = import_module(gpuproof.MOVED[old])
    assert module is now
    assert now.__spec__ is not None
    assert now.__spec__.name == now.__name__ == gpuproof.MOVED[old]


def test_names_of_an_old_module_are_those_of_the_new_one() -> None:
    from gpuproof.base.errors import UsageError

    assert import_module("gpuproof.errors").UsageError is UsageError

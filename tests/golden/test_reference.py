"""docs/reference and the list of decisions are what the code says today."""

from __future__ import annotations

import runpy
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[2]
PROGRAM: dict[str, Any] = runpy.run_path(str(ROOT / "scripts" / "write_reference.py"))
PAGES: dict[str, Callable[[], str]] = PROGRAM["PAGES"]


@pytest.mark.parametrize("path", PAGES)
def test_a_page_is_what_the_code_says(path: str, request: pytest.FixtureRequest) -> None:
    page = ROOT / "docs" / path
    text = PAGES[path]()
    if request.config.getoption("--update-golden"):
        page.write_text(text, encoding="utf-8")
    assert page.read_text(encoding="utf-8") == text, "if meant: python scripts/write_reference.py"


def test_every_check_and_key_has_its_row() -> None:
    from gpuproof.config.keys import all_keys
    from gpuproof.verdict.checks.registry import CHECKS

    checks = (ROOT / "docs" / "reference" / "checks.md").read_text(encoding="utf-8")
    assert [name for name in CHECKS if f"| {name} |" not in checks] == []
    keys = (ROOT / "docs" / "reference" / "configuration.md").read_text(encoding="utf-8")
    lacking = [".".join(path) for path in all_keys() if f"| `{'.'.join(path)}`" not in keys]
    assert [key for key in lacking if f"| `{key}." not in keys] == []

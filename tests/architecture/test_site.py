"""The pages of docs/ build strictly as a site, and what a reader would stumble over is found."""

from __future__ import annotations

import runpy
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[2]
BUILD = ROOT / "scripts" / "build_site.py"
PROGRAM: dict[str, Any] = runpy.run_path(str(BUILD))


def built(root: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, str(BUILD), "--root", str(root)], capture_output=True, text=True)


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    """What of a checkout the site is made of."""
    shutil.copytree(ROOT / "docs", tmp_path / "docs")
    for name in ("mkdocs.yml", "README.md", "CONTRIBUTING.md"):
        shutil.copy(ROOT / name, tmp_path / name)
    return tmp_path


def test_the_site_builds_strictly_with_pages_for_programs(checkout: Path) -> None:
    ended = built(checkout)
    assert ended.returncode == 0, ended.stdout + ended.stderr
    site = checkout / "build" / "site"
    index = (site / "llms.txt").read_text(encoding="utf-8")
    assert "- [Validate](guides/validate.md): `gpuproof validate`" in index
    assert (site / "guides/validate.md").read_bytes() == (ROOT / "docs/guides/validate.md").read_bytes()
    pages = list(site.rglob("index.html"))
    assert len(pages) > 50
    elsewhere = [page for page in pages if 'src="http' in page.read_text(encoding="utf-8")]
    assert elsewhere == []  # a page loads nothing from other machines


@pytest.mark.parametrize(
    ("page", "text", "problem"),
    [
        ("docs/guides/serve.md", "[a](nowhere.md)", "nowhere.md does not exist"),
        ("docs/guides/serve.md", "[a](load.md#nowhere)", "load.md#nowhere: no heading with that name"),
        ("docs/guides/serve.md", "![a](../images/nowhere.png)", "../images/nowhere.png does not exist"),
        ("docs/guides/serve.md", "[a](../../README.md)", "leaves docs/"),
        ("README.md", "[a](docs/nowhere.md)", "docs/nowhere.md does not exist"),
        ("README.md", "[a](docs/guides/serve.md#nowhere)", "no heading with that name"),
        ("docs/guides/alone.md", "# Alone", "nav lacks guides/alone.md"),
        ("mkdocs.yml", "  - Nowhere: nowhere.md", "names nowhere.md, which does not exist"),
    ],
)
def test_what_leads_nowhere_is_found(checkout: Path, page: str, text: str, problem: str) -> None:
    with (checkout / page).open("a", encoding="utf-8") as file:
        file.write(f"\n{text}\n")
    assert [problem in line for line in PROGRAM["problems"](checkout)] == [True]


def test_zensical_refuses_a_page_and_an_anchor_that_are_not_there(checkout: Path) -> None:
    with (checkout / "docs" / "guides" / "serve.md").open("a", encoding="utf-8") as file:
        file.write("\n[a](nowhere.md) [b](load.md#nowhere)\n")
    ended = built(checkout)
    assert ended.returncode == 1
    assert "page does not exist" in ended.stdout
    assert "anchor does not exist" in ended.stdout

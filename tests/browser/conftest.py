"""One browser for all tests of pages, and each page made once, when a test first asks for it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from chromium import Browser, chromium
from every_page import MadePage, made_pages
from gpuproof.report.html import html


@dataclass(frozen=True)
class OnDisk:
    """A page as a file, and what it was made of."""

    path: Path
    made: MadePage


@pytest.fixture(scope="session")
def browser() -> Iterator[Browser]:
    with chromium() as running:
        yield running


@pytest.fixture(scope="session")
def page_of(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], OnDisk]:
    """Return what makes the page of a kind."""
    pages: dict[str, OnDisk] = {}

    def of(name: str) -> OnDisk:
        if name not in pages:
            folder = tmp_path_factory.mktemp(name)
            made = made_pages()[name](folder)
            path = folder / "page.html"
            path.write_text(html(made.page), encoding="utf-8")
            pages[name] = OnDisk(path, made)
        return pages[name]

    return of

"""What all tests share: golden files, rewritten only when asked for."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest

Golden = Callable[[str, str], None]

# Several files of tests share the processors: threads that spin while they wait take them from the others.
os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--update-golden", action="store_true", help="rewrite the golden files from what the code prints now"
    )


@pytest.fixture
def golden(request: pytest.FixtureRequest) -> Golden:
    """Compare text with the file of that name beside the test; a missing file fails like a wrong one."""
    folder = Path(request.path).parent
    update = bool(request.config.getoption("--update-golden"))

    def compare(name: str, text: str) -> None:
        path = folder / name
        if update:
            path.write_text(text, encoding="utf-8")
        if not path.is_file():
            pytest.fail(f"{path} is missing; write it with: pytest {folder} --update-golden")
        assert text == path.read_text(encoding="utf-8"), f"{name} differs; if meant: pytest --update-golden"

    return compare

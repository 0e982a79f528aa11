"""The programs of Debian's `prometheus` package."""

from __future__ import annotations

import os
import shutil

import pytest


def tool(name: str) -> str:
    """Find a program of Debian's `prometheus` package; in CI a missing one is a failure."""
    found = shutil.which(name)
    if found is None:
        assert not os.environ.get("CI"), f"{name} is missing: apt-get install prometheus"
        pytest.skip(f"{name} is not installed (Debian: apt-get install prometheus)")
    return found

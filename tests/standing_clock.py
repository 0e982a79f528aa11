"""The clock of the guard of driver calls, stopped: whoever answers is in time, on a busy machine as well."""

from __future__ import annotations

import time
from collections.abc import Callable
from types import SimpleNamespace

import pytest

LATER_S = 1e9
"""Longer than any deadline."""


def stop_clock(monkeypatch: pytest.MonkeyPatch, num_hanging: Callable[[], int]) -> None:
    """Let the time of the guard's deadlines pass only where another call has begun to hang."""
    wall = {name: getattr(time, name) for name in ("time", "gmtime", "strftime")}
    standing = SimpleNamespace(monotonic=lambda: LATER_S * num_hanging(), **wall)
    monkeypatch.setattr("gpuproof.devices.deadline.time", standing)

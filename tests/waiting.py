"""Waiting in tests for what must happen."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TypeVar

import psutil

PATIENCE_S = 1800.0
"""For whatever must happen; a busy machine takes its time, and no test asserts how long."""
PAUSE_S = 0.05
T = TypeVar("T")


def _pause() -> None:
    time.sleep(PAUSE_S)


def eventually(what: str, attempt: Callable[[], T], *, pause: Callable[[], object] = _pause) -> T:
    """Return the first truthy answer of `attempt`, which may look at folders that others move and remove."""
    deadline_s = time.monotonic() + PATIENCE_S
    while not (answer := _answer(attempt)):
        assert time.monotonic() < deadline_s, f"waited in vain: {what}"
        pause()
    return answer


def _answer(attempt: Callable[[], T]) -> T | None:
    try:
        return attempt()
    except (FileNotFoundError, psutil.NoSuchProcess):  # what went between its listing and its reading
        return None

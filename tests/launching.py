"""What tests do with launches: wait for them as a campaign does."""

from __future__ import annotations

from collections.abc import Callable

from gpuproof.launchers.base import Launched, Launcher
from waiting import eventually


def wait_until(launcher: Launcher, what: str, condition: Callable[[], object]) -> None:
    """Hear of a launcher's news until something holds."""
    eventually(what, condition, pause=lambda: launcher.wait(0.1))


def finish(launcher: Launcher, launched: Launched, *, grace_s: float = 60.0) -> int:
    """Wait for the end of a launch's ranks and end it; return their status.

    Raises:
        HostError: it could not begin.
    """
    wait_until(launcher, "the ranks", lambda: launched.status is not None or launched.error is not None)
    if launched.error is None:
        launched.end(grace_s)
    wait_until(launcher, "the end", lambda: launched.is_over)
    if launched.error is not None:
        raise launched.error
    assert launched.status is not None
    return launched.status

"""Code shared by launchers that queue their launches: a separate thread talks to the scheduler.

In: cases, and how a launcher starts, checks and stops them. Out: events for each. The thread starts the
launches requested since its last round, queries all launches in one call (less often while nothing changes),
and waits if a scheduler is temporarily unavailable.
"""

from __future__ import annotations

import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from queue import Empty, SimpleQueue
from typing import Generic, TypeVar

from gpuproof.base.errors import EnvironmentUnfitError
from gpuproof.launchers.base import HostError
from gpuproof.records.case import Case, Placed
from gpuproof.suites.base import HostPlace

SILENT_S = 600.0
"""Maximum time for which a scheduler may be unavailable, e.g. during a restart, before we give up on the
run."""
FIRST_POLL_S, SLOWER, LAST_POLL_S = 0.5, 1.5, 10.0
"""Time between two polls: its value after a change, the factor by which it grows while nothing changes, and
its maximum."""
FAILED_STATUS = 1


class SchedulerSilentError(EnvironmentUnfitError):
    """A scheduler does not respond, but may do so later."""


class QueuedLaunch:
    """A case in a queue."""

    def __init__(self, case: Case, folder: Path, *, wake: Callable[[], object]) -> None:
        self.case = case
        self.folder = folder
        self.command = ""
        self.placed: Placed | None = None
        self.status: int | None = None
        self.error: HostError | None = None
        self.is_over = False
        self.waits_for: str | None = "to be submitted"
        self.since_s = time.monotonic()
        """Time at which the launch started waiting."""
        self.num_end_requests = 0
        self.num_end_signals = 0
        """Number of stop requests that have been passed to the scheduler."""
        self._wake = wake

    def end(self, grace_s: float) -> None:
        """Ask the launch to stop, with the scheduler's grace period; a second call stops it immediately."""
        del grace_s
        if not self.is_over:
            self.num_end_requests += 1
            self._wake()

    def finish(self, status: int) -> None:
        """Record that the launch is over."""
        self.status = status
        self.waits_for = None
        self.is_over = True


L = TypeVar("L", bound=QueuedLaunch)


class LaunchQueue(ABC, Generic[L]):
    """Passes cases to a scheduler; has no hosts of its own."""

    world_size: int | None = None
    end_s: float
    """Time that launches may take to stop before we give up on a scheduler that does not respond."""

    def __init__(self, launch_type: Callable[..., L], *, name: str, max_busy: int | None) -> None:
        """Start the thread."""
        self.max_busy = max_busy
        self._launch_type = launch_type
        self._new: SimpleQueue[L] = SimpleQueue()
        self._open: list[L] = []
        self._notes: list[str] = []
        self._has_begun = False
        """Whether the scheduler has accepted a launch yet; until then, a rejection is shown to the user
        immediately."""
        self._heard_s = time.monotonic()
        self._fault: BaseException | None = None
        self._news, self._wake = threading.Event(), threading.Event()
        self._is_closing = False
        self._thread = threading.Thread(target=self._work, name=f"gpuproof-{name}", daemon=True)

    def places(self) -> Sequence[HostPlace]:
        """Return no hosts, because the scheduler chooses them."""
        return ()

    def lost(self) -> Mapping[str, HostError]:
        """Return nothing: the scheduler can use other nodes."""
        return {}

    def start(self, case: Case, hosts: Sequence[str], folder: Path) -> L:
        """Accept a case; it is submitted together with all others started before the next `wait`."""
        del hosts
        launch = self._launch_type(case, folder.absolute(), wake=self._wake.set)
        self._new.put(launch)
        return launch

    def wait(self, timeout_s: float) -> None:
        """Wait for an event in any launch.

        Raises:
            GpuproofError: the first launch was rejected.
            EnvironmentUnfitError: the scheduler no longer responds.
        """
        if not self._new.empty():
            self._wake.set()
        self._news.wait(timeout_s)
        self._news.clear()
        fault, self._fault = self._fault, None
        if fault is not None:
            raise fault

    def notes(self) -> Sequence[str]:
        """Return notes for the user about launches that were stopped midway, or that may still exist."""
        return tuple(self._notes)

    def close(self) -> None:
        """Stop the thread."""
        self._is_closing = True
        self._wake.set()
        self._thread.join()

    # The methods below run in the thread.

    @abstractmethod
    def _begin(self, launches: Sequence[L]) -> None:
        """Submit launches started since the last poll; raise a rejection if none was accepted yet."""

    @abstractmethod
    def _tell_ends(self) -> None:
        """Tell the scheduler which launches to stop."""

    @abstractmethod
    def _look(self) -> bool:
        """Query the state of all open launches; return whether anything has changed."""

    @abstractmethod
    def _abandon(self) -> None:
        """Remove everything from the scheduler if possible, and finish all launches."""

    def _work(self) -> None:
        pause_s = FIRST_POLL_S
        while not self._is_closing:
            is_awake = self._wake.wait(pause_s if self._open else None)
            self._wake.clear()
            has_changed = self._turn()
            pause_s = next_pause_s(pause_s, is_news=has_changed or is_awake)
            if has_changed:
                self._news.set()

    def _turn(self) -> bool:
        try:
            has_new = self._begin_new()
            self._tell_ends()
            return (bool(self._open) and self._look()) or has_new
        except SchedulerSilentError as error:
            if self._may_answer_yet():
                return False
            self._give_up(error)
        except BaseException as error:  # noqa: BLE001  # raised in the main thread, which waits
            self._give_up(error)
        return True

    def _begin_new(self) -> bool:
        taken: list[L] = []
        with suppress(Empty):
            while True:
                taken.append(self._new.get_nowait())
        self._open += taken
        if taken:
            self._begin(taken)
        return bool(taken)

    def _may_answer_yet(self) -> bool:
        limit_s = self.end_s if all(launch.num_end_requests for launch in self._open) else SILENT_S
        return self._has_begun and time.monotonic() - self._heard_s <= limit_s

    def _give_up(self, error: BaseException) -> None:
        self._abandon()
        self._open, self._fault = [], error


def next_pause_s(pause_s: float, *, is_news: bool) -> float:
    """Return the time to wait before the next poll of the queue.

    >>> next_pause_s(8.0, is_news=True), next_pause_s(0.5, is_news=False), next_pause_s(9.0, is_news=False)
    (0.5, 0.75, 10.0)
    """
    return FIRST_POLL_S if is_news else min(pause_s * SLOWER, LAST_POLL_S)

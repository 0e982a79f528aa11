"""The watchdog: a thread that gives the last words when the main thread cannot.

It sees four ends that Python code in the main thread would not survive or not notice: a signal while
the main thread is inside a collective, no progress for too long, the case's time limit, and the death
of the launcher. Each time it writes a failure record with the stacks of all threads and ends the process.
"""

from __future__ import annotations

import os
import select
import signal
import sys
import threading
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from time import monotonic
from typing import NoReturn

from gpuproof.records.run import FailureCause

POLL_S = 0.5
HANDLED_SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)


@dataclass(slots=True)
class Heartbeat:
    """What the main thread last said of its progress."""

    phase: str = "prepare"
    steps_done: int = 0
    at_s: float = 0.0

    def beat(self, *, phase: str | None = None, steps_done: int | None = None) -> None:
        """Say that work goes on."""
        self.phase = phase or self.phase
        self.steps_done = self.steps_done if steps_done is None else steps_done
        self.at_s = monotonic()


@dataclass(frozen=True, slots=True, kw_only=True)
class LastWords:
    """Why the watchdog ended the process."""

    cause: FailureCause
    message: str
    next_step: str
    stacks: str


class Watchdog:
    """Watches this process until it ends it or is told to rest."""

    def __init__(
        self,
        heartbeat: Heartbeat,
        *,
        hang_timeout_s: float,
        parent_pid: int | None,
        on_end: Callable[[LastWords], None],
    ) -> None:
        self._heartbeat = heartbeat
        self._hang_timeout_s = hang_timeout_s
        self._parent_pid = parent_pid
        self._on_end = on_end
        self._main_thread_id = threading.get_ident()
        self._signals, self._wakeup = os.pipe()
        os.set_blocking(self._wakeup, False)
        self._resting = threading.Event()

    def start(self) -> None:
        """Take the signals over and begin to watch. Call from the main thread.

        The C-level handler writes the signal's number to a pipe at once, even while the main thread
        waits inside a collective and runs no Python.
        """
        self._heartbeat.beat()
        signal.set_wakeup_fd(self._wakeup, warn_on_full_buffer=False)
        for number in HANDLED_SIGNALS:
            signal.signal(number, lambda *_: None)
        threading.Thread(target=self._watch, name="gpuproof-watchdog", daemon=True).start()

    def rest(self) -> None:
        """Stop watching: what follows is the orderly end."""
        self._resting.set()

    def _watch(self) -> None:
        while not self._resting.is_set():
            ready, _, _ = select.select([self._signals], [], [], POLL_S)
            received = self._received_signal() if ready else None
            if received is not None and not self._resting.is_set():
                self._end("interrupted", f"ended by {received.name}", "Finish the run with --resume")
            self._check_parent()
            self._check_progress()

    def _received_signal(self) -> signal.Signals | None:
        numbers = [n for n in os.read(self._signals, 64) if n in HANDLED_SIGNALS]
        return signal.Signals(numbers[0]) if numbers else None

    def _check_parent(self) -> None:
        if self._parent_pid is not None and not _alive(self._parent_pid):
            self._end(
                "interrupted",
                f"the launcher (process {self._parent_pid}) is gone",
                "Finish the run with --resume",
            )

    def _check_progress(self) -> None:
        silent_s = monotonic() - self._heartbeat.at_s
        if silent_s > self._hang_timeout_s and not self._resting.is_set():
            self._end(
                "hang",
                f"no progress for {silent_s:.0f} s in phase {self._heartbeat.phase} "
                f"after {self._heartbeat.steps_done} steps",
                "The stack shows where; raise distributed.hang_timeout_s if the work is that slow",
            )

    def _end(self, cause: FailureCause, message: str, next_step: str) -> NoReturn:
        words = LastWords(cause=cause, message=message, next_step=next_step, stacks=self._stacks())
        try:
            self._on_end(words)
        finally:
            os._exit(1)

    def _stacks(self) -> str:
        frames = sys._current_frames()
        threads = {t.ident: t.name for t in threading.enumerate()}
        own = threading.get_ident()
        parts = [
            f"thread {threads.get(ident, ident)}:\n{''.join(traceback.format_stack(frame))}"
            for ident, frame in sorted(frames.items(), key=lambda item: item[0] != self._main_thread_id)
            if ident != own
        ]
        return "\n".join(parts)


def _alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True

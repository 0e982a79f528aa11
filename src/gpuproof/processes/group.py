"""The processes of one launch on this host: the ranks' session and the samplers beside it, ended together.

Used by both halves: the launcher on this machine, and the agent that a launcher started on another.
"""

from __future__ import annotations

import os
import signal
import subprocess
import threading
from collections.abc import Callable, Sequence


def _hear_nothing(_status: int) -> None:
    return


class ProcessGroup:
    """The ranks' first process, which leads a session, and the samplers. Ranks under an agent end with it."""

    def __init__(
        self,
        ranks: subprocess.Popen[bytes],
        samplers: Sequence[subprocess.Popen[bytes]] = (),
        *,
        on_exit: Callable[[int], None] = _hear_nothing,
    ) -> None:
        self._ranks = ranks
        self._samplers = samplers
        self._on_exit = on_exit
        self._ended = threading.Event()
        threading.Thread(target=self._wait, name="gpuproof-reaper", daemon=True).start()

    def wait(self, timeout_s: float) -> int | None:
        """Wait for the end without polling: a thread sleeps in waitpid and wakes this one."""
        return self._ranks.returncode if self._ended.wait(timeout_s) else None

    def end(self, grace_s: float) -> None:
        """End the whole group: SIGTERM, time for last words, SIGKILL; then the samplers likewise.

        A second Ctrl-C cuts the time for last words short, and leaves no process behind either.
        """
        try:
            self._signal(signal.SIGTERM)
            self._ended.wait(grace_s)
        finally:
            self._signal(signal.SIGKILL)
            self._ended.wait(grace_s)
            for sampler in self._samplers:
                sampler.terminate()
            for sampler in self._samplers:
                _reap(sampler, grace_s)

    def _signal(self, number: signal.Signals) -> None:
        try:
            os.killpg(self._ranks.pid, number)
        except ProcessLookupError:
            return

    def _wait(self) -> None:
        status = self._ranks.wait()
        self._ended.set()
        self._on_exit(status)


def _reap(process: subprocess.Popen[bytes], grace_s: float) -> None:
    try:
        process.wait(grace_s)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()

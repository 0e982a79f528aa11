"""The processes of one launch on this host: ranks, and samplers beside them, watched and ended together.

In: argument lists, the first for the ranks. Out: the ranks' exit status, without polling, and the end of all.
Used by both halves: the launcher on this machine, and the agent that a launcher started on another.
"""

from __future__ import annotations

import os
import shlex
import subprocess
import threading
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from signal import SIGKILL, SIGTERM, Signals

from gpuproof.processes.start import CommandNotStartedError, start_process

OnExit = Callable[[int], None]
"""Called with the exit status, from another thread."""


class WatchedProcess(ABC):
    """A process and all that it starts; another thread notices its end."""

    def __init__(self, on_exit: OnExit | None = None) -> None:
        self._on_exit = on_exit
        self._status = 0
        self._ended = threading.Event()

    @abstractmethod
    def signal(self, which: Signals) -> None:
        """Signal the process and what it started; harmless once all has ended."""

    def finish(self, status: int) -> None:
        """Record its exit status and wake who waits for it."""
        self._status = status
        self._ended.set()
        if self._on_exit is not None:
            self._on_exit(status)

    def wait(self, timeout_s: float) -> int | None:
        """Wait for the end at most `timeout_s`; return the exit status, None if it still runs."""
        return self._status if self._ended.wait(timeout_s) else None

    def end(self, grace_s: float) -> None:
        """End it: SIGTERM, `grace_s` to end by itself, SIGKILL.

        A second Ctrl-C cuts that time short, and leaves no process behind either.
        """
        try:
            self.signal(SIGTERM)
            self.wait(grace_s)
        finally:
            self.signal(SIGKILL)
            self.wait(grace_s)


class StartedProcess(WatchedProcess):
    """A process that was started by `start_process`; a thread sleeps in waitpid until it ends."""

    def __init__(self, process: subprocess.Popen[bytes], on_exit: OnExit | None = None) -> None:
        super().__init__(on_exit)
        self._process = process
        threading.Thread(
            target=lambda: self.finish(process.wait()), name="gpuproof-reaper", daemon=True
        ).start()

    def signal(self, which: Signals) -> None:
        """Signal the process's session, whose other processes may outlive the first."""
        with suppress(ProcessLookupError):
            os.killpg(self._process.pid, which)


class ProcessGroup:
    """The ranks' first process, and the samplers. Ranks under an agent end with it."""

    def __init__(
        self, ranks: WatchedProcess, samplers: Sequence[WatchedProcess] = (), *, command: str
    ) -> None:
        self.command = command
        """What was started, as a person could type it."""
        self._ranks = ranks
        self._samplers = samplers

    def wait(self, timeout_s: float) -> int | None:
        """Wait for the ranks' end at most `timeout_s`; return the exit status, None if they still run."""
        return self._ranks.wait(timeout_s)

    def end(self, grace_s: float) -> None:
        """End the ranks, then the samplers, which write their last line."""
        try:
            self._ranks.end(grace_s)
        finally:
            for sampler in self._samplers:
                sampler.signal(SIGTERM)
            for sampler in self._samplers:
                sampler.end(grace_s)


def start_group(
    commands: Sequence[Sequence[str]],
    *,
    environment: Mapping[str, str],
    output: Path | None,
    on_exit: OnExit | None = None,
) -> ProcessGroup:
    """Start the ranks, by the first command, and a sampler by each other; all print as `start_process` says.

    Raises:
        CommandNotStartedError: one cannot be started; those before it are ended.
        OSError: `output` cannot be written to; likewise.
    """
    started: list[subprocess.Popen[bytes]] = []
    try:
        for command in commands:
            started.append(start_process(command, environment=environment, output=output))  # noqa: PERF401
    except (CommandNotStartedError, OSError):
        for process in started:
            process.kill()
            process.wait()
        raise
    ranks, *samplers = started
    return ProcessGroup(
        StartedProcess(ranks, on_exit),
        [StartedProcess(sampler) for sampler in samplers],
        command=shlex.join(commands[0]),
    )

"""How does the sampler run beside a piece of work? As a process of its own, started before, stopped after.

In: where to record and how often. Out: the environment and descriptors that the work inherits so that it
can publish marks, and at the end what went wrong with the readings, if anything did. A sampler that dies
takes nothing with it; one whose parent dies ends by itself.
"""

from __future__ import annotations

import fcntl
import json
import os
import socket
import subprocess
from collections.abc import Iterator
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from gpuproof.base.errors import ExitCode
from gpuproof.monitor.listener import READY
from gpuproof.monitor.marks import FD_VARIABLE, PIPE_VARIABLE
from gpuproof.processes.scratch import make_scratch
from gpuproof.processes.start import CommandNotStartedError, our_command, signal_name, start_process

READY_TIMEOUT_S = 30.0
"""For Python to start on a busy machine: the sampler itself does not wait for drivers."""
STOP_TIMEOUT_S = 15.0
REFUSAL_TIMEOUT_S = 10.0
"""From the end of its control socket to the end of a sampler that has nothing left to do: long, because the
work would start with options that were refused; no driver is waited for."""
KILLED_TIMEOUT_S = 1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class SamplerOptions:
    """How the sampler reads; None leaves its own default."""

    interval_s: float | None = None
    slow_interval_s: float | None = None
    devices: str | None = None
    command: tuple[str, ...] | None = None
    """To be stored in the recording; None unless the user asked for it."""

    @property
    def arguments(self) -> list[str]:
        """What `gpuproof.worker sample` is started with; the command takes the rest of the line."""
        values = {
            "--interval": self.interval_s,
            "--slow-interval": self.slow_interval_s,
            "--devices": self.devices,
        }
        options = [f"{name}={value}" for name, value in values.items() if value is not None]
        return options if self.command is None else [*options, "--command", *self.command]


class MarksPipe:
    """The pipe by which the work says where it is: named, so that it outlives descriptors that are closed.

    Opened for reading and writing at each end, so that no writer is ever killed for want of a reader;
    not blocking, so that no writer ever waits.
    """

    def __init__(self) -> None:
        self._folder = make_scratch()
        self.path = str(self._folder.path / "marks")
        os.mkfifo(self.path, 0o600)
        opened = os.open(self.path, os.O_RDWR | os.O_NONBLOCK)
        self.descriptor = fcntl.fcntl(opened, fcntl.F_DUPFD_CLOEXEC, 3)
        os.close(opened)

    @property
    def environment(self) -> dict[str, str]:
        """The variables that tell the work where the pipe is."""
        return {FD_VARIABLE: str(self.descriptor), PIPE_VARIABLE: self.path}

    def close(self) -> None:
        """Close this end and remove the pipe's name."""
        os.close(self.descriptor)
        self._folder.remove()


@contextmanager
def marks_pipe() -> Iterator[MarksPipe | None]:
    """Open the pipe for marks; without a writable temporary directory the work goes on without marks."""
    try:
        marks = MarksPipe()
    except OSError:
        yield None
        return
    with closing(marks):
        yield marks


class SamplerSession:
    """A running sampler. Made by `start_sampler`; `stop` ends it and may be called once."""

    def __init__(self, process: subprocess.Popen[bytes], *, control: socket.socket) -> None:
        self._process = process
        self._control = control

    def wait_ready(self, timeout_s: float = READY_TIMEOUT_S) -> bool:
        """Wait until the recording goes on by itself; False if the sampler ended or took too long."""
        self._control.settimeout(timeout_s)
        try:
            return self._control.recv(len(READY)) == READY
        except (TimeoutError, ConnectionError):
            return False

    def refused(self) -> bool:
        """Tell whether the sampler ended at once for a mistake in its options, which it has named."""
        try:
            return self._process.wait(REFUSAL_TIMEOUT_S) == ExitCode.USAGE
        except subprocess.TimeoutExpired:
            return False

    def stop(self, *, exit_code: int | None, timeout_s: float = STOP_TIMEOUT_S) -> str | None:
        """End the recording with the command's exit code; return what went wrong, None if nothing did."""
        with suppress(OSError):  # a sampler that is gone already: its return code says so below
            self._control.settimeout(timeout_s)
            self._control.sendall(json.dumps({"exit_code": exit_code}).encode())
        try:
            returncode = self._process.wait(timeout_s)
        except subprocess.TimeoutExpired:
            self._process.kill()
            with suppress(subprocess.TimeoutExpired):  # in a driver's call, it may not even be killed
                self._process.wait(KILLED_TIMEOUT_S)
            return f"the sampler did not end within {timeout_s:g} s and was killed"
        finally:
            self._control.close()
        if (ended_by := signal_name(returncode)) is not None:
            return f"the sampler was ended by {ended_by} before the command"
        return f"the sampler failed (exit status {returncode})" if returncode else None


def start_sampler(out: Path, *, options: SamplerOptions, marks: MarksPipe | None = None) -> SamplerSession:
    """Start the sampler, writing to `out`.

    It runs in a session of its own: the terminal's Ctrl-C is for the work, whose end it has to see.

    Raises:
        CommandNotStartedError: Python cannot be started again.
    """
    ours, theirs = socket.socketpair()
    descriptors = [theirs.fileno()] + ([marks.descriptor] if marks else [])
    try:
        process = start_process(
            _command(out, options=options, control_fd=theirs.fileno(), marks=marks), pass_fds=descriptors
        )
    except CommandNotStartedError:
        ours.close()
        raise
    finally:
        theirs.close()
    return SamplerSession(process, control=ours)


def _command(out: Path, *, options: SamplerOptions, control_fd: int, marks: MarksPipe | None) -> list[str]:
    arguments = [f"--out={out}", f"--control-fd={control_fd}"]
    if marks is not None:
        arguments.append(f"--marks-fd={marks.descriptor}")
    return our_command("gpuproof.worker.commands.sample") + arguments + options.arguments

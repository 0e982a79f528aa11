"""Monitors the machine while a workload runs: a sampler runs alongside a command or a block.

In: an argument list, or a block of Python; where to record, and how often. Out: the recording, and the
command's own exit code. The sampler is a separate process, started before the command and stopped after it.
If the sampler dies, nothing else is affected; if its parent dies, it exits by itself. The command runs
whatever happens to the sampler, and the recording is stored whatever happens to the command. There is one
exception: the command is not started if the sampler rejects its options, which is a user error.
"""

from __future__ import annotations

import fcntl
import json
import os
import socket
import subprocess
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from gpuproof.base.errors import ExitCode, UsageError
from gpuproof.monitor.listener import READY
from gpuproof.monitor.marks import FD_VARIABLE, PIPE_VARIABLE
from gpuproof.monitor.recorder import refuse_existing
from gpuproof.processes.foreground import run_in_foreground
from gpuproof.processes.scratch import make_scratch
from gpuproof.processes.start import (
    CommandNotStartedError,
    missing_program,
    our_command,
    signal_name,
    start_process,
)

READY_TIMEOUT_S = 30.0
"""Time allowed for Python to start on a busy machine; the sampler itself does not wait for drivers."""
STOP_TIMEOUT_S = 15.0
REFUSAL_TIMEOUT_S = 10.0
"""Time allowed for an idle sampler to exit after it closes its control socket. It is long because the
workload would otherwise start even though the options were rejected; the sampler does not wait for
drivers."""
KILLED_TIMEOUT_S = 1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class SamplerOptions:
    """Settings of the sampler; None uses its own default."""

    interval_s: float | None = None
    slow_interval_s: float | None = None
    devices: str | None = None
    command: tuple[str, ...] | None = None
    """The workload's command line, stored in the recording; None unless requested."""

    @property
    def arguments(self) -> list[str]:
        """The arguments of `gpuproof.worker sample`; the rest of the command line belongs to the command."""
        values = {
            "--interval": self.interval_s,
            "--slow-interval": self.slow_interval_s,
            "--devices": self.devices,
        }
        options = [f"{name}={value}" for name, value in values.items() if value is not None]
        return options if self.command is None else [*options, "--command", *self.command]


class MarksPipe:
    """Pipe on which the workload reports progress; a named pipe, so it survives closed descriptors.

    Each end opens it for reading and writing, so that no writer is ever killed for lack of a reader, and in
    non-blocking mode, so that no writer ever waits.
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
        """The environment variables that tell the workload where the pipe is."""
        return {FD_VARIABLE: str(self.descriptor), PIPE_VARIABLE: self.path}

    def close(self) -> None:
        """Close this end and remove the pipe's name."""
        os.close(self.descriptor)
        self._folder.remove()


@contextmanager
def marks_pipe() -> Iterator[MarksPipe | None]:
    """Open the pipe for marks; without a writable temporary directory, marks are unavailable."""
    try:
        marks = MarksPipe()
    except OSError:
        yield None
        return
    with closing(marks):
        yield marks


class SamplerSession:
    """A running sampler, created by `start_sampler`; call `stop` at most once."""

    def __init__(self, process: subprocess.Popen[bytes], *, control: socket.socket) -> None:
        self._process = process
        self._control = control

    def wait_ready(self, timeout_s: float = READY_TIMEOUT_S) -> bool:
        """Wait until the recording is running; False if the sampler exited or took too long."""
        self._control.settimeout(timeout_s)
        try:
            return self._control.recv(len(READY)) == READY
        except (TimeoutError, ConnectionError):
            return False

    def refused(self) -> bool:
        """Check whether the sampler exited immediately because its options are invalid."""
        try:
            return self._process.wait(REFUSAL_TIMEOUT_S) == ExitCode.USAGE
        except subprocess.TimeoutExpired:
            return False

    def stop(self, *, exit_code: int | None, timeout_s: float = STOP_TIMEOUT_S) -> str | None:
        """Pass on the command's exit code and stop the recording; return what went wrong, or None."""
        with suppress(OSError):  # the sampler has already exited; its return code is reported below
            self._control.settimeout(timeout_s)
            self._control.sendall(json.dumps({"exit_code": exit_code}).encode())
        try:
            returncode = self._process.wait(timeout_s)
        except subprocess.TimeoutExpired:
            self._process.kill()
            with suppress(subprocess.TimeoutExpired):  # a process in a driver call may not even be killable
                self._process.wait(KILLED_TIMEOUT_S)
            return f"the sampler did not exit within {timeout_s:g} s and was killed"
        finally:
            self._control.close()
        if (ended_by := signal_name(returncode)) is not None:
            return f"the sampler was stopped by {ended_by} before the command finished"
        return f"the sampler failed (exit status {returncode})" if returncode else None


def start_sampler(out: Path, *, options: SamplerOptions, marks: MarksPipe | None = None) -> SamplerSession:
    """Start the sampler, writing to `out`.

    The sampler runs in its own session: the terminal's Ctrl-C is meant for the workload, and the sampler has
    to observe the workload's exit.

    Raises:
        CommandNotStartedError: a second Python process cannot be started.
    """
    ours, theirs = socket.socketpair()
    command = [*our_command("gpuproof.worker.commands.sample"), f"--out={out}"]
    command.append(f"--control-fd={theirs.fileno()}")
    descriptors = [theirs.fileno()]
    if marks is not None:
        command.append(f"--marks-fd={marks.descriptor}")
        descriptors.append(marks.descriptor)
    try:
        process = start_process([*command, *options.arguments], pass_fds=descriptors)
    except CommandNotStartedError:
        ours.close()
        raise
    finally:
        theirs.close()
    return SamplerSession(process, control=ours)


@dataclass(frozen=True, slots=True, kw_only=True)
class Watched:
    """How the command and its recording finished."""

    returncode: int
    """The command's exit code, negative for a signal."""
    not_started: str | None
    """Why the command could not be started; `returncode` is then the one a shell would return."""
    trouble: str | None
    """Problem with the recording; None if it is complete."""


def watch(command: Sequence[str], *, out: Path, options: SamplerOptions, env: Mapping[str, str]) -> Watched:
    """Run `command` alongside a sampler that writes to `out`.

    Raises:
        UsageError: `out` is not empty; nothing was started.
        EnvironmentUnfitError: the sampler process cannot be started; the command was not started either.
    """
    refuse_existing(out)
    if (error := missing_program(command[0], env)) is not None:
        return Watched(returncode=error.status, not_started=str(error), trouble=None)
    with marks_pipe() as marks:
        session = start_sampler(out, options=options, marks=marks)
        ready = session.wait_ready()
        if not ready and session.refused():
            session.stop(exit_code=None)
            return Watched(returncode=int(ExitCode.USAGE), not_started=None, trouble=None)
        environment = {**env, **(marks.environment if marks else {})}
        descriptors = [marks.descriptor] if marks else []
        try:
            returncode = run_in_foreground(command, env=environment, pass_fds=descriptors)
            not_started = None
        except CommandNotStartedError as refusal:
            returncode, not_started = refusal.status, str(refusal)
        trouble = _stop(session, ready=ready, returncode=returncode)
    return Watched(returncode=returncode, not_started=not_started, trouble=trouble)


def _stop(session: SamplerSession, *, ready: bool, returncode: int | None) -> str | None:
    trouble = session.stop(exit_code=returncode)
    if trouble is None and not ready:
        return "the sampler was not ready when the command started; the first seconds are missing"
    return trouble


@contextmanager
def monitor(
    out: str | os.PathLike[str],
    *,
    interval_s: float | None = None,
    slow_interval_s: float | None = None,
    devices: Sequence[int] | None = None,
) -> Iterator[Path]:
    """Record this machine's GPUs and host to `out` while a block of Python runs; return its path.

    Inside the block, and in processes it starts, `gpuproof.monitor.marks.publish(phase="train", epoch=1)`
    reports progress. An incomplete recording raises a RuntimeWarning, and never stops the block.

    Args:
        out: a new JSON Lines file.
        interval_s: time between readings (0.2).
        slow_interval_s: time between readings of costly metrics (1).
        devices: physical indices to read; by default all.

    Raises:
        UsageError: `out` already exists, or the options are not supported (see standard error).
        EnvironmentUnfitError: the sampler process cannot be started.
    """
    path = Path(out)
    refuse_existing(path)
    indices = None if devices is None else ",".join(map(str, devices))
    options = SamplerOptions(interval_s=interval_s, slow_interval_s=slow_interval_s, devices=indices)
    with marks_pipe() as marks:
        session = start_sampler(path, options=options, marks=marks)
        ready = session.wait_ready()
        if not ready and session.refused():
            session.stop(exit_code=None)
            place = f"{interval_s=}, {slow_interval_s=}, {devices=}"
            raise UsageError("the sampler rejected its options", place=place)
        try:
            with _published_to(marks):
                yield path
        finally:
            trouble = _stop(session, ready=ready, returncode=None)
            if trouble is not None:
                warnings.warn(f"{path}: {trouble}", RuntimeWarning, stacklevel=3)


@contextmanager
def _published_to(marks: MarksPipe | None) -> Iterator[None]:
    """Send the marks of this process and its children to the pipe."""
    before = os.environ.get(PIPE_VARIABLE)
    if marks is not None:
        os.environ[PIPE_VARIABLE] = marks.path
    try:
        yield
    finally:
        if before is None:
            os.environ.pop(PIPE_VARIABLE, None)
        else:
            os.environ[PIPE_VARIABLE] = before

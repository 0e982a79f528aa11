"""What did the machine do while this work ran? A sampler beside a command or a block, out of its way.

In: an argument list, or a block of Python; where to record, how often. Out: the recording, and the command's
own exit code. The sampler is a process of its own, started before and stopped after; one that dies takes
nothing with it, and one whose parent dies ends by itself. The command runs whatever happens to the sampler;
the recording is kept whatever happens to the command. Only where the sampler refuses its options, a mistake
of the user's, is the command not started.
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
    """How the command and its recording ended."""

    returncode: int
    """The command's, negative for a signal."""
    not_started: str | None
    """Why the command could not be started; its `returncode` is then what a shell would answer."""
    trouble: str | None
    """What is wrong with the recording, None if it is whole."""


def watch(command: Sequence[str], *, out: Path, options: SamplerOptions, env: Mapping[str, str]) -> Watched:
    """Run `command` with a sampler beside it that writes to `out`.

    Raises:
        UsageError: `out` holds something already; nothing was started.
        EnvironmentUnfitError: the sampler's process cannot be started; the command was not either.
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
        return "the sampler was not ready when the command started; its first seconds are missing"
    return trouble


@contextmanager
def monitor(
    out: str | os.PathLike[str],
    *,
    interval_s: float | None = None,
    slow_interval_s: float | None = None,
    devices: Sequence[int] | None = None,
) -> Iterator[Path]:
    """Record GPUs and host of this machine to `out` while a block of Python runs; give the recording's path.

    In the block, and in processes that it starts, `gpuproof.monitor.marks.publish(phase="train", epoch=1)`
    says where the work is. A recording that is not whole is a RuntimeWarning, and never stops the block.

    Args:
        out: a new file, in JSON Lines.
        interval_s: between readings (0.2).
        slow_interval_s: between readings of costly metrics (1).
        devices: physical indices to read; by default all.

    Raises:
        UsageError: `out` is there already, or the options cannot be met (standard error says why).
        EnvironmentUnfitError: the sampler's process cannot be started.
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
            raise UsageError("the sampler refused its options", place=place)
        try:
            with _published_to(marks):
                yield path
        finally:
            trouble = _stop(session, ready=ready, returncode=None)
            if trouble is not None:
                warnings.warn(f"{path}: {trouble}", RuntimeWarning, stacklevel=3)


@contextmanager
def _published_to(marks: MarksPipe | None) -> Iterator[None]:
    """Have marks of this process and its children go to the pipe."""
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

"""What did the machine do while this command ran? Records beside any command, and stays out of its way.

In: an argument list, where to record, how often. Out: the recording, and the command's own exit code.
The command runs whatever happens to the sampler; the recording is kept whatever happens to the command.
Only where the sampler refuses its options, a mistake of the user's, is the command not started.
"""

from __future__ import annotations

import os
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from gpuproof.base.errors import ExitCode, UsageError
from gpuproof.monitor.marks import PIPE_VARIABLE
from gpuproof.monitor.recorder import refuse_existing
from gpuproof.monitor.session import MarksPipe, SamplerOptions, SamplerSession, marks_pipe, start_sampler
from gpuproof.processes.foreground import run_in_foreground
from gpuproof.processes.start import CommandNotStartedError, missing_program


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
        returncode, not_started = _run(command, env=env, marks=marks)
        trouble = _stop(session, ready=ready, returncode=returncode)
    return Watched(returncode=returncode, not_started=not_started, trouble=trouble)


def _run(
    command: Sequence[str], *, env: Mapping[str, str], marks: MarksPipe | None
) -> tuple[int, str | None]:
    environment = {**env, **(marks.environment if marks else {})}
    try:
        returncode = run_in_foreground(command, env=environment, pass_fds=[marks.descriptor] if marks else [])
    except CommandNotStartedError as error:
        return error.status, str(error)
    return returncode, None


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

"""Failures: turn whatever ended a rank into a record that says what it was and what to do."""

from __future__ import annotations

import errno
import socket
import time
import traceback
from dataclasses import replace

from gpuproof.base.errors import EnvironmentUnfitError, GpuproofError
from gpuproof.records.run import Failure, FailureCause
from gpuproof.worker.data.loader_failure import explain_loader_error
from gpuproof.worker.rank.progress import look_at_progress
from gpuproof.worker.rank.watchdog import Heartbeat, LastWords

NEXT_STEPS: dict[FailureCause, str] = {
    "out_of_memory": "Lower data.batch_size, or use a smaller model or precision",
    "disk_full": "Free room on the disk of the run directory, then finish the run with --resume",
}


class CommandFailedError(GpuproofError):
    """A command of the user's did not end well; `failure_cause` says in which way."""

    def __init__(self, cause: str, *, failure_cause: FailureCause, next_step: str) -> None:
        super().__init__(cause, next_step=next_step)
        self.failure_cause = failure_cause


def failure_from(error: BaseException, *, rank: int, heartbeat: Heartbeat) -> Failure:
    """Describe an exception that ended the rank."""
    error = explain_loader_error(error)
    cause = classify(error)
    trace = None if isinstance(error, GpuproofError) else "".join(traceback.format_exception(error))
    failure = _failure(cause, _message(error), _next_step(error, cause), rank=rank, heartbeat=heartbeat)
    return replace(failure, traceback=trace)


def failure_from_words(words: LastWords, *, rank: int, heartbeat: Heartbeat) -> Failure:
    """Describe why the watchdog ended the rank."""
    failure = _failure(words.cause, words.message, words.next_step, rank=rank, heartbeat=heartbeat)
    return replace(failure, stacks=words.stacks)


def _failure(
    cause: FailureCause, message: str, next_step: str | None, *, rank: int, heartbeat: Heartbeat
) -> Failure:
    return Failure(
        rank=rank,
        host=socket.gethostname(),
        phase=heartbeat.phase,
        cause=cause,
        message=message,
        unix_s=time.time(),
        next_step=next_step,
        steps_done=heartbeat.steps_done,
        progress=look_at_progress(heartbeat.clock, operation=heartbeat.operation),
    )


def _next_step(error: BaseException, cause: FailureCause) -> str | None:
    if isinstance(error, RuntimeError) and "does not have a deterministic implementation" in str(error):
        # torch raises a bare RuntimeError here, known by its text alone.
        return "Set training.deterministic to false, or use a model without this operation"
    return NEXT_STEPS.get(cause) or getattr(error, "next_step", None)


def _message(error: BaseException) -> str:
    """Say what happened; the next step has a field of its own."""
    if not isinstance(error, GpuproofError):
        return f"{type(error).__name__}: {error}"
    return f"{error.place}: {error.cause}" if error.place else error.cause


def classify(error: BaseException) -> FailureCause:
    """Name the cause of an exception."""
    if isinstance(error, CommandFailedError):
        return error.failure_cause
    if isinstance(error, EnvironmentUnfitError):
        return "environment"
    if isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT):
        return "disk_full"
    if isinstance(error, MemoryError) or _is_out_of_memory(error):
        return "out_of_memory"
    return "exception"


def _is_out_of_memory(error: BaseException) -> bool:
    # CUDA and TensorFlow have exceptions of their own; torch's CPU allocator raises a RuntimeError, known by
    # its text alone.
    named = {cls.__name__ for cls in type(error).__mro__} & {"OutOfMemoryError", "ResourceExhaustedError"}
    return bool(named) or (isinstance(error, RuntimeError) and "DefaultCPUAllocator" in str(error))

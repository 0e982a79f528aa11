"""Failures: turn whatever ended a rank into a record of the cause and the next step.

Journals of failed ranks on other hosts are sent to rank 0 over the ranks' store at MASTER_ADDR. The store may
have been lost along with its host, so nothing here waits longer than a few seconds or raises an exception.
Rank 0's campaign reports journals that do not arrive, since it knows the host of each rank from that rank's
first record.
"""

from __future__ import annotations

import errno
import socket
import sys
import threading
import time
import traceback
from collections.abc import Callable, Sequence
from dataclasses import replace
from datetime import timedelta
from time import monotonic
from typing import Any

from gpuproof.base.errors import EnvironmentUnfitError, GpuproofError, UnsupportedError
from gpuproof.records.run import Failure, FailureCause
from gpuproof.worker.data.loader_failure import explain_loader_error
from gpuproof.worker.rank.watchdog import Heartbeat, LastWords, look_at_progress

NEXT_STEPS: dict[FailureCause, str] = {
    "out_of_memory": "Lower data.batch_size, or use a smaller model or precision",
    "disk_full": "Free up space on the disk of the run directory, then finish the run with --resume",
}
LAST_WORDS_S = 8.0
"""Time limit for exchanging journals of failed ranks. Ranks fail within seconds of each other, since all ends
of a closed connection notice it immediately. Also, rank 0 must finish before the end of the grace period that
it gets when it is stopped."""


class CommandFailedError(GpuproofError):
    """A user's command failed; `failure_cause` gives the reason."""

    def __init__(self, cause: str, *, failure_cause: FailureCause, next_step: str) -> None:
        super().__init__(cause, next_step=next_step)
        self.failure_cause = failure_cause


def failure_from(error: BaseException, *, rank: int, heartbeat: Heartbeat) -> Failure:
    """Describe an exception that ended the rank."""
    error = explain_loader_error(error)
    cause = classify(error)
    trace = None if isinstance(error, GpuproofError) else "".join(traceback.format_exception(error))
    failure = _failure(cause, _message(error), _next_step(error, cause), rank=rank, heartbeat=heartbeat)
    return replace(failure, traceback=trace, is_unsupported=isinstance(error, UnsupportedError))


def failure_from_words(words: LastWords, *, rank: int, heartbeat: Heartbeat) -> Failure:
    """Describe why the watchdog stopped the rank."""
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
        # torch raises a bare RuntimeError here, recognisable only by its text.
        return "Set training.deterministic to false, or use a model without this operation"
    return NEXT_STEPS.get(cause) or getattr(error, "next_step", None)


def _message(error: BaseException) -> str:
    """Describe what happened; the next step is in a separate field."""
    if not isinstance(error, GpuproofError):
        return f"{type(error).__name__}: {error}"
    return f"{error.place}: {error.cause}" if error.place else error.cause


def classify(error: BaseException) -> FailureCause:
    """Return the cause of an exception."""
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
    # CUDA and TensorFlow have their own exceptions; torch's CPU allocator raises a RuntimeError, recognisable
    # only by its text.
    named = {cls.__name__ for cls in type(error).__mro__} & {"OutOfMemoryError", "ResourceExhaustedError"}
    return bool(named) or (isinstance(error, RuntimeError) and "DefaultCPUAllocator" in str(error))


def hand_over_last_words(store: Any, rank: int, content: str) -> bool:
    """Send a failed rank's journal to rank 0; return whether the store still accepted it."""
    return _within(LAST_WORDS_S, lambda: store.set(f"failed/{rank}", content))


def collect_last_words(store: Any, ranks: Sequence[int]) -> list[tuple[int, str]]:
    """Return the journals of other ranks that arrive in time, including finished ranks' journals."""
    last_words: list[tuple[int, str]] = []
    deadline_s = monotonic() + LAST_WORDS_S

    def collect() -> None:
        for rank in ranks:
            left_s = max(0.01, deadline_s - monotonic())
            key = _first_set(store, [f"failed/{rank}", f"journal/{rank}"], left_s)
            if key is not None:
                last_words.append((rank, store.get(key).decode()))

    _within(LAST_WORDS_S * 2, collect)
    return list(last_words)


def _first_set(store: Any, keys: Sequence[str], timeout_s: float) -> str | None:
    for key in reversed(keys):
        if store.check([key]):
            return key
    try:
        store.wait([keys[0]], timedelta(seconds=timeout_s))
    except RuntimeError:  # torch raises this on a timeout: the rank was killed, or its host is unreachable
        return None
    return keys[0]


def _within(limit_s: float, action: Callable[[], None]) -> bool:
    """Run this in a thread, because a lost store may block forever. Return whether it ran."""
    done = threading.Event()

    def attempt() -> None:
        try:
            action()
            done.set()
        except RuntimeError as error:
            sys.stderr.write(f"gpuproof: the ranks' store is gone: {error}\n")

    thread = threading.Thread(target=attempt, name="gpuproof-handover", daemon=True)
    thread.start()
    thread.join(limit_s)
    return done.is_set()

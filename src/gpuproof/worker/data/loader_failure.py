"""How the loader's processes ended: the cause, and what to do about it.

An error in a process comes back as one of the same class, whose message holds a traceback; a process that was
killed leaves an exit code, and a connection that breaks or a queue that stays empty.
"""

from __future__ import annotations

import re
import signal
from collections.abc import Sequence
from multiprocessing.connection import wait
from multiprocessing.process import BaseProcess

from gpuproof.base.errors import EnvironmentUnfitError, GpuproofError

DYING_S = 1.0
"""A connection breaks a moment before its process is gone."""
_RAISED = re.compile(r"Caught \w+ in (DataLoader worker process \d+|pin memory thread)")
NO_SHARED_MEMORY = ("shared memory", "No space left on device", "unable to write to file </torch")


class LoaderError(GpuproofError):
    """A process of the loader is lost, or could not make a sample."""


def lost_process(processes: Sequence[BaseProcess]) -> GpuproofError | None:
    """Return the error that says how a process ended; None where all of them live."""
    if not processes:
        return None
    dying = wait([process.sentinel for process in processes], timeout=DYING_S)
    for process in processes:
        if process.sentinel in dying:
            process.join(DYING_S)  # what it held is closed before its exit code can be read
    ended = [(process.pid, process.exitcode) for process in processes if process.exitcode]
    return describe_exit(*ended[0]) if ended else None


def describe_exit(pid: int | None, exit_code: int | None) -> GpuproofError:
    """Return the error for a process that ended with `exit_code`, which is negative for a signal.

    A process that writes to shared memory where there is no room is ended by SIGBUS.
    """
    if exit_code == -signal.SIGBUS:
        return _no_shared_memory()
    how = f"exit status {exit_code}"
    if exit_code is not None and exit_code < 0:
        how = signal.Signals(-exit_code).name
    return LoaderError(
        f"process {pid} of the loader was ended by {how}",
        next_step="If it was for want of memory (dmesg tells), lower data.num_workers or "
        "data.prefetch_factor",
    )


def explain_loader_error(error: BaseException) -> BaseException:
    """Return the cause of an error that a process of the loader passed on; any other error as it is."""
    cause = error.cause if isinstance(error, GpuproofError) else str(error)
    if not isinstance(error, Exception) or not _RAISED.match(cause):
        return error
    if any(text in cause for text in NO_SHARED_MEMORY):
        return _no_shared_memory()
    last = cause.strip().splitlines()[-1]
    return LoaderError(f"a process of the loader could not make a batch: {last.partition(': ')[2] or last}")


def _no_shared_memory() -> EnvironmentUnfitError:
    return EnvironmentUnfitError(
        "the loader's processes have no room in shared memory, through which batches go (/dev/shm)",
        next_step="Give the machine or container more shared memory (docker --shm-size), or lower "
        "data.num_workers, data.prefetch_factor or data.batch_size",
    )

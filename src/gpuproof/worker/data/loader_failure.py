"""Why the loader's processes failed, and what to do about it.

An error in a process is re-raised as an error of the same class, with a traceback in its message. A killed
process leaves an exit code, and either a broken connection or a queue that stays empty.
"""

from __future__ import annotations

import re
import signal
from collections.abc import Sequence
from multiprocessing.connection import wait
from multiprocessing.process import BaseProcess

from gpuproof.base.errors import EnvironmentUnfitError, GpuproofError

DYING_S = 1.0
"""Maximum time from a broken connection to the exit of the process behind it."""
_RAISED = re.compile(r"Caught \w+ in (DataLoader worker process \d+|pin memory thread)")
NO_SHARED_MEMORY = ("shared memory", "No space left on device", "unable to write to file </torch")


class LoaderError(GpuproofError):
    """A loader process died, or could not build a sample."""


def lost_process(processes: Sequence[BaseProcess]) -> GpuproofError | None:
    """Return the error that reports how a process ended; None if all are alive."""
    if not processes:
        return None
    dying = wait([process.sentinel for process in processes], timeout=DYING_S)
    for process in processes:
        if process.sentinel in dying:
            process.join(DYING_S)  # a process's resources are closed before its exit code can be read
    ended = [(process.pid, process.exitcode) for process in processes if process.exitcode]
    return describe_exit(*ended[0]) if ended else None


def describe_exit(pid: int | None, exit_code: int | None) -> GpuproofError:
    """Return the error for a process that exited with `exit_code`, which is negative for a signal.

    A process that writes to full shared memory is killed by SIGBUS.
    """
    if exit_code == -signal.SIGBUS:
        return _no_shared_memory()
    how = f"exit status {exit_code}"
    if exit_code is not None and exit_code < 0:
        how = signal.Signals(-exit_code).name
    return LoaderError(
        f"loader process {pid} ended with {how}",
        next_step="If it ran out of memory (see dmesg), lower data.num_workers or data.prefetch_factor",
    )


def explain_loader_error(error: BaseException) -> BaseException:
    """Return the cause of an error that a loader process passed on; other errors are returned as is."""
    cause = error.cause if isinstance(error, GpuproofError) else str(error)
    if not isinstance(error, Exception) or not _RAISED.match(cause):
        return error
    if any(text in cause for text in NO_SHARED_MEMORY):
        return _no_shared_memory()
    last = cause.strip().splitlines()[-1]
    return LoaderError(f"a loader process could not build a batch: {last.partition(': ')[2] or last}")


def _no_shared_memory() -> EnvironmentUnfitError:
    return EnvironmentUnfitError(
        "the loader's processes ran out of shared memory, which they use to pass batches (/dev/shm)",
        next_step="Give the machine or container more shared memory (docker --shm-size), or lower "
        "data.num_workers, data.prefetch_factor or data.batch_size",
    )

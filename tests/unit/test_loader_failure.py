"""What torch says of the loader's processes, in words that say what to do."""

from __future__ import annotations

import signal

from gpuproof.base.errors import EnvironmentUnfitError, RecordError
from gpuproof.worker.data.loader_failure import describe_exit, explain_loader_error, lost_process
from gpuproof.worker.rank.failure import failure_from
from gpuproof.worker.rank.watchdog import Heartbeat

NO_ROOM = (
    "Caught RuntimeError in DataLoader worker process 0.\nOriginal Traceback (most recent call last):\n"
    "RuntimeError: unable to write to file </torch_1_2_3>: No space left on device (28)\n"
)
RAISED = (
    "Caught UsageError in DataLoader worker process 1.\nOriginal Traceback (most recent call last):\n"
    "gpuproof.base.errors.UsageError: a.png: not an image that Pillow can read: cut short.\n"
)


def test_a_bad_sample_is_said_without_the_traceback() -> None:
    failure = failure_from(RecordError(RAISED), rank=0, heartbeat=Heartbeat())
    assert (failure.cause, failure.traceback) == ("exception", None)
    assert failure.message == (
        "a loader process could not build a batch: a.png: not an image that Pillow can read: cut short."
    )


def test_how_a_process_ended_is_said() -> None:
    assert "process 4711 ended with SIGKILL" in str(describe_exit(4711, -signal.SIGKILL))
    assert "ended with exit status 3" in str(describe_exit(4711, 3))
    assert lost_process([]) is None


def test_too_little_shared_memory_is_an_unfit_environment() -> None:
    for found in (describe_exit(4711, -signal.SIGBUS), explain_loader_error(RuntimeError(NO_ROOM))):
        assert isinstance(found, EnvironmentUnfitError)
        assert "ran out of shared memory" in str(found)
        assert "--shm-size" in str(found)
    assert failure_from(RuntimeError(NO_ROOM), rank=0, heartbeat=Heartbeat()).cause == "environment"


def test_any_other_error_is_left_alone() -> None:
    for error in (RuntimeError("size mismatch"), ValueError("3"), KeyboardInterrupt()):
        assert explain_loader_error(error) is error

"""Driver calls with deadlines, made one at a time on a separate thread.

A call that hangs cannot be stopped, only abandoned: it keeps its thread, and its key is rejected until it
returns. The remaining calls are made immediately, each on a fresh thread, since a driver that hangs for one
device often hangs for all. Normally, calls are submitted in batches, because waking a thread costs more than
most driver calls do.
"""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Generic, TypeVar

from gpuproof.devices.base import DeviceError, DeviceHungError

T = TypeVar("T")


class CallGuard:
    """Makes driver calls. Not thread-safe."""

    def __init__(self, deadline_s: float) -> None:
        self.deadline_s = deadline_s
        self._thread: _DriverThread | None = None
        self._stuck: dict[str, tuple[_Batch[object], float]] = {}
        """Key → the batch that hangs, and the wall-clock time at which this was detected, in seconds."""

    def call(self, key: str, function: Callable[[], T]) -> T:
        """Make one call; `key` identifies what the call accesses.

        Raises:
            DeviceHungError: the call did not return in time, or an earlier call for `key` still has not
                returned.
        """
        answer = self.call_all({key: function})[key]
        if isinstance(answer, DeviceError):
            raise answer
        return answer

    def call_all(self, calls: Mapping[str, Callable[[], T]]) -> dict[str, T | DeviceError]:
        """Make one call for each key, in order; return each call's result or its `DeviceError`.

        Any other exception is raised here: it is a bug, not the state of a device.
        """
        answers: dict[str, T | DeviceError] = {}
        pending = []
        for key, function in calls.items():
            if self._is_stuck(key):
                answers[key] = self._hung(key)
            else:
                pending.append((key, function))
        if pending:
            batch = _Batch(pending)
            self._run(batch)
            answers |= {key: answer for (key, _), answer in zip(pending, batch.answers(), strict=False)}
            if unanswered := pending[len(batch.outcomes) :]:
                (hanging, _), *others = unanswered
                answers[hanging] = self._left_behind(hanging, batch)
                answers |= self._run_apart(others)
        return answers

    def close(self) -> None:
        """Let the thread exit. A thread stuck in a call is a daemon, and ends with the process."""
        if self._thread is not None:
            self._thread.stop()
            self._thread = None

    def _run_apart(self, calls: Sequence[tuple[str, Callable[[], T]]]) -> dict[str, T | DeviceError]:
        """Make each call on its own thread, all within one deadline."""
        batches = {key: _Batch([(key, function)]) for key, function in calls}
        for batch in batches.values():
            thread = _DriverThread()
            thread.submit(batch)
            thread.stop()
        return {
            key: batch.answers()[0] if batch.wait(self.deadline_s) else self._left_behind(key, batch)
            for key, batch in batches.items()
        }

    def _left_behind(self, key: str, batch: _Batch[T]) -> DeviceHungError:
        self._stuck[key] = batch, time.time() - self.deadline_s  # type: ignore[assignment]  # asked for its end only
        return self._hung(key)

    def _run(self, batch: _Batch[T]) -> None:
        if self._thread is None:
            self._thread = _DriverThread()
        self._thread.submit(batch)
        if not batch.wait(self.deadline_s):
            self._thread.stop()
            self._thread = None

    def _is_stuck(self, key: str) -> bool:
        if key in self._stuck and self._stuck[key][0].ended.is_set():
            del self._stuck[key]
        return key in self._stuck

    def _hung(self, key: str) -> DeviceHungError:
        began = time.strftime("%H:%M:%S", time.gmtime(self._stuck[key][1]))
        return DeviceHungError(
            f"the driver call did not return within {self.deadline_s:g} s; not answering since {began} UTC"
        )


class _Batch(Generic[T]):
    """Calls made by one thread in order, until all are made, or one hangs and the rest are dropped."""

    def __init__(self, calls: Sequence[tuple[str, Callable[[], T]]]) -> None:
        self.outcomes: list[tuple[bool, T | BaseException]] = []
        self.ended = threading.Event()
        self._functions = [function for _, function in calls]
        self._lock = threading.Lock()
        self._is_overdue = False
        self._begun_s = time.monotonic()

    def run(self) -> None:
        """Make the calls; this runs on the driver thread."""
        for function in self._functions:
            outcome = _outcome(function)
            with self._lock:
                if self._is_overdue:
                    break
                self.outcomes.append(outcome)
                self._begun_s = time.monotonic()
        self.ended.set()

    def wait(self, deadline_s: float) -> bool:
        """Wait until the calls are finished; return False if the current call exceeds its deadline."""
        while not self.ended.wait(self._begun_s + deadline_s - time.monotonic()):
            with self._lock:
                if len(self.outcomes) == len(self._functions):
                    return True
                self._is_overdue = time.monotonic() >= self._begun_s + deadline_s
                if self._is_overdue:
                    return False
        return True

    def answers(self) -> list[T | DeviceError]:
        """Return the answers so far; raise any exception other than a device error."""
        return [_answer(*outcome) for outcome in self.outcomes]


class _DriverThread:
    """A daemon thread that runs batches one after the other."""

    def __init__(self) -> None:
        self._batches: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()
        threading.Thread(target=self._serve, daemon=True, name="gpuproof-driver").start()

    def submit(self, batch: _Batch[T]) -> None:
        self._batches.put(batch.run)

    def stop(self) -> None:
        self._batches.put(None)

    def _serve(self) -> None:
        while (run := self._batches.get()) is not None:
            run()


def _outcome(function: Callable[[], T]) -> tuple[bool, T | BaseException]:
    try:
        return True, function()
    except BaseException as error:  # noqa: BLE001  # handed to the caller, who raises it
        return False, error


def _answer(good: bool, value: T | BaseException) -> T | DeviceError:
    if isinstance(value, BaseException) and not good:
        if isinstance(value, DeviceError):
            return value
        raise value
    return value  # type: ignore[return-value]  # `good` says that it is what the call returned

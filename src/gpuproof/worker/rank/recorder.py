"""The recorder: one rank's journal, and a buffer for step times before they are written to it.

Step times arrive in chunks several times a second. They are written about once a second, followed by a flush.
"""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from time import monotonic
from typing import Any, Literal

from gpuproof.monitor.marks import publish
from gpuproof.records.journal import Journal
from gpuproof.records.run import Environment, Phase, PhaseName, Progress, RankResult, Steps
from gpuproof.worker.rank.watchdog import Heartbeat

FLUSH_S = 1.0
NANOSECOND_DIGITS = 9


def rounded(times_s: Sequence[float]) -> tuple[float, ...]:
    """Round to nanoseconds, the resolution of records."""
    return tuple(round(time_s, NANOSECOND_DIGITS) for time_s in times_s)


class Recorder:
    """Writes the records of one rank and updates the heartbeat."""

    def __init__(self, path: Path, *, rank: int, heartbeat: Heartbeat) -> None:
        self.path = path
        self.rank = rank
        self.heartbeat = heartbeat
        self._journal = Journal(path)
        self._lock = threading.Lock()  # the watchdog writes the final record from its own thread
        self._ended = False

    def write(self, record: Any) -> None:
        """Append one record."""
        with self._lock:
            self._journal.append(record)

    def reserve_room(self) -> None:
        """Reserve disk space for the final record; OSError if there is not enough."""
        with self._lock:
            self._journal.reserve_room()

    def write_last_words(self, record: Any) -> None:
        """Append a failure record, in the reserved space if necessary; only a rank's first is written.

        Later failures are consequences of the first: a hung rank that the watchdog terminates also loses
        contact with its peers.
        """
        with self._lock:
            if not self._ended:
                self._journal.append_last_words(record)
                self._ended = True

    def close(self) -> None:
        """Close the journal."""
        with self._lock:
            self._journal.close()

    @contextmanager
    def phase(
        self, name: PhaseName, *, expected_steps: int | None = None, expected_s: float | None = None
    ) -> Iterator[None]:
        """Mark the start and the end of a phase; an end is marked only if no error occurred.

        The expected values are for the progress bar.
        """
        self.begin(name, expected_steps=expected_steps, expected_s=expected_s)
        yield
        self._write_phase(name, "end")

    def begin(
        self, name: PhaseName, *, expected_steps: int | None = None, expected_s: float | None = None
    ) -> None:
        """Mark the start of a phase, also for a `gpuproof monitor exec` that wraps the run."""
        if self.rank == 0:
            publish(phase=name)
        self.heartbeat.beat(phase=name, steps_done=0)
        self._write_phase(name, "begin", expected_steps=expected_steps, expected_s=expected_s)

    def describe_host(self, device: str) -> None:
        """Describe this host, including devices of this type; one rank per host does this once."""
        # imported only in the first launch, the only one that needs it
        from gpuproof.worker.host.environment import (
            describe_host,
        )

        self.write(Environment(host=socket.gethostname(), facts=describe_host(device=device)))

    def finish(self, *, last_loss: float | None = None) -> None:
        """Start the last phase and write the result, which is the last record of a successful rank."""
        self.begin("finish")
        self.write(RankResult(rank=self.rank, monotonic_s=monotonic(), last_loss=last_loss))

    def _write_phase(self, name: PhaseName, event: Literal["begin", "end"], **expected: Any) -> None:
        self.write(Phase(rank=self.rank, name=name, event=event, monotonic_s=monotonic(), **expected))


class StepTimesWriter:
    """Receives step times in chunks; writes them, and the waits for data, about once a second.

    `take_wait_s` returns the seconds waited since the last call; None if steps never wait. With
    `steps_of_epoch`, a `gpuproof monitor exec` process that wraps the run receives epoch and batch, both
    starting at 1.
    """

    def __init__(
        self,
        recorder: Recorder,
        phase: PhaseName,
        *,
        keep_times: bool,
        take_wait_s: Callable[[], float | None] = lambda: None,
        steps_of_epoch: int | None = None,
    ) -> None:
        self.data_wait_s: float | None = None
        self._take_wait_s = take_wait_s
        self._steps_of_epoch = steps_of_epoch if recorder.rank == 0 else None
        self._recorder = recorder
        self._phase = phase
        self._keep_times = keep_times
        self._num_written = 0
        self._pending: list[float] = []
        self._num_pending = 0
        self._flushed_s = monotonic()

    def __call__(self, times: Sequence[float]) -> None:
        """Receive the times of finished steps; write them after a second has passed."""
        self._num_pending += len(times)
        if self._keep_times:
            self._pending += [round(t, NANOSECOND_DIGITS) for t in times]
        if times:  # launched steps do not count as progress: the device may hang in the first of them
            steps_done = self._num_written + self._num_pending
            self._recorder.heartbeat.beat(steps_done=steps_done)
            if self._steps_of_epoch is not None:
                epoch, batch = divmod(steps_done - 1, self._steps_of_epoch)
                publish(epoch=epoch + 1, batch=batch + 1)
        if monotonic() - self._flushed_s >= FLUSH_S:
            self.flush()

    def flush(self) -> None:
        """Write everything that is pending."""
        self._flushed_s = monotonic()
        wait_s = self._take_wait_s()
        if wait_s is not None:
            self.data_wait_s = (self.data_wait_s or 0.0) + wait_s
        if self._num_pending == 0:
            return
        first, self._num_written = self._num_written, self._num_written + self._num_pending
        self._recorder.write(
            Steps(
                rank=self._recorder.rank,
                phase=self._phase,
                first_step=first,
                durations_s=tuple(self._pending),
                data_wait_s=None if wait_s is None else round(wait_s, NANOSECOND_DIGITS),
            )
            if self._keep_times
            else Progress(
                rank=self._recorder.rank,
                phase=self._phase,
                steps_done=self._num_written,
                monotonic_s=self._flushed_s,
            )
        )
        self._pending, self._num_pending = [], 0

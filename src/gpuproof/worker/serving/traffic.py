"""A running generator, as the server sees it: how many requests are new, whether more will come, their times.

The counters are eventfds: reading one takes all that was added since. The generator's standard output is a
pipe that becomes readable when it has issued its last request, and holds the issue times.
"""

from __future__ import annotations

import os
import select
import subprocess
from array import array
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from gpuproof.errors import EnvironmentUnfitError
from gpuproof.worker.serving.generator import TrafficPlan, Wire, command

END_S = 30.0
"""Time that a generator gets to hand its issue times over."""


class Traffic:
    """Requests as they come in; count them, do them, tell that they are done."""

    def __init__(self, wire: Wire, process: subprocess.Popen[bytes]) -> None:
        self._wire = wire
        self._process = process
        assert process.stdout is not None
        self._pipe = process.stdout.fileno()
        self.exhausted = False
        """True once the generator has issued its last request; those may still be counted."""

    def new_requests(self, timeout_s: float | None) -> int:
        """Return how many requests were issued since the last call; wait for one up to `timeout_s`.

        None waits until there is one, or none will come any more (then 0 is returned).
        """
        if not self.exhausted:
            ready, _, _ = select.select([self._wire.issued, self._pipe], [], [], timeout_s)
            self.exhausted = self._pipe in ready
        return self._count()

    def _count(self) -> int:
        try:
            return os.eventfd_read(self._wire.issued)
        except BlockingIOError:
            return 0

    def done(self, count: int) -> None:
        """Tell the generator that `count` more requests are done."""
        os.eventfd_write(self._wire.done, count)

    def issue_times_s(self) -> array[float]:
        """Return when each request was issued, once all are; from the window's begin.

        Raises:
            EnvironmentUnfitError: the generator failed.
        """
        data, errors = self._process.communicate(timeout=END_S)
        if self._process.returncode != 0:
            last = (errors.decode(errors="replace").strip().splitlines() or ["without a word"])[-1]
            raise EnvironmentUnfitError(f"the load generator ended with {self._process.returncode}: {last}")
        times = array("d")
        times.frombytes(data)
        return times


@contextmanager
def traffic(
    plan: TrafficPlan, *, make_command: Callable[[TrafficPlan, Wire], list[str]] = command
) -> Iterator[Traffic]:
    """Start a generator for `plan`; whatever happens, it does not outlive the block."""
    # Only our own end of `issued` must not block; the flag is the file's, and nobody else reads that one.
    wire = Wire(os.eventfd(0, os.EFD_NONBLOCK), os.eventfd(0))
    process = subprocess.Popen(
        make_command(plan, wire),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        stdin=subprocess.DEVNULL,
        pass_fds=(wire.issued, wire.done),
        start_new_session=True,  # what a signal to the group means is for the server to say
    )
    try:
        yield Traffic(wire, process)
    finally:
        process.kill()
        process.communicate()
        os.close(wire.issued)
        os.close(wire.done)

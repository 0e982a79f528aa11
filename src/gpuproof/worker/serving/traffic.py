"""A running generator, as the server sees it: how many requests are new, whether more will come, their times.

The counters are eventfds: reading one takes all that was added since. The generator's standard output is a
pipe that becomes readable when it has issued its last request, and holds the issue times.
"""

from __future__ import annotations

import math
import os
import select
import subprocess
from array import array
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial

from gpuproof.base.errors import EnvironmentUnfitError
from gpuproof.records.work.serving import ServingSpec
from gpuproof.worker.serving.generator import TrafficPlan, Wire, command
from gpuproof.worker.serving.prompts import read_trace

END_S = 30.0
"""Time that a generator gets to hand its issue times over."""
CLOSED_LOOP_STRETCH = 10.0
"""A closed loop that has too few requests after its window goes on for at most this many windows."""


def traffic_plan(spec: ServingSpec, *, begin_monotonic_s: float, seed: int) -> TrafficPlan:
    """Return the plan of a case's window.

    server: by a schedule. offline: everything at once. closed_loop: a number of users who each wait for their
    answer. The first two are MLPerf's: https://github.com/mlcommons/inference_policies, section Scenarios.

    Raises:
        EnvironmentUnfitError: there is a trace that cannot be read.
    """
    plan = partial(TrafficPlan, begin_monotonic_s=begin_monotonic_s, seed=seed)
    if spec.scenario == "offline":
        return plan(num_requests=spec.min_requests)
    if spec.scenario == "server" and spec.arrivals == "trace":
        assert spec.trace is not None  # a rule of the recipe's
        num_requests = len(read_trace(spec.trace, max_s=spec.window_s))
        return plan(trace=spec.trace, num_requests=num_requests, max_s=spec.window_s)
    if spec.scenario == "server":
        assert spec.rate_per_s is not None
        num_requests = max(spec.min_requests, math.ceil(spec.rate_per_s * spec.window_s))
        return plan(
            arrivals=spec.arrivals,
            rate_per_s=spec.rate_per_s,
            num_requests=num_requests,
            burstiness=spec.burstiness,
        )
    return plan(
        concurrency=spec.concurrency,
        min_requests=spec.min_requests,
        min_s=spec.window_s,
        max_s=spec.window_s * CLOSED_LOOP_STRETCH,
    )


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

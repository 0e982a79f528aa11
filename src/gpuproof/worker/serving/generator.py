"""The load generator, a separate process that issues requests on schedule, and the server's side.

The generator shares only two kernel counters (eventfd) with the server: requests issued, and requests done.
Adding to a counter neither blocks nor needs buffer space, so a busy server cannot delay the generator;
reading a counter returns everything added since the last read. In: a plan as JSON, and the numbers of the two
descriptors. Out, on standard output, once everything has been issued: the issue times as raw doubles, in
seconds from the window's start. Schedules are generated from a seed before the window. Generator and server
draw the same schedule, so it need not be sent. Latency is measured from the issue times, not from when a
request could be sent, so a server that stalls does not delay the next requests (no coordinated omission).
"""

from __future__ import annotations

import gc
import json
import math
import os
import random
import select
import subprocess
import sys
import threading
import time
from array import array
from bisect import bisect_right
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from functools import partial
from itertools import accumulate
from time import monotonic

from gpuproof.base.errors import EnvironmentUnfitError
from gpuproof.records.work.serving import Arrivals, ServingSpec
from gpuproof.worker.serving.prompts import read_trace

WATCH_S = 0.5
END_S = 30.0
"""Time limit for a generator to send its issue times."""
CLOSED_LOOP_STRETCH = 10.0
"""Maximum duration of a closed loop that has too few requests after its window, in window lengths."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TrafficPlan:
    """Requests to be issued. Open loop: on a schedule. Closed loop: a fixed number in flight."""

    begin_monotonic_s: float
    seed: int
    arrivals: Arrivals | None = None
    rate_per_s: float | None = None
    num_requests: int | None = None
    """Open loop: the total number of requests. Without a rate, all requests arrive at once."""
    burstiness: float = 1.0
    trace: str | None = None
    """Open loop: a file with request times, of which the first `max_s` seconds are used."""
    concurrency: int | None = None
    """Closed loop: number of requests in flight; when a request is done, a new one is issued."""
    min_requests: int = 0
    min_s: float = 0.0
    max_s: float = 0.0
    """A closed loop ends once `min_requests` have been issued and `min_s` has passed, or at `max_s`."""
    part: int = 0
    num_parts: int = 1
    """Index of this client, if there are several: requests are numbered and sent round-robin."""

    def split(self, num_parts: int) -> list[TrafficPlan]:
        """Return a plan for each of several clients, which divide schedule and users among themselves."""
        users = self.concurrency
        return [
            replace(
                self,
                part=part,
                num_parts=num_parts,
                concurrency=None if users is None else users // num_parts + (part < users % num_parts),
                min_requests=-(-self.min_requests // num_parts),
            )
            for part in range(num_parts)
        ]

    def schedule(self) -> array[float]:
        """Return the scheduled times for an open loop, in seconds from the start.

        Raises:
            EnvironmentUnfitError: the times come from a trace that cannot be read.
        """
        if self.trace is not None:
            return array("d", (row.at_s or 0.0 for row in read_trace(self.trace, max_s=self.max_s)))
        assert self.num_requests is not None
        if self.rate_per_s is None or self.arrivals is None:
            return at_once(self.num_requests)
        return schedule(
            self.arrivals,
            rate_per_s=self.rate_per_s,
            num_requests=self.num_requests,
            seed=self.seed,
            burstiness=self.burstiness,
        )

    @property
    def offered_per_s(self) -> float | None:
        """Return the mean rate of a schedule; None if there is no rate."""
        if self.trace is None or self.num_requests is None:
            return self.rate_per_s
        return self.num_requests / self.max_s


@dataclass(frozen=True, slots=True)
class Wire:
    """The two counters shared by generator and server."""

    issued: int
    done: int


def schedule(
    arrivals: Arrivals, *, rate_per_s: float, num_requests: int, seed: int, burstiness: float = 1.0
) -> array[float]:
    """Return the arrival times of `num_requests` requests in seconds; the first comes after one gap.

    Poisson arrivals have independent exponential gaps with mean 1/rate, like users unaware of each other.
    Gamma arrivals have gaps with a coefficient of variation of 1/√burstiness. The rate of a ramp rises from 0
    to 2·rate at its end, num_requests/rate: the k-th request arrives at the k-th event of a Poisson process
    with the integral r·t²/T.

    >>> list(schedule("constant", rate_per_s=4, num_requests=3, seed=0))
    [0.25, 0.5, 0.75]

    Raises:
        ValueError: the rate is not greater than 0.
    """
    if not rate_per_s > 0:
        raise ValueError(f"a rate must be above 0 requests/s, not {rate_per_s}")
    if arrivals == "constant":
        return array("d", ((k + 1) / rate_per_s for k in range(num_requests)))
    draw = random.Random(seed)  # noqa: S311  # a schedule, no secret
    if arrivals == "gamma":
        scale_s = 1 / (rate_per_s * burstiness)
        gaps_s = (draw.gammavariate(burstiness, scale_s) for _ in range(num_requests))
    else:
        gaps_s = (draw.expovariate(rate_per_s) for _ in range(num_requests))
    times = array("d", accumulate(gaps_s))
    if arrivals == "ramp":
        end_s = num_requests / rate_per_s
        return array("d", (math.sqrt(time_s * end_s) for time_s in times))
    return times


def at_once(num_requests: int) -> array[float]:
    """Return the schedule of MLPerf's offline scenario: all requests at the window's start."""
    return array("d", bytes(8 * num_requests))


def issue_by_schedule(
    times_s: array[float], wire: Wire, *, begin_s: float, sleep: Callable[[float], None] = time.sleep
) -> array[float]:
    """Issue each request on time; return the issue times, in seconds from `begin_s`."""
    total = len(times_s)
    issued = array("d", bytes(8 * total))
    first = 0
    while first < total:
        now_s = monotonic() - begin_s
        due = bisect_right(times_s, now_s, first)
        if due == first:
            sleep(times_s[first] - now_s)
            continue
        os.eventfd_write(wire.issued, due - first)
        issued[first:due] = array("d", [now_s]) * (due - first)
        first = due
    return issued


def issue_on_completion(plan: TrafficPlan, wire: Wire) -> array[float]:
    """Keep `concurrency` requests in flight until the plan's end; return their issue times."""
    assert plan.concurrency is not None
    begin_s = plan.begin_monotonic_s
    _sleep_until(begin_s)
    issued = array("d")
    free = plan.concurrency
    while True:
        now_s = monotonic() - begin_s
        if now_s >= plan.max_s or (now_s >= plan.min_s and len(issued) >= plan.min_requests):
            return issued
        issued.extend(array("d", [now_s]) * free)
        os.eventfd_write(wire.issued, free)
        free = os.eventfd_read(wire.done)  # waits until at least one is done


def run_plan(plan: TrafficPlan, wire: Wire) -> array[float]:
    """Issue the requests in the plan; return the time of each issue in seconds from the start."""
    if plan.concurrency is not None:
        return issue_on_completion(plan, wire)
    times_s = plan.schedule()
    _sleep_until(plan.begin_monotonic_s)
    return issue_by_schedule(times_s, wire, begin_s=plan.begin_monotonic_s)


def command(plan: TrafficPlan, wire: Wire) -> list[str]:
    """Return the command line that starts a generator."""
    program = [sys.executable, "-m", "gpuproof.worker", "generate"]
    return [*program, json.dumps(asdict(plan)), str(wire.issued), str(wire.done), str(os.getpid())]


def main(arguments: Sequence[str]) -> int:
    """Run a plan and write the issue times; started by the server's process, not by users."""
    plan_text, issued_fd, done_fd, server_pid = arguments
    plan = TrafficPlan(**json.loads(plan_text))
    gc.disable()
    _live_as_long_as(int(server_pid))
    times_s = run_plan(plan, Wire(int(issued_fd), int(done_fd)))
    sys.stdout.buffer.write(times_s.tobytes())
    sys.stdout.buffer.flush()
    return 0


def _live_as_long_as(server_pid: int) -> None:
    """Exit when the server has exited, for whatever reason: signals to its group do not arrive here."""

    def watch() -> None:
        while os.getppid() == server_pid:
            time.sleep(WATCH_S)
        os._exit(1)

    threading.Thread(target=watch, name="gpuproof-watch", daemon=True).start()


def _sleep_until(moment_s: float) -> None:
    while (left_s := moment_s - monotonic()) > 0:
        time.sleep(left_s)


def traffic_plan(spec: ServingSpec, *, begin_monotonic_s: float, seed: int) -> TrafficPlan:
    """Return the plan for a case's window.

    server: on a schedule. offline: everything at once. closed_loop: a number of users who each wait for their
    responses. The first two scenarios are MLPerf's: https://github.com/mlcommons/inference_policies, section
    Scenarios.

    Raises:
        EnvironmentUnfitError: the trace cannot be read.
    """
    plan = partial(TrafficPlan, begin_monotonic_s=begin_monotonic_s, seed=seed)
    if spec.scenario == "offline":
        return plan(num_requests=spec.min_requests)
    if spec.scenario == "server" and spec.arrivals == "trace":
        assert spec.trace is not None  # a rule of the recipe guarantees it
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
    """Source of requests as they arrive: counts them, and reports which ones have finished."""

    def __init__(self, wire: Wire, process: subprocess.Popen[bytes]) -> None:
        self._wire = wire
        self._process = process
        assert process.stdout is not None
        self._pipe = process.stdout.fileno()
        self.exhausted = False
        """True once the generator has issued its last request; some requests may not be counted yet."""

    def new_requests(self, timeout_s: float | None) -> int:
        """Return how many requests were issued since the last call; wait up to `timeout_s` for one.

        None waits until there is a request, or until no more will come (0 is returned in that case).
        """
        if not self.exhausted:
            ready, _, _ = select.select([self._wire.issued, self._pipe], [], [], timeout_s)
            self.exhausted = self._pipe in ready
        try:
            return os.eventfd_read(self._wire.issued)
        except BlockingIOError:
            return 0

    def done(self, count: int) -> None:
        """Tell the generator that `count` more requests are done."""
        os.eventfd_write(self._wire.done, count)

    def issue_times_s(self) -> array[float]:
        """Once all requests are issued, return the issue times, in seconds from the window's start.

        Raises:
            EnvironmentUnfitError: the generator failed.
        """
        data, errors = self._process.communicate(timeout=END_S)
        if self._process.returncode != 0:
            last = (errors.decode(errors="replace").strip().splitlines() or ["without a message"])[-1]
            raise EnvironmentUnfitError(f"the load generator exited with {self._process.returncode}: {last}")
        times = array("d")
        times.frombytes(data)
        return times


@contextmanager
def traffic(
    plan: TrafficPlan, *, make_command: Callable[[TrafficPlan, Wire], list[str]] = command
) -> Iterator[Traffic]:
    """Start a generator for `plan`; it never outlives the block."""
    # Only our own end of `issued` must be non-blocking. The flag belongs to the file, and nothing else reads
    # it.
    wire = Wire(os.eventfd(0, os.EFD_NONBLOCK), os.eventfd(0))
    process = subprocess.Popen(
        make_command(plan, wire),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        stdin=subprocess.DEVNULL,
        pass_fds=(wire.issued, wire.done),
        start_new_session=True,  # the server decides how to respond to a signal sent to the group
    )
    try:
        yield Traffic(wire, process)
    finally:
        process.kill()
        process.communicate()
        os.close(wire.issued)
        os.close(wire.done)

"""Dynamic batching: collect waiting requests, briefly wait for more, run them, record the times.

In: traffic, and the model as a function that accepts a number of samples and returns once they are done
(`RunBatch`).
Out: when each request started, received its first token and finished, and which batches ran. Requests are
served first come, first served. Batches are static: no request joins a running batch.
"""

from __future__ import annotations

from array import array
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from time import monotonic
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from gpuproof.worker.step.generation import AnswerStep
    from gpuproof.worker.step.preparation import Prepared

RunBatch = Callable[[int], float | None]
"""Runs this many samples to completion. Returns the time, on the caller's clock, at which their first tokens
were available, or None if no tokens are generated."""


class RequestSource(Protocol):
    """Source of requests: `generator.Traffic`, or a list in a test."""

    exhausted: bool

    def new_requests(self, timeout_s: float | None) -> int:
        """Return the number of new requests, waiting up to `timeout_s`; None waits for one or the end."""

    def done(self, count: int) -> None:
        """Record that `count` more requests are done, in order of arrival."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchingRule:
    """Settings for batching requests."""

    samples_per_request: int
    max_batch: int
    """Maximum number of samples per batch; a larger request is run as a separate batch."""
    max_wait_s: float
    """Maximum time that the oldest request waits before an incomplete batch is run."""

    @property
    def max_requests(self) -> int:
        """Number of requests in a full batch."""
        return max(1, self.max_batch // self.samples_per_request)


@dataclass(slots=True)
class ServedRequests:
    """When each request reached each stage, in seconds from the window's start, in order of arrival."""

    begun_s: array[float] = field(default_factory=lambda: array("d"))
    done_s: array[float] = field(default_factory=lambda: array("d"))
    first_token_s: array[float] = field(default_factory=lambda: array("d"))
    """Times of the first tokens; empty if no tokens are generated."""
    batches: Counter[int] = field(default_factory=Counter)
    """Number of batches of each size (in requests)."""


def serve(
    source: RequestSource,
    run_batch: RunBatch,
    rule: BatchingRule,
    *,
    begin_s: float,
    on_batch: Callable[[int], None] = lambda _: None,
    clock: Callable[[], float] = monotonic,
) -> ServedRequests:
    """Serve until the source is exhausted and no request waits; `on_batch` is called with the number done."""
    served = ServedRequests()
    waiting = 0
    oldest_s = 0.0
    while True:
        if waiting == 0:
            waiting = source.new_requests(None)
            oldest_s = clock()
            if waiting == 0 and source.exhausted:
                return served
        while waiting < rule.max_requests and not (source.exhausted and waiting):
            left_s = oldest_s + rule.max_wait_s - clock()
            arrivals = source.new_requests(max(0.0, left_s))
            waiting += arrivals
            if left_s <= 0:
                break
        if waiting == 0:
            continue
        size = min(waiting, rule.max_requests)
        oldest_s = clock()  # leftover requests, which do not wait a second time for others
        began_s = oldest_s - begin_s
        first_token_s = run_batch(size * rule.samples_per_request)
        done_s = clock() - begin_s
        source.done(size)
        waiting -= size
        served.begun_s.extend(array("d", [began_s]) * size)
        served.done_s.extend(array("d", [done_s]) * size)
        if first_token_s is not None:
            served.first_token_s.extend(array("d", [first_token_s - begin_s]) * size)
        served.batches[size] += 1
        on_batch(len(served.done_s))


def model_target(prepared: Prepared) -> RunBatch:
    """Return a function that runs the model on a given number of samples and waits for the device."""
    import torch  # needed only if a model is served, not to load-test an endpoint

    from gpuproof.worker.step.generation import AnswerStep

    if isinstance(prepared.step, AnswerStep):
        return text_target(prepared.step, prepared.clock.synchronize)
    module = prepared.workload.module.eval()
    inputs, _ = prepared.pool.next_batch()
    autocast = prepared.precision.autocast()
    synchronize = prepared.clock.synchronize

    def run(num_samples: int) -> None:
        with torch.inference_mode(), autocast:
            module(inputs[:num_samples])
        synchronize()

    return run


def text_target(
    step: AnswerStep, synchronize: Callable[[], None], *, clock: Callable[[], float] = monotonic
) -> RunBatch:
    """Return a function that processes a given number of prompts and generates all tokens for each.

    It waits for the device twice: after the first tokens, and after the last.
    """

    def run(num_prompts: int) -> float:
        step.read(num_prompts)
        synchronize()
        first_token_s = clock()
        step.go_on()
        synchronize()
        return first_token_s

    return run


def warm(
    run_batch: RunBatch,
    *,
    samples_per_request: int,
    max_requests: int,
    on_batch: Callable[[int], None] = lambda _: None,
) -> None:
    """Run every batch size once, because a first run allocates memory, selects kernels and compiles.

    `on_batch` receives the number of batches done so far.
    """
    for requests in range(1, max_requests + 1):
        run_batch(requests * samples_per_request)
        on_batch(requests)
    run_batch(max_requests * samples_per_request)


def run_nothing(num_samples: int) -> None:
    """Return immediately, like a server that does nothing: only generator and queue are measured."""

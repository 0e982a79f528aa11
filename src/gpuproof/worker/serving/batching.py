"""Dynamic batching: take what waits, wait a little for more, run it, note when each request was done.

In: traffic, and a model as a function of a number of samples that returns when they are done (`RunBatch`).
Out: when each request was begun, had its first token and was done, and the batches that were run. First come,
first served; batches are static: none is joined while it runs.
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
"""Runs so many samples to their end; returns when their first tokens were there, on the clock of the caller,
or None where none are made."""


class RequestSource(Protocol):
    """Where requests come from: `generator.Traffic`, or a list in a test."""

    exhausted: bool

    def new_requests(self, timeout_s: float | None) -> int:
        """Return how many are new, waiting up to `timeout_s`; None waits until there is one or the end."""

    def done(self, count: int) -> None:
        """Note that `count` more requests are done, in the order in which they came."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchingRule:
    """How requests are put together."""

    samples_per_request: int
    max_batch: int
    """Samples; a request with more is a batch of its own."""
    max_wait_s: float
    """How long the oldest request may wait for others before an unfilled batch is run."""

    @property
    def max_requests(self) -> int:
        """Requests in a full batch."""
        return max(1, self.max_batch // self.samples_per_request)


@dataclass(slots=True)
class ServedRequests:
    """What was done when, in seconds from the window's begin, request by request in order of arrival."""

    begun_s: array[float] = field(default_factory=lambda: array("d"))
    done_s: array[float] = field(default_factory=lambda: array("d"))
    first_token_s: array[float] = field(default_factory=lambda: array("d"))
    """Empty where no tokens are made."""
    batches: Counter[int] = field(default_factory=Counter)
    """How many batches of how many requests."""


def serve(
    source: RequestSource,
    run_batch: RunBatch,
    rule: BatchingRule,
    *,
    begin_s: float,
    on_batch: Callable[[int], None] = lambda _: None,
    clock: Callable[[], float] = monotonic,
) -> ServedRequests:
    """Serve until the source is exhausted and nothing waits; `on_batch` is given the number done so far."""
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
        oldest_s = clock()  # of those left behind, which wait no second time for company
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
    """Return the function that has the model answer that many samples and waits for the device."""
    import torch  # where a model is served, and not to load an endpoint

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
    """Return the function that reads that many prompts and makes all tokens of each.

    The device is waited for twice: behind the first tokens, and behind the last.
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
    """Run every size of batch once: a first time costs memory, kernels chosen, code compiled.

    `on_batch` is called with the number of batches done so far.
    """
    for requests in range(1, max_requests + 1):
        run_batch(requests * samples_per_request)
        on_batch(requests)
    run_batch(max_requests * samples_per_request)


def run_nothing(num_samples: int) -> None:
    """Return at once: the server that does nothing, so that generator and queue alone are measured."""

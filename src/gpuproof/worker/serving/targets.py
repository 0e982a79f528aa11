"""Who is served: the model on this host's device.

A target is a function of a number of samples that returns when their answer is complete, and says when the
first tokens were there, if it makes any.
"""

from __future__ import annotations

from collections.abc import Callable
from time import monotonic

import torch

from gpuproof.worker.serving.batching import RunBatch
from gpuproof.worker.step.generation import AnswerStep
from gpuproof.worker.step.preparation import Prepared


def model_target(prepared: Prepared) -> RunBatch:
    """Return the function that has the model answer that many samples and waits for the device."""
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

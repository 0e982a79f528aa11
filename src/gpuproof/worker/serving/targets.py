"""Who is served: the model on this host's device, or nobody at all.

A target is a function of a number of samples that returns when their answer is complete. The null target
answers at once; what is measured with it is the generator and the queue.
"""

from __future__ import annotations

from collections.abc import Callable

import torch

from gpuproof.worker.preparation import Prepared

RunBatch = Callable[[int], None]


def model_target(prepared: Prepared) -> RunBatch:
    """Return the function that runs the model forward over that many samples and waits for the device."""
    module = prepared.workload.module.eval()
    inputs, _ = prepared.pool.next_batch()
    autocast = prepared.precision.autocast()
    synchronize = prepared.clock.synchronize

    def run(num_samples: int) -> None:
        with torch.inference_mode(), autocast:
            module(inputs[:num_samples])
        synchronize()

    return run


def warm(run_batch: RunBatch, *, samples_per_request: int, max_requests: int) -> None:
    """Run every size of batch once: a first time costs memory, kernels chosen, code compiled."""
    for requests in range(1, max_requests + 1):
        run_batch(requests * samples_per_request)
    run_batch(max_requests * samples_per_request)

"""What is a step longer by for averaging gradients? Steps with the average and steps without it, by turns.

Their difference is no communication yet: DistributedDataParallel copies gradients into buckets and back even
where it has nobody to talk to. So the same difference is taken over a group of this rank alone, with the same
model, batch and process, and what is left is the communication that a step waits for.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from time import perf_counter

import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

from gpuproof.records.breakdown import GradientSync, SyncRound
from gpuproof.worker.breakdown.bursts import BusyQueue, agreed_steps, queued_burst, without_sync
from gpuproof.worker.engine.loop import StepFunction
from gpuproof.worker.rank.recorder import Recorder
from gpuproof.worker.step.preparation import Prepared
from gpuproof.worker.step.training import TrainingStep

NUM_ROUNDS = 5
MIN_STEPS, MAX_STEPS = 2, 20
"""Of a burst; four bursts make a round."""
REBUILT_AFTER = 2
"""Steps after which a data-parallel module has its buckets in the order in which gradients come."""
SHARED = "a step of {} gathers what other ranks hold, and none can be run without communication"


def measure_sync(prepared: Prepared, recorder: Recorder) -> None:
    """Time both kinds of step with all ranks and in a group of one, and write them down."""
    assert prepared.parallelism is not None
    strategy = prepared.parallelism.strategy
    missing = None if strategy == "ddp" else SHARED.format(strategy)
    rounds = () if missing else tuple(_rounds(prepared, beat=recorder.heartbeat.beat))
    rank, clock = prepared.identity.rank, prepared.clock.name
    recorder.write(GradientSync(rank=rank, clock=clock, rounds=rounds, missing=missing))


def _rounds(prepared: Prepared, *, beat: Callable[[], None]) -> Iterator[SyncRound]:
    step, last_loss = prepared.step, prepared.step.last_loss
    assert isinstance(step, TrainingStep)
    kinds = _kinds_of_step(step, prepared)
    host_s = max(_host_s(kind) for kind in kinds.values())
    busy = BusyQueue(prepared.device, prepared.clock)
    num_steps = agreed_steps(prepared, step, least=MIN_STEPS, most=MAX_STEPS)
    for number in range(NUM_ROUNDS):
        bursts = {}
        for name in list(kinds)[:: -1 if number % 2 else 1]:  # a machine that warms up treats them alike
            # the first step, left out, also hands the buffers of batch norm round after steps together
            bursts[name] = queued_burst(prepared, kinds[name], busy, num_steps=num_steps, host_s=host_s)
            beat()
        yield SyncRound(**bursts)
    step.last_loss = last_loss


def _host_s(kind: StepFunction) -> float:
    """Take steps until buckets have their order; return what the host took for the last of them."""
    for _ in range(REBUILT_AFTER):
        begin_s = perf_counter()
        kind()
    return perf_counter() - begin_s


def _kinds_of_step(step: TrainingStep, prepared: Prepared) -> dict[str, StepFunction]:
    """Return the four kinds of step, by the field of the record."""
    module = step.module
    assert isinstance(module, DistributedDataParallel)
    group = dist.new_group([prepared.identity.rank], use_local_synchronization=True)
    alone = DistributedDataParallel(module.module, device_ids=module.device_ids, process_group=group)

    def alone_with_sync() -> None:
        with step.through(alone):
            step()

    def alone_without_sync() -> None:
        with step.through(alone):
            local_step()

    local_step = without_sync(step)
    return {
        "with_sync_s": step,
        "without_sync_s": local_step,
        "alone_with_sync_s": alone_with_sync,
        "alone_without_sync_s": alone_without_sync,
    }

"""While collectives run, does the device compute? Looked at in a few steps, on the device's own list of work.

**Exposed** communication is the time in which a collective runs and nothing is computed; the rest is
overlapped. A collective's kernel runs while it waits for other ranks, so that what it lasts is no bandwidth.

The steps are queued behind a device that is kept busy: their hosts begin at moments of their own, and without
that each rank would wait for them inside the first collectives, which is no part of steps in a row.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from time import perf_counter

import torch
import torch.distributed as dist

from gpuproof.accelerators.base import DeviceCommand
from gpuproof.accelerators.busy import UnseenWorkError, commands_during, reason_unseen
from gpuproof.accelerators.choose import accelerator_of
from gpuproof.base.spans import covered, merged, without
from gpuproof.records.breakdown import COMMUNICATION, CollectiveOverlap
from gpuproof.worker.breakdown.bursts import BusyQueue
from gpuproof.worker.rank.idleness import OF_OTHERS
from gpuproof.worker.rank.recorder import NANOSECOND_DIGITS, Recorder
from gpuproof.worker.step.preparation import Prepared

NUM_STEPS = 5
COPY = re.compile(r"^(memcpy|memset|copy)", re.IGNORECASE)
"""In the name of what is neither computing nor communication."""
NO_KERNELS = (
    "a processor computes and communicates on the same cores, and has no kernels to look at; "
    "profiling.enabled=true traces its operators"
)


def measure_overlap(prepared: Prepared, recorder: Recorder) -> None:
    """Look at a few steps on all ranks at once, and write down what collectives took."""
    missing, commands = None, list[DeviceCommand]()
    try:
        commands = _commands(prepared)
    except UnseenWorkError as error:
        missing = str(error)
    recorder.write(overlap_of(commands, rank=prepared.identity.rank, missing=missing))


def _commands(prepared: Prepared) -> list[DeviceCommand]:
    device, accelerator = prepared.device, accelerator_of(prepared.device)
    why = reason_unseen(accelerator, device) if accelerator.asynchronous else NO_KERNELS
    if not prepared.ranks.agree(int(why is None)):  # steps of one rank are steps of all
        raise UnseenWorkError(why or OF_OTHERS)

    busy = BusyQueue(device, prepared.clock)
    prepared.ranks.barrier()
    begin_s = perf_counter()
    prepared.step()
    host_s = NUM_STEPS * (perf_counter() - begin_s)

    def some_steps() -> None:
        busy.hold(host_s)
        dist.all_reduce(torch.zeros(1, device=device))
        for _ in range(NUM_STEPS):
            prepared.step()

    prepared.ranks.barrier()
    return commands_during(some_steps, accelerator, device)


def overlap_of(commands: Sequence[DeviceCommand], *, rank: int, missing: str | None) -> CollectiveOverlap:
    """Sum up what a device did in `NUM_STEPS` steps.

    The first collective is left out: it is the one in which ranks wait for each other before these steps.
    """
    talking = [command for command in commands if COMMUNICATION.search(command.name)]
    talking = sorted(talking, key=lambda command: command.begin_s)[1:]
    computing = merged(
        command.span
        for command in commands
        if not COMMUNICATION.search(command.name) and not COPY.search(command.name)
    )
    collectives = merged(command.span for command in talking)
    return CollectiveOverlap(
        rank=rank,
        num_steps=NUM_STEPS,
        collective_s=round(covered(collectives), NANOSECOND_DIGITS),
        exposed_s=round(covered(without(collectives, computing)), NANOSECOND_DIGITS),
        kernels=tuple(sorted({command.name for command in talking})),
        missing=missing,
    )

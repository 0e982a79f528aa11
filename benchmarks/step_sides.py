"""The sides of the step benchmark in one process, and how one segment of each is timed.

`bare` is a hand-written training loop, `engine` is that loop's step run by gpuproof's engine, and `worker` is
what a case actually runs: the worker's step in the engine. `bare again` is a second bare loop. Each has its
own model, with equal weights, and reads the same samples.
"""

from __future__ import annotations

import gc
import os
from collections.abc import Callable
from copy import deepcopy
from pathlib import Path
from time import perf_counter

import torch
from torch import nn

from gpuproof.records.case import Case, TrainingWork
from gpuproof.worker.data.sources import SamplePool
from gpuproof.worker.engine.loop import FixedSteps, run_window
from gpuproof.worker.rank.identity import identity_from
from gpuproof.worker.rank.recorder import Recorder, StepTimesWriter
from gpuproof.worker.rank.watchdog import Heartbeat
from gpuproof.worker.step.preparation import Prepared, prepare

SIDES = ("bare", "engine", "worker", "bare again")
Segment = Callable[[int], float]
"""Runs a number of steps and returns their wall time in seconds."""


def segments_of(case: Case, folder: Path) -> dict[str, Segment]:
    """Build all sides of a case in this process; journals go to `folder`."""
    prepared = prepare(case, identity=identity_from(os.environ), run_folder=folder)
    modules = {side: deepcopy(prepared.workload.module) for side in SIDES if side != "worker"}
    journal = Recorder(folder / "engine.jsonl", rank=0, heartbeat=Heartbeat())
    by_hand = HandWritten(modules["engine"], prepared)
    return {
        "bare": bare_segment(modules["bare"], prepared),
        "engine": engine_segment(by_hand.step, prepared, journal),
        "worker": engine_segment(prepared.step, prepared, journal),
        "bare again": bare_segment(modules["bare again"], prepared),
    }


class HandWritten:
    """A hand-written setup: a model, an optimizer, batches, and a step over the next one."""

    def __init__(self, module: nn.Module, prepared: Prepared) -> None:
        work, pool = prepared.work, prepared.pool
        assert isinstance(work, TrainingWork)
        assert isinstance(pool, SamplePool), "these sides take all batches from the device"
        self.module = module
        self.optimizer = torch.optim.SGD(
            module.parameters(), lr=work.training.learning_rate, momentum=work.training.momentum
        )
        inputs, targets = pool.inputs.split(pool.batch_size), pool.targets.split(pool.batch_size)
        self.batches = list(zip(inputs, targets, strict=True))
        self._next = 0

    def step(self) -> None:
        """Run one step as a function without arguments, as the engine expects."""
        inputs, targets = self.batches[self._next]
        self._next = (self._next + 1) % len(self.batches)
        self.optimizer.zero_grad(set_to_none=True)
        nn.functional.mse_loss(self.module(inputs), targets).backward()
        self.optimizer.step()


def bare_segment(module: nn.Module, prepared: Prepared) -> Segment:
    """Return the hand-written loop: everything inline, timed only at its start and end."""
    by_hand = HandWritten(module, prepared)
    optimizer, batches = by_hand.optimizer, by_hand.batches
    done = 0

    def run(num_steps: int) -> float:
        nonlocal done
        gc.collect()  # the engine does so before its window; both sides start with the same caches
        begin_s = perf_counter()
        for number in range(done, done + num_steps):
            inputs, targets = batches[number % len(batches)]
            optimizer.zero_grad(set_to_none=True)
            nn.functional.mse_loss(module(inputs), targets).backward()
            optimizer.step()
        end_s = perf_counter()
        done += num_steps
        return end_s - begin_s

    return run


def engine_segment(step: Callable[[], None], prepared: Prepared, recorder: Recorder) -> Segment:
    """Return a window of the engine with the case's own clock, recording step times as in a real run."""
    writer = StepTimesWriter(recorder, "measure", keep_times=True)
    step_s: float | None = None

    def run(num_steps: int) -> float:
        nonlocal step_s
        timing = run_window(step, prepared.clock, FixedSteps(num_steps, step_s=step_s), writer)
        step_s = timing.wall_s / num_steps
        return timing.wall_s

    return run

"""Run a step as one CUDA graph: captured once after a warm-up, then replayed with new samples.

A graph reads and writes the same addresses each time. So the step is built on dedicated buffers
(`StaticBatches`), which are filled from the pool before each replay; weights, gradients and optimizer state
stay in place anyway. This follows https://docs.pytorch.org/docs/stable/notes/cuda.html on whole-network
capture. The actual behaviour of torch.compile (graphs, breaks with their reasons, uncompiled parts) is read
from torch's own counters. They cover the whole process, so the values for a window are the difference between
two readings.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from itertools import cycle
from typing import Protocol

import torch
from torch import nn

from gpuproof.accelerators.base import Accelerator, OutOfMemory
from gpuproof.base.errors import EnvironmentUnfitError, UsageError
from gpuproof.records.case import ModelWork
from gpuproof.records.what_ran import Compilation, Effective, GraphBreak
from gpuproof.records.work.training import TrainingSpec
from gpuproof.records.work.window import capture_obstacles
from gpuproof.worker.data.batch_source import Batches
from gpuproof.workloads.info.lookup import find_workload

Step = Callable[[], None]
STEPS_BEFORE_CAPTURE = 3
"""Number of warm-up steps on a side stream, in which libraries choose algorithms and workspaces, and
optimizers create their state."""


class Capture(Protocol):
    """Operations that a capture needs from a device; an `Accelerator` provides them."""

    def run_aside(self, run: Step) -> None:
        """Run the step on a side stream, with a wait before and after."""

    def capture_graph(self, run: Step) -> Step:
        """Record, but do not run, the operations that `run` submits to the device; return the replay."""


class Uncaptured:
    """Replaces a `Capture` but runs every step; for compiled steps, which also need fixed shapes."""

    def run_aside(self, run: Step) -> None:
        """Run."""
        run()

    def capture_graph(self, run: Step) -> Step:
        """Return a function that runs the step again."""
        return run


class StaticBatches:
    """As many batches as a step uses, always at the same addresses, filled from a pool."""

    def __init__(self, pool: Batches, *, count: int) -> None:
        self._pool = pool
        self._buffers = [tuple(part.clone() for part in pool.next_batch()) for _ in range(count)]
        self._next = cycle(self._buffers)

    def next_batch(self) -> tuple[torch.Tensor, torch.Tensor]:
        """Return the next buffer; a step that uses `count` buffers gets each of them once."""
        inputs, targets = next(self._next)
        return inputs, targets

    def refill(self) -> None:
        """Copy the pool's next batches into the buffers."""
        for inputs, targets in self._buffers:
            new_inputs, new_targets = self._pool.next_batch()
            inputs.copy_(new_inputs)
            targets.copy_(new_targets)


class ModelStep(Protocol):
    """A model's step, which keeps its loss if it computes one."""

    @property
    def module(self) -> nn.Module:
        """The module that runs the forward pass."""

    @property
    def last_loss(self) -> torch.Tensor | None:
        """The loss in the latest step."""

    @property
    def outputs(self) -> object:
        """The output of the latest step."""

    def __call__(self) -> None:
        """Run one step."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CapturedStep:
    """A step that replays one graph or one of several graphs."""

    eager: ModelStep
    """The original step; every replay writes its loss and outputs to the same addresses."""
    run: Step
    effective: Effective
    """The kernel inputs, observed in a step before the capture, because a replay hides them."""
    is_graph: bool = True

    def __call__(self) -> None:
        """Run one step."""
        self.run()


def capture_obstacle(work: ModelWork, accelerator: Accelerator, *, world_size: int) -> str | None:
    """Return why the step cannot be captured here; None if it can be."""
    for obstacle in capture_obstacles(work.training, work.data, updates_weights=work.trains):
        return obstacle.cause
    if work.reason_steps_vary is not None:
        return work.reason_steps_vary
    waits = find_workload(work.model.name).reason_it_waits
    if waits is not None:
        return waits
    # otherwise the ranks do not exchange anything
    if world_size > 1 and (work.trains or work.parallel.strategy == "tensor"):
        return f"capturing is supported with one rank, not with the gradient average of {world_size} ranks"
    return accelerator.why_no_graphs()


def is_captured(work: ModelWork, accelerator: Accelerator, *, world_size: int) -> bool:
    """Return whether to capture the step: if requested or, with `auto`, if possible.

    Raises:
        EnvironmentUnfitError: a capture is requested, but not possible.
    """
    choice = work.cuda_graphs
    reason = capture_obstacle(work, accelerator, world_size=world_size) if choice else None
    if reason is not None and choice is True:
        raise EnvironmentUnfitError(
            reason, place=work.graphs_key, next_step=f"Set {work.graphs_key} to false"
        )
    return bool(choice) and reason is None


def capture_step(
    step: ModelStep,
    batches: StaticBatches,
    *,
    capture: Capture,
    observe: Callable[[Step], Effective],
    key: str = "training.cuda_graphs",
) -> CapturedStep:
    """Warm up `step` on a side stream, observe its last run with `observe`, and capture the next run.

    Raises:
        UsageError: the step does something that a graph cannot contain, e.g. it waits for the device.
    """
    seen: list[Effective] = []

    def warm_up() -> None:
        for _ in range(STEPS_BEFORE_CAPTURE - 1):
            batches.refill()
            step()
        batches.refill()
        seen.append(observe(step))

    capture.run_aside(warm_up)
    replay = captured(step, capture, key=key)

    def run() -> None:
        batches.refill()
        replay()

    return CapturedStep(eager=step, run=run, effective=seen[0])


def captured(step: Step, capture: Capture, *, key: str) -> Step:
    """Capture what a step submits to the device; return the replay. `key` is the recipe key.

    Raises:
        UsageError: the step does something that a graph cannot contain, e.g. it waits for the device.
    """
    try:
        return capture.capture_graph(step)
    except OutOfMemory:
        raise
    except RuntimeError as error:
        raise UsageError(
            f"the step cannot be captured: {error}".partition("\n")[0],
            place=key,
            next_step=f"Set {key} to false: something in the model waits for the device",
        ) from error


@dataclass(frozen=True, slots=True, kw_only=True)
class CompilerCounts:
    """Totals of torch's counters since the process started."""

    graphs: int
    breaks: dict[str, int]
    eager_frames: int
    cuda_graph_skips: int


def read_counts() -> CompilerCounts:
    """Read torch's counters."""
    from torch._dynamo.utils import counters

    frames = counters["frames"]
    return CompilerCounts(
        graphs=counters["stats"]["unique_graphs"],
        breaks=dict(counters["graph_break"]),
        eager_frames=frames["total"] - frames["ok"],
        cuda_graph_skips=counters["inductor"]["cudagraph_skips"],
    )


def compilation_record(
    compute: TrainingSpec, *, rank: int, before: CompilerCounts, after: CompilerCounts
) -> Compilation:
    """Describe what was compiled; `before` and `after` are readings taken before and after the window."""
    return Compilation(
        rank=rank,
        mode=compute.compile.mode,
        num_graphs=after.graphs,
        graph_breaks=tuple(
            GraphBreak(reason=_first_line(reason), times=times) for reason, times in after.breaks.items()
        ),
        eager_frames=after.eager_frames,
        cuda_graph_skips=after.cuda_graph_skips,
        compiled_in_window=after.graphs + after.eager_frames - before.graphs - before.eager_frames,
    )


def _first_line(reason: str) -> str:
    """Return only the reason: torch adds explanations and links after it."""
    lines = reason.strip().splitlines()
    return lines[0][:200] if lines else "no reason given"

"""A step as one CUDA graph: captured once after a warm-up, then replayed with new samples.

A graph reads and writes the same addresses each time. So the step is built on buffers of its own
(`StaticBatches`), which are filled from the pool before each replay; weights, gradients and the optimizer's
state keep their places by themselves. As https://docs.pytorch.org/docs/stable/notes/cuda.html has it for
whole-network capture. What torch.compile really did (graphs, breaks with their reasons, what stayed
uncompiled) is read from torch's own counters, which are of the whole process: a window's share is the
difference of two readings.
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
"""On a side stream: libraries choose algorithms and workspaces, optimizers make their state."""


class Capture(Protocol):
    """What a capture asks of a device; an `Accelerator` has it."""

    def run_aside(self, run: Step) -> None:
        """Run on a side stream, between two waits."""

    def capture_graph(self, run: Step) -> Step:
        """Record what `run` gives to the device, without running it; return what replays it."""


class Uncaptured:
    """In the place of a `Capture`, runs steps of fixed shapes each time: compiled ones want such, too."""

    def run_aside(self, run: Step) -> None:
        """Run."""
        run()

    def capture_graph(self, run: Step) -> Step:
        """Return what runs it again."""
        return run


class StaticBatches:
    """As many batches as a step takes, always at the same addresses, filled from a pool."""

    def __init__(self, pool: Batches, *, count: int) -> None:
        self._pool = pool
        self._buffers = [tuple(part.clone() for part in pool.next_batch()) for _ in range(count)]
        self._next = cycle(self._buffers)

    def next_batch(self) -> tuple[torch.Tensor, torch.Tensor]:
        """Return the next buffer; a step that takes `count` of them gets each once."""
        inputs, targets = next(self._next)
        return inputs, targets

    def refill(self) -> None:
        """Copy the pool's next batches into the buffers."""
        for inputs, targets in self._buffers:
            new_inputs, new_targets = self._pool.next_batch()
            inputs.copy_(new_inputs)
            targets.copy_(new_targets)


class ModelStep(Protocol):
    """A step of a model, which keeps its loss if it has one."""

    @property
    def module(self) -> nn.Module:
        """What runs forward."""

    @property
    def last_loss(self) -> torch.Tensor | None:
        """The loss of the latest step."""

    @property
    def outputs(self) -> object:
        """What the latest step put out."""

    def __call__(self) -> None:
        """Run one step."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CapturedStep:
    """A step that replays a graph, or one of several."""

    eager: ModelStep
    """What was captured; every replay writes its loss and its outputs to the same places."""
    run: Step
    effective: Effective
    """What the kernels were given, seen in a step before the capture: a replay hides it."""
    is_graph: bool = True

    def __call__(self) -> None:
        """Run one step."""
        self.run()


def capture_obstacle(work: ModelWork, accelerator: Accelerator, *, world_size: int) -> str | None:
    """Return why the step cannot be captured here; None where it can."""
    for obstacle in capture_obstacles(work.training, work.data, updates_weights=work.trains):
        return obstacle.cause
    if work.reason_steps_vary is not None:
        return work.reason_steps_vary
    waits = find_workload(work.model.name).reason_it_waits
    if waits is not None:
        return waits
    if world_size > 1 and (work.trains or work.parallel.strategy == "tensor"):  # else they exchange nothing
        return (
            f"capturing the gradient average of {world_size} ranks is not supported; one rank can be captured"
        )
    return accelerator.why_no_graphs()


def is_captured(work: ModelWork, accelerator: Accelerator, *, world_size: int) -> bool:
    """Return whether the step is captured: where it is asked for, and under `auto` where it can be.

    Raises:
        EnvironmentUnfitError: it is asked for, and cannot be.
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
    """Warm `step` up aside, look at its last step by `observe`, and record the next one.

    Raises:
        UsageError: the step does what a graph cannot hold, waiting for the device say.
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
    """Record what a step gives to the device; return what replays it. `key` is the recipe's that asks for it.

    Raises:
        UsageError: the step does what a graph cannot hold, waiting for the device say.
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
    """torch's counters since the process began."""

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
    """Describe what was compiled; `before` and `after` are the readings around the window."""
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
    """Torch's reasons go on with explanations and links; the first line is the reason."""
    lines = reason.strip().splitlines()
    return lines[0][:200] if lines else "no reason given"

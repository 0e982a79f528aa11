"""How fast is each rank by itself? Where ranks average gradients, a window shows the slowest of them only.

So whole steps are timed after the window, forward, backward and update, whose gradients stay on the rank: no
collective lies inside. They come in short bursts, and between two bursts all ranks step together. A rank that
a neighbour held up for a moment is slow in one burst, a slow device in all of them. Weights differ between
ranks from here on; learning is evaluated before.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from time import perf_counter

from gpuproof.records.run import OwnCompute
from gpuproof.worker.engine.loop import FixedSteps, StepFunction, run_window, steps_within
from gpuproof.worker.parallel.gradients import without_gradient_sync
from gpuproof.worker.rank.recorder import NANOSECOND_DIGITS, Recorder
from gpuproof.worker.step.preparation import Prepared
from gpuproof.worker.step.training import TrainingStep

NUM_BURSTS = 5
BURST_S = 0.1
MIN_STEPS, MAX_STEPS = 4, 50
"""Of a burst. All bursts and what lies between them take about a second, for steps of up to 25 ms; with fewer
steps of longer ones, noise that lasts for tens of steps passes for a slow rank."""
SHARED = (
    "a step of {strategy} gathers what other ranks hold, and none can be taken alone; "
    "profiling.ceilings=true measures each device by itself"
)


def waits_for_others(prepared: Prepared) -> bool:
    """Say whether a step of this rank lasts as long as the slowest rank's."""
    return prepared.parallelism is not None


def measure_own_compute(prepared: Prepared, recorder: Recorder) -> None:
    """Time this rank by itself and write it down; or write down why that cannot be done."""
    assert prepared.parallelism is not None
    strategy = prepared.parallelism.strategy
    alone = strategy == "ddp"
    bursts: tuple[tuple[float, ...], ...] = ()
    if alone:
        with recorder.phase("own_compute"):
            bursts = tuple(_bursts(prepared, beat=recorder.heartbeat.beat))
    recorder.write(
        OwnCompute(
            rank=prepared.identity.rank,
            clock=prepared.clock.name,
            bursts_s=bursts,
            missing=None if alone else SHARED.format(strategy=strategy),
        )
    )


def _bursts(prepared: Prepared, *, beat: Callable[[], None]) -> Iterator[tuple[float, ...]]:
    step, clock, last_loss = prepared.step, prepared.clock, prepared.step.last_loss
    assert isinstance(step, TrainingStep)  # a captured graph holds one rank only
    without_sync = without_gradient_sync(step.module)

    def own_step() -> None:
        with without_sync():
            step()

    begin_s = perf_counter()
    _timed(prepared, own_step, num_steps=1)
    planned = steps_within(BURST_S, step_s=perf_counter() - begin_s)
    num_steps = prepared.ranks.agree(min(MAX_STEPS, max(MIN_STEPS, planned)))
    for _ in range(NUM_BURSTS):
        run_window(step, clock, FixedSteps(num_steps), lambda _times: beat())
        own_step()  # after steps together this one still hands the buffers of batch norm round
        prepared.ranks.barrier()
        yield _timed(prepared, own_step, num_steps=num_steps)
        beat()
    step.last_loss = last_loss


def _timed(prepared: Prepared, step: StepFunction, *, num_steps: int) -> tuple[float, ...]:
    times: list[float] = []
    run_window(step, prepared.clock, FixedSteps(num_steps), times.extend)
    return tuple(round(time_s, NANOSECOND_DIGITS) for time_s in times)

"""How fast is each rank by itself? Where ranks average gradients, a window shows the slowest of them only.

So whole steps are timed after the window, forward, backward and update, whose gradients stay on the rank: no
collective lies inside. They come in short bursts, and between two bursts all ranks step together. A rank that
a neighbour held up for a moment is slow in one burst, a slow device in all of them. Weights differ between
ranks from here on; learning is evaluated before.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

from gpuproof.records.breakdown import OwnCompute
from gpuproof.worker.breakdown.bursts import agreed_steps, timed_burst, without_sync
from gpuproof.worker.engine.loop import FixedSteps, run_window
from gpuproof.worker.rank.recorder import Recorder
from gpuproof.worker.step.preparation import Prepared
from gpuproof.worker.step.training import TrainingStep

NUM_BURSTS = 5
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
    local_step = without_sync(step)
    num_steps = agreed_steps(prepared, local_step, least=MIN_STEPS, most=MAX_STEPS)
    for _ in range(NUM_BURSTS):
        run_window(step, clock, FixedSteps(num_steps), lambda _times: beat())
        local_step()  # after steps together this one still hands the buffers of batch norm round
        prepared.ranks.barrier()
        yield timed_burst(prepared, local_step, num_steps=num_steps)
        beat()
    step.last_loss = last_loss

"""Does the device wait for its host? Looked at after a window in which it came to the end of its queue.

While the window runs, the clock counts the launches at whose end the device had already begun with the step
(`EventClock.caught_up`): a device that is behind its host never has. That says that it waits, not how long:
a device that idles 5 % of the time catches up with every launch as well. How long is told by the work itself,
in a few blocks of steps after the window: the busy time of a step against what a step took in the window.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial

from gpuproof.accelerators.busy import UnseenWorkError, busy_during
from gpuproof.accelerators.choose import accelerator_of
from gpuproof.records.run import DeviceBusy
from gpuproof.worker.engine.loop import StepFunction, steps_within
from gpuproof.worker.rank.recorder import Recorder
from gpuproof.worker.step.preparation import Prepared

CAUGHT_UP = 0.01
"""Share of the launches from which the device may be waiting: of a device that is behind, 0.2-0.5 % were seen
to catch up, by chance."""
BLOCKS = 6
BLOCK_S = 0.1
LEAST_STEPS = 2


def may_wait(caught_up: int | None, *, num_steps: int) -> bool:
    """Say whether the device may have waited; the first launch, to a device at rest, is not counted.

    >>> may_wait(1, num_steps=20), may_wait(2, num_steps=20), may_wait(2, num_steps=2000)
    (False, True, False)
    """
    return caught_up is not None and caught_up - 1 >= max(1.0, CAUGHT_UP * num_steps)


def block_steps(step_s: float) -> int:
    """Return the steps of a block: enough to be long against what begins and ends a trace."""
    return max(LEAST_STEPS, steps_within(BLOCK_S, step_s=step_s))


def busy_blocks(
    step: StepFunction,
    *,
    num_steps: int,
    busy_during: Callable[[StepFunction], float],
    beat: Callable[[], None],
) -> Iterator[float]:
    """Yield the device's busy seconds a step in each of `BLOCKS` blocks.

    Raises:
        UnseenWorkError: nobody can tell.
    """

    def block() -> None:
        for _ in range(num_steps):
            step()

    for _ in range(BLOCKS):
        yield busy_during(block) / num_steps
        beat()


def measure_busy(prepared: Prepared, recorder: Recorder, *, step_s: float) -> None:
    """See how busy the device is in a step, in some more of them, on all ranks at once."""
    device, num_steps = prepared.device, prepared.ranks.agree(block_steps(step_s))
    busy, missing = list[float](), None
    with recorder.phase("busy", expected_steps=BLOCKS * num_steps):
        try:
            busy += busy_blocks(
                prepared.step,
                num_steps=num_steps,
                busy_during=partial(busy_during, accelerator=accelerator_of(device), device=device),
                beat=recorder.heartbeat.beat,
            )
        except UnseenWorkError as error:
            busy, missing = [], str(error)
        rank = prepared.identity.rank
        recorder.write(
            DeviceBusy(rank=rank, steps_per_block=num_steps, busy_s_per_step=tuple(busy), missing=missing)
        )

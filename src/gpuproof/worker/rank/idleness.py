"""Does the device wait for its host? Looked at after a window in which it came to the end of its queue.

While the window runs, the clock counts the launches at whose end the device had already begun with the step
(`EventClock.caught_up`): a device that is behind its host never has. That says that it waits, not how long: a
device that idles 5 % of the time catches up with every launch as well. How long is told by the work itself,
in a few blocks of steps after the window: the busy time of a step against what a step took in the window.
Events cannot show it, since on an idle device one is reached as soon as it is recorded. So kernels themselves
are looked at: by the device's own count where it keeps one, else by torch's profiler
(https://docs.pytorch.org/docs/stable/profiler.html), which slows the host but not the kernels.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial

import torch
from torch._C._autograd import DeviceType
from torch.profiler import ProfilerActivity

from gpuproof.accelerators.base import Accelerator, DeviceCommand, Work
from gpuproof.accelerators.choose import accelerator_of
from gpuproof.base.spans import covered
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
LONGEST_S = 60.0
"""Steps so long that the look would take more are not looked at."""
OF_OTHERS = "the device of another rank could not be looked at"
US_PER_S = 1e6


def may_wait(caught_up: int | None, *, num_steps: int) -> bool:
    """Say whether the device may have waited; the first launch, to a device at rest, is not counted.

    >>> may_wait(1, num_steps=20), may_wait(2, num_steps=20), may_wait(2, num_steps=2000)
    (False, True, False)
    """
    return caught_up is not None and caught_up - 1 >= max(1.0, CAUGHT_UP * num_steps)


def block_steps(step_s: float) -> int:
    """Return the steps of a block, long against what begins and ends a trace; 0 where all take too long.

    >>> block_steps(0.001), block_steps(1.0), block_steps(6.0)
    (100, 2, 0)
    """
    num_steps = max(LEAST_STEPS, steps_within(BLOCK_S, step_s=step_s))
    return num_steps if BLOCKS * num_steps * step_s <= LONGEST_S else 0


def busy_blocks(
    step: StepFunction,
    *,
    num_steps: int,
    busy_during: Callable[[StepFunction], float],
    agree: Callable[[int], int] = int,
) -> Iterator[float]:
    """Yield the device's busy seconds a step in each of `BLOCKS` blocks, as many on every rank.

    Raises:
        UnseenWorkError: nobody can tell, here or on another rank, whose steps would wait for these.
    """

    def block() -> None:
        for _ in range(num_steps):
            step()

    for _ in range(BLOCKS):
        busy_s, missing = 0.0, None
        try:
            busy_s = busy_during(block)
        except UnseenWorkError as error:
            missing = error
        if not agree(int(missing is None)):
            raise missing or UnseenWorkError(OF_OTHERS)
        yield busy_s / num_steps


def measure_busy(prepared: Prepared, recorder: Recorder, *, step_s: float) -> None:
    """See how busy the device is in a step, in some more of them, on all ranks at once."""
    busy, missing, num_steps = list[float](), None, prepared.ranks.agree(block_steps(step_s))
    with recorder.phase("busy", expected_steps=BLOCKS * num_steps):
        try:
            for busy_s in _agreed_blocks(prepared, num_steps):
                busy.append(busy_s)
                recorder.heartbeat.beat()
        except UnseenWorkError as error:
            busy, missing = [], str(error)
        rank = prepared.identity.rank
        recorder.write(
            DeviceBusy(rank=rank, steps_per_block=num_steps, busy_s_per_step=tuple(busy), missing=missing)
        )


def _agreed_blocks(prepared: Prepared, num_steps: int) -> Iterator[float]:
    """Yield the busy seconds a step of each block, where every rank can see its device's."""
    device, agree = prepared.device, prepared.ranks.agree
    accelerator = accelerator_of(device)
    why = reason_unseen(accelerator, device) or (None if num_steps else "to look again takes over a minute")
    if not agree(int(why is None)):
        raise UnseenWorkError(why or OF_OTHERS)
    during = partial(busy_during, accelerator=accelerator, device=device)
    yield from busy_blocks(prepared.step, num_steps=num_steps, busy_during=during, agree=agree)


class UnseenWorkError(Exception):
    """Nobody could say what the device did, and why."""


def reason_unseen(accelerator: Accelerator, device: torch.device) -> str | None:
    """Say why nobody can see what such a device does; None where it is worth a try."""
    activity = _activity(accelerator)
    if accelerator.busy_s(device) is not None or activity in torch.profiler.supported_activities():
        return None
    return f"torch's profiler sees no work of {accelerator.title} devices"


def _activity(accelerator: Accelerator) -> ProfilerActivity | None:
    return getattr(ProfilerActivity, accelerator.type.upper(), None)


def busy_during(run: Work, accelerator: Accelerator, device: torch.device) -> float:
    """Run, and return the seconds in which the device did anything; what overlaps counts once.

    Raises:
        UnseenWorkError: neither the device nor the profiler told.
    """
    accelerator.synchronize(device)
    before_s = accelerator.busy_s(device)
    if before_s is None:
        return covered(command.span for command in commands_during(run, accelerator, device))
    run()
    accelerator.synchronize(device)
    after_s = accelerator.busy_s(device)
    assert after_s is not None, "a device that counts goes on counting"
    return after_s - before_s


def commands_during(run: Work, accelerator: Accelerator, device: torch.device) -> list[DeviceCommand]:
    """Run, and return each kernel, copy and collective with its begin and end in seconds.

    Raises:
        UnseenWorkError: neither the device nor the profiler told.
    """
    accelerator.synchronize(device)
    commands = accelerator.commands_during(run, device)
    return _traced(run, accelerator, device) if commands is None else commands


def _traced(run: Work, accelerator: Accelerator, device: torch.device) -> list[DeviceCommand]:
    activity = _activity(accelerator)
    assert activity is not None, "look at reason_unseen first"
    with torch.profiler.profile(activities=[activity]) as profiler:
        run()
        accelerator.synchronize(device)
    commands = [
        DeviceCommand(
            name=str(event.name),
            begin_s=float(event.time_range.start) / US_PER_S,
            end_s=float(event.time_range.end) / US_PER_S,
        )
        for event in profiler.events() or ()
        if event.device_type != DeviceType.CPU and not getattr(event, "is_user_annotation", False)
    ]
    if not commands:
        raise UnseenWorkError("torch's profiler saw no work of the device")
    return commands

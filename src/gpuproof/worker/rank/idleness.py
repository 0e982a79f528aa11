"""Does the device wait for its host? Checked after a window in which its queue ran empty.

While the window runs, the clock counts the launches for which the device had already started the step by the
end of the launch (`EventClock.caught_up`). For a device that lags behind its host, this does not happen. The
count shows that the device waits, but not for how long: a device that idles 5 % of the time also catches up
with every launch. To determine how long it waits, a few blocks of steps run after the window, and the busy
time of a step is compared with the step time in the window. Events cannot reveal the busy time, since on an
idle device an event is reached as soon as it is recorded. So the kernels themselves are observed: with the
device's own counter if available, or else with torch's profiler
(https://docs.pytorch.org/docs/stable/profiler.html), which slows down the host but not the kernels.
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
"""Fraction of launches above which the device may be waiting. Devices that lag behind their host caught up in
0.2-0.5 % of launches by chance."""
BLOCKS = 6
BLOCK_S = 0.1
LEAST_STEPS = 2
LONGEST_S = 60.0
"""Time limit for examining steps; they are not examined if that would take longer."""
OF_OTHERS = "the device of another rank could not be examined"
US_PER_S = 1e6


def may_wait(caught_up: int | None, *, num_steps: int) -> bool:
    """Return whether the device may have waited; ignores the first launch, when the device is idle.

    >>> may_wait(1, num_steps=20), may_wait(2, num_steps=20), may_wait(2, num_steps=2000)
    (False, True, False)
    """
    return caught_up is not None and caught_up - 1 >= max(1.0, CAUGHT_UP * num_steps)


def block_steps(step_s: float) -> int:
    """Return the steps per block, enough to outweigh trace overhead; 0 if all would take too long.

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
    """Yield the device's busy seconds per step in each of `BLOCKS` blocks, equal on every rank.

    Raises:
        UnseenWorkError: the device cannot be observed here or on another rank; all ranks must run the same
            steps.
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
    """Measure how busy the device is during a step, over a few more steps, on all ranks at once."""
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
    """Yield the busy seconds per step of each block, if every rank can observe its device."""
    device, agree = prepared.device, prepared.ranks.agree
    accelerator = accelerator_of(device)
    why = reason_unseen(accelerator, device) or (
        None if num_steps else "repeating the measurement would take over a minute"
    )
    if not agree(int(why is None)):
        raise UnseenWorkError(why or OF_OTHERS)
    during = partial(busy_during, accelerator=accelerator, device=device)
    yield from busy_blocks(prepared.step, num_steps=num_steps, busy_during=during, agree=agree)


class UnseenWorkError(Exception):
    """The device's activity could not be observed; includes the reason."""


def reason_unseen(accelerator: Accelerator, device: torch.device) -> str | None:
    """Return why this device's activity cannot be observed; None if an attempt is worthwhile."""
    activity = _activity(accelerator)
    if accelerator.busy_s(device) is not None or activity in torch.profiler.supported_activities():
        return None
    return f"torch's profiler does not see the work of {accelerator.title} devices"


def _activity(accelerator: Accelerator) -> ProfilerActivity | None:
    return getattr(ProfilerActivity, accelerator.type.upper(), None)


def busy_during(run: Work, accelerator: Accelerator, device: torch.device) -> float:
    """Run the workload, and return the seconds the device was busy; overlapping activity counts once.

    Raises:
        UnseenWorkError: neither the device nor the profiler reported any activity.
    """
    accelerator.synchronize(device)
    before_s = accelerator.busy_s(device)
    if before_s is None:
        return covered(command.span for command in commands_during(run, accelerator, device))
    run()
    accelerator.synchronize(device)
    after_s = accelerator.busy_s(device)
    assert after_s is not None, "a device with a counter keeps counting"
    return after_s - before_s


def commands_during(run: Work, accelerator: Accelerator, device: torch.device) -> list[DeviceCommand]:
    """Run the workload, and return the start and end of each kernel, copy and collective in seconds.

    Raises:
        UnseenWorkError: neither the device nor the profiler reported any activity.
    """
    accelerator.synchronize(device)
    commands = accelerator.commands_during(run, device)
    return _traced(run, accelerator, device) if commands is None else commands


def _traced(run: Work, accelerator: Accelerator, device: torch.device) -> list[DeviceCommand]:
    activity = _activity(accelerator)
    assert activity is not None, "check reason_unseen first"
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
        raise UnseenWorkError("torch's profiler did not see any work on the device")
    return commands

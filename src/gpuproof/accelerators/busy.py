"""For how long did a device do anything while some work ran? What pairs of events cannot show.

On a device that is idle an event is reached as soon as it is recorded, so that the time between two of them
holds the kernels and every pause between them. So kernels themselves are looked at: by the device's own count
where it keeps one, else by torch's profiler (https://docs.pytorch.org/docs/stable/profiler.html), which slows
the host but not the kernels.
"""

from __future__ import annotations

import torch
from torch._C._autograd import DeviceType
from torch.profiler import ProfilerActivity

from gpuproof.accelerators.base import Accelerator, DeviceCommand, Work
from gpuproof.base.spans import covered

US_PER_S = 1e6


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

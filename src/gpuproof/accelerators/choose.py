"""Which type of device a case runs on, by its name; other packages' are imported on use."""

from __future__ import annotations

from functools import cache

import torch

from gpuproof.accelerators.base import Accelerator
from gpuproof.accelerators.cuda import CudaAccelerator
from gpuproof.accelerators.other_devices import MpsAccelerator, Processor, XpuAccelerator
from gpuproof.base.errors import EnvironmentUnfitError, UsageError
from gpuproof.base.registry import ACCELERATORS, find_owner, load, names

PROCESSOR = Processor()
IN_ORDER: tuple[Accelerator, ...] = (CudaAccelerator(), XpuAccelerator(), MpsAccelerator())
"""What `auto` looks for. Others are named by the user: none of them is imported to find out."""
OWN = {accelerator.type: accelerator for accelerator in (*IN_ORDER, PROCESSOR)}


@cache
def find_accelerator(name: str) -> Accelerator:
    """Return the type of device of this name.

    Raises:
        EnvironmentUnfitError: no package here has it.
        UsageError: it cannot be loaded.
    """
    if name in OWN:
        return OWN[name]
    if name not in names(ACCELERATORS):
        raise EnvironmentUnfitError(
            f"no installed package provides the device type {name!r}",
            place="distributed.device",
            next_step=f"Install the package that registers it ({ACCELERATORS}) where the worker runs",
        )
    accelerator: Accelerator = load(ACCELERATORS, name)()
    if accelerator.type != name:
        raise UsageError(
            f"{find_owner(ACCELERATORS, name)} registers {name!r}, but torch calls it {accelerator.type!r}",
            next_step="Register it under the name of the device",
        )
    return accelerator


def accelerator_of(device: torch.device) -> Accelerator:
    """Return the type of a device."""
    return find_accelerator(device.type)


def free_bytes_of(device: torch.device) -> int | None:
    """Return the memory that a device could still give, of a processor its host's; None where nobody says."""
    room = accelerator_of(device).free_and_total_bytes(device)
    if room is not None or device.type != PROCESSOR.type:
        return None if room is None else room[0]
    try:
        with open("/proc/meminfo", encoding="ascii") as lines:
            fields = dict(line.split(":", 1) for line in lines)
        return int(fields["MemAvailable"].split()[0]) * 1024
    except (OSError, KeyError, ValueError):
        return None


def choose_accelerator(choice: str) -> Accelerator:
    """Return the type that was asked for; `auto` is the first that is there, else the processor.

    Raises:
        EnvironmentUnfitError: it was asked for by name, and torch sees none, or no package here has it.
    """
    if choice == "auto":
        return next((candidate for candidate in IN_ORDER if candidate.count()), PROCESSOR)
    accelerator = find_accelerator(choice)
    if accelerator is not PROCESSOR and not accelerator.count():
        raise EnvironmentUnfitError(
            f"no {accelerator.title} device: torch {torch.__version__} sees none",
            next_step="`gpuproof doctor` says why. On the processor: set distributed.device=cpu, or give "
            "`gpuproof load` --device cpu",
        )
    return accelerator


def accelerators_here(choice: str = "auto") -> tuple[Accelerator, ...]:
    """Return the types of which torch sees devices; another package's only where it is the choice."""
    chosen = () if choice == "auto" or choice in OWN else (find_accelerator(choice),)
    return tuple(candidate for candidate in (*IN_ORDER, *chosen) if candidate.count())

"""`simgpu` as gpuproof asks for it."""

from __future__ import annotations

from types import ModuleType

import torch

from gpuproof.accelerators.base import Accelerator
from gpuproof_simgpu.backend import COLLECTIVES, TYPE, activate


class SimAccelerator(Accelerator):
    """The simulated devices; made when they are asked for by name, and never by `auto`."""

    type = TYPE
    title = "simulated"
    simulated = True
    collectives = (COLLECTIVES,)

    def __init__(self) -> None:
        """Make the devices known to torch, which compiles them at first."""
        self._device: ModuleType = activate()

    def busy_s(self, device: torch.device) -> float:
        """Return for how long the device ran kernels or collectives until now, in seconds."""
        return float(self._device.busy_ns(device.index or 0, self._device.now_ns())) / 1e9

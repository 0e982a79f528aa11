"""`simgpu` as gpuproof asks for it."""

from __future__ import annotations

from collections.abc import Mapping
from types import ModuleType

import torch

from gpuproof.accelerators.base import Accelerator, DeviceCommand, Work
from gpuproof_simgpu.backend import COLLECTIVES, TYPE, activate
from gpuproof_simgpu.device_module import declared_devices


class SimAccelerator(Accelerator):
    """The simulated devices; made when they are asked for by name, and never by `auto`."""

    type = TYPE
    title = "simulated"
    simulated = True
    min_window_s = 0.0  # its readings are there at any moment
    collectives = (COLLECTIVES,)

    def __init__(self) -> None:
        """Make the devices known to torch, which compiles them at first."""
        self._device: ModuleType = activate()

    @property
    def declared_rates(self) -> Mapping[str, float]:
        """What each device does by its declaration."""
        return declared_devices().rates

    def busy_s(self, device: torch.device) -> float:
        """Return for how long the device ran kernels or collectives until now, in seconds."""
        return float(self._device.busy_ns(device.index or 0, self._device.now_ns())) / 1e9

    def commands_during(self, run: Work, device: torch.device) -> list[DeviceCommand]:
        """Run, wait, and return what lies on the device's timeline; a collective runs while it waits."""
        index = device.index or 0
        self.synchronize(device)
        self._device.watch(index)
        run()
        self.synchronize(device)
        return [
            DeviceCommand(
                name=COLLECTIVES if name == "collective" else name, begin_s=begin_ns / 1e9, end_s=end_ns / 1e9
            )
            for name, begin_ns, end_ns in self._device.take_watched(index)
        ]

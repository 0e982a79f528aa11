"""Make `simgpu` available through gpuproof's accelerator interface."""

from __future__ import annotations

from collections.abc import Mapping
from types import ModuleType

import torch

from gpuproof.accelerators.base import Accelerator, DeviceCommand, Work
from gpuproof_simgpu.backend import COLLECTIVES, TYPE, activate
from gpuproof_simgpu.device_module import declared_devices


class SimAccelerator(Accelerator):
    """The simulated devices: created only if requested by name, never by `auto`."""

    type = TYPE
    title = "simulated"
    simulated = True
    min_window_s = 0.0  # its readings are available at any time
    collectives = (COLLECTIVES,)

    def __init__(self) -> None:
        """Register the devices with torch, compiling them on first use."""
        self._device: ModuleType = activate()

    @property
    def declared_rates(self) -> Mapping[str, float]:
        """Declared rates of each device."""
        return declared_devices().rates

    def busy_s(self, device: torch.device) -> float:
        """Return how long the device has run kernels or collectives so far, in seconds."""
        return float(self._device.busy_ns(device.index or 0, self._device.now_ns())) / 1e9

    def commands_during(self, run: Work, device: torch.device) -> list[DeviceCommand]:
        """Run the work, wait for it, and return its timeline entries; a collective runs during the wait."""
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

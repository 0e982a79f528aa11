"""The torch half of the faulty workload."""

from __future__ import annotations

import ctypes
import os
import time
from pathlib import Path
from typing import TYPE_CHECKING

import torch
from torch import nn

from gpuproof.workloads.info.base import InputShape

if TYPE_CHECKING:
    from fakes.faulty.faulty_workloads import FaultyOptions

FOR_EVER_S = 3600
LOOK_S = 0.02


def build(options: FaultyOptions, shape: InputShape) -> nn.Module:
    """Build it."""
    return FaultyModel(options, shape)


class FaultyModel(nn.Module):
    """One linear layer, and the fault."""

    def __init__(self, options: FaultyOptions, shape: InputShape) -> None:
        super().__init__()
        self.layer = nn.Linear(shape.shape[0], shape.num_targets)
        self.options = options
        self.steps_done = 0

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        """Take a step, or go wrong."""
        if 0 < self.options.holds < inputs.shape[0]:
            raise torch.OutOfMemoryError(f"{inputs.shape[0]} samples, planted room for {self.options.holds}")
        time.sleep(self.options.step_s)
        self._wait_for_leave()
        if self.options.fault != "none" and self._is_due():
            self._go_wrong()
        self.steps_done += 1
        result: torch.Tensor = self.layer(inputs)
        return result

    def _wait_for_leave(self) -> None:
        leave = self.options.until_file
        if leave and self._is_here() and self.steps_done >= self.options.at_step:
            while not Path(leave).exists():
                time.sleep(LOOK_S)

    def _is_here(self) -> bool:
        return int(os.environ.get("RANK", "0")) == self.options.on_rank

    def _is_due(self) -> bool:
        here = self._is_here()
        marker = self.options.unless_file
        return here and self.steps_done == self.options.at_step and not (marker and Path(marker).exists())

    def _go_wrong(self) -> None:
        if self.options.unless_file:
            Path(self.options.unless_file).touch()
        if self.options.fault == "raise":
            raise ValueError(f"the model broke in step {self.steps_done}")
        if self.options.fault == "nan":
            with torch.no_grad():
                self.layer.bias.fill_(torch.nan)
            return
        if self.options.fault == "sleep":
            time.sleep(FOR_EVER_S)
        ctypes.PyDLL(None).sleep(FOR_EVER_S)  # a PyDLL keeps the interpreter's lock, as native code may

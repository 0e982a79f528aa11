"""Precisions: what `fp32`, `amp` and `bf16` mean, and whether this device can do them.

fp32 is IEEE single precision all through: TF32, which torch allows in convolutions by default, is off.
amp is autocast to fp16 with a gradient scaler; bf16 is autocast to bfloat16, which needs none.
"""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Literal

import torch

from gpuproof.errors import EnvironmentUnfitError
from gpuproof.records.case import Precision

AUTOCAST_TYPES = {"amp": torch.float16, "bf16": torch.bfloat16}


@dataclass(frozen=True, slots=True, kw_only=True)
class PrecisionPolicy:
    """How steps compute."""

    name: Precision
    device_type: str
    cast_by: Literal["autocast", "shards"] = "autocast"
    """Sharded parameters are gathered in half precision already, and autocast would do it twice."""

    def autocast(self) -> AbstractContextManager[object]:
        """Return the context in which forward passes run; one may be entered for step after step."""
        dtype = AUTOCAST_TYPES.get(self.name) if self.cast_by == "autocast" else None
        return nullcontext() if dtype is None else torch.autocast(self.device_type, dtype=dtype)

    def gradient_scaler(self) -> torch.amp.GradScaler:
        """Return the scaler of amp; for other precisions one that passes everything through."""
        return torch.amp.GradScaler(self.device_type, enabled=self.name == "amp")


def apply_precision(name: Precision, device: torch.device) -> PrecisionPolicy:
    """Set the process's matrix precision and return the policy.

    Raises:
        EnvironmentUnfitError: the device cannot compute in this precision.
    """
    if device.type == "cuda":
        torch.backends.cuda.matmul.allow_tf32 = False
        torch.backends.cudnn.allow_tf32 = False
        if name == "bf16" and not torch.cuda.is_bf16_supported(including_emulation=False):
            raise EnvironmentUnfitError(
                f"{torch.cuda.get_device_name(device)} has no bfloat16 arithmetic",
                place="training.precision",
                next_step="Use amp or fp32",
            )
    return PrecisionPolicy(name=name, device_type=device.type)

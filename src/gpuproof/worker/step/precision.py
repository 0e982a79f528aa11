"""Precisions: what each name means, and whether this device and this torch can compute so.

fp32 is IEEE single precision all through: TF32, which torch allows in convolutions by default, is off; tf32
is fp32 with it on. amp is fp16, with a gradient scaler; bf16 is bfloat16, which needs none: by autocast over
weights in fp32, as those that learn have, and by the types of tensors alone where weights are stored in half
precision. fp8 is bf16 whose linear layers multiply in fp8 (`worker.step.fp8`).
"""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Literal

import torch

from gpuproof.accelerators.base import Arithmetic
from gpuproof.accelerators.choose import TF32_OVERRIDE, accelerator_of
from gpuproof.base.errors import EnvironmentUnfitError
from gpuproof.records.work.training import Precision

AUTOCAST_TYPES = {"amp": torch.float16, "bf16": torch.bfloat16, "fp8": torch.bfloat16}
TF32_CAPABILITY = (8, 0)
FP8_CAPABILITY = (8, 9)


@dataclass(frozen=True, slots=True, kw_only=True)
class PrecisionPolicy:
    """How steps compute."""

    name: Precision
    device_type: str
    cast_by: Literal["autocast", "shards", "storage"] = "autocast"
    """Parameters that are stored in half precision, or sharded and gathered in it, need no autocast."""

    def autocast(self) -> AbstractContextManager[object]:
        """Return the context in which forward passes run; one may be entered for step after step."""
        dtype = AUTOCAST_TYPES.get(self.name) if self.cast_by == "autocast" else None
        return nullcontext() if dtype is None else torch.autocast(self.device_type, dtype=dtype)


def refusal(name: Precision, arithmetic: Arithmetic) -> str | None:
    """Say why the device cannot compute in this precision; None where it can."""
    if name == "tf32":
        return _refuse_tf32(arithmetic)
    if name == "fp8":
        return _refuse_fp8(arithmetic)
    if name == "fp64" and not arithmetic.has_fp64:
        return f"{arithmetic.name} has no arithmetic of 8-byte numbers"
    if name == "bf16" and not arithmetic.has_bf16:
        return f"{arithmetic.name} has no bfloat16 arithmetic"
    if name == "fp32" and arithmetic.tf32_override not in (None, "0"):
        return f"{TF32_OVERRIDE}={arithmetic.tf32_override} makes NVIDIA's libraries use TF32 in fp32"
    return None


def _refuse_tf32(arithmetic: Arithmetic) -> str | None:
    if arithmetic.capability is None:
        return f"TF32 is arithmetic of NVIDIA's tensor cores, and {arithmetic.name} has none"
    if arithmetic.capability < TF32_CAPABILITY:
        return _too_old("TF32", arithmetic, TF32_CAPABILITY)
    if arithmetic.tf32_override == "0":
        return f"{TF32_OVERRIDE}=0 forbids TF32 to NVIDIA's libraries"
    return None


def _refuse_fp8(arithmetic: Arithmetic) -> str | None:
    if not arithmetic.has_scaled_products:
        return f"torch {torch.__version__} has no products of fp8 matrices (torch._scaled_mm)"
    if arithmetic.in_software:
        return None  # torch works it out in software: good for a test, and the setup record says so
    if arithmetic.capability is None:
        return f"fp8 is written for NVIDIA's formats (e4m3fn, e5m2), and {arithmetic.name} is no NVIDIA GPU"
    if arithmetic.capability < FP8_CAPABILITY:
        return _too_old("fp8", arithmetic, FP8_CAPABILITY)
    return None


def _too_old(what: str, arithmetic: Arithmetic, needed: tuple[int, int]) -> str:
    have = ".".join(map(str, arithmetic.capability or ()))
    return f"{what} needs compute capability {needed[0]}.{needed[1]}, and {arithmetic.name} has {have}"


def apply_precision(name: Precision, device: torch.device) -> PrecisionPolicy:
    """Set the process's matrix precision and return the policy.

    Raises:
        EnvironmentUnfitError: the device or this torch cannot compute in this precision.
    """
    accelerator = accelerator_of(device)
    reason = refusal(name, accelerator.arithmetic(device))
    if reason is not None:
        variable = TF32_OVERRIDE in reason
        raise EnvironmentUnfitError(
            reason,
            place="training.precision",
            next_step=f"Unset {TF32_OVERRIDE}"
            if variable
            else "Use bf16, amp or fp32, as the device has them",
        )
    accelerator.use_tf32(on=name == "tf32")
    return PrecisionPolicy(name=name, device_type=device.type)

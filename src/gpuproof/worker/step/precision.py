"""Precisions: the meaning of each name, and whether this device and torch version support it.

fp32 is IEEE single precision throughout: TF32, which torch allows in convolutions by default, is off. tf32 is
fp32 with TF32 on. amp is fp16, with a gradient scaler. bf16 is bfloat16, which needs no scaler. It uses
autocast over fp32 weights, as is usual in training, or only bfloat16 tensors if weights are stored in half
precision. fp8 is bf16 with linear layers computed in fp8 (`worker.step.fp8`).
"""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Literal

import torch

from gpuproof.accelerators.base import Arithmetic
from gpuproof.accelerators.choose import TF32_OVERRIDE, accelerator_of
from gpuproof.base.errors import EnvironmentUnfitError, UnsupportedError
from gpuproof.records.work.training import Precision

AUTOCAST_TYPES = {"amp": torch.float16, "bf16": torch.bfloat16, "fp8": torch.bfloat16}
TF32_CAPABILITY = (8, 0)
FP8_CAPABILITY = (8, 9)
USE_OTHERS = (
    "Use bf16, amp or fp32, whichever the device supports (training.precision, or "
    "'--validate.gemm_precisions=[bf16,fp32]' in a validation)"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class PrecisionPolicy:
    """The precision that steps use."""

    name: Precision
    device_type: str
    cast_by: Literal["autocast", "shards", "storage"] = "autocast"
    """How values are cast: no autocast is needed if parameters are stored in half precision, or sharded and
    gathered in half precision."""

    def autocast(self) -> AbstractContextManager[object]:
        """Return the context for forward passes; it can be re-entered in every step."""
        dtype = AUTOCAST_TYPES.get(self.name) if self.cast_by == "autocast" else None
        return nullcontext() if dtype is None else torch.autocast(self.device_type, dtype=dtype)


@dataclass(frozen=True, slots=True, kw_only=True)
class PrecisionRefusal:
    """Why a device does not support a precision."""

    reason: str
    next_step: str = USE_OTHERS
    is_of_hardware: bool = True
    """Whether the device itself does not support the precision; otherwise a setting, torch or gpuproof
    prevents its use."""


def refusal(name: Precision, arithmetic: Arithmetic) -> PrecisionRefusal | None:
    """Return why the device cannot compute in this precision; None if it can."""
    override = arithmetic.tf32_override
    if name == "tf32":
        return _refuse_tf32(arithmetic)
    if name == "fp8":
        return _refuse_fp8(arithmetic)
    if name == "fp64" and not arithmetic.has_fp64:
        return PrecisionRefusal(reason=f"{arithmetic.name} does not support 8-byte floating-point arithmetic")
    if name == "bf16" and not arithmetic.has_bf16:
        return PrecisionRefusal(reason=f"{arithmetic.name} does not support bfloat16 arithmetic")
    if name == "fp32" and override not in (None, "0"):
        return _of_variable(f"{TF32_OVERRIDE}={override} makes NVIDIA's libraries use TF32 in fp32")
    return None


def _refuse_tf32(arithmetic: Arithmetic) -> PrecisionRefusal | None:
    if arithmetic.capability is None:
        return PrecisionRefusal(reason=f"TF32 needs NVIDIA's tensor cores, and {arithmetic.name} has none")
    if arithmetic.capability < TF32_CAPABILITY:
        return _too_old("TF32", arithmetic, TF32_CAPABILITY)
    if arithmetic.tf32_override == "0":
        return _of_variable(f"{TF32_OVERRIDE}=0 disables TF32 in NVIDIA's libraries")
    return None


def _of_variable(reason: str) -> PrecisionRefusal:
    return PrecisionRefusal(reason=reason, next_step=f"Unset {TF32_OVERRIDE}", is_of_hardware=False)


def _refuse_fp8(arithmetic: Arithmetic) -> PrecisionRefusal | None:
    if not arithmetic.has_scaled_products:
        reason = f"torch {torch.__version__} has no fp8 matrix products (torch._scaled_mm)"
        return PrecisionRefusal(reason=reason, is_of_hardware=False)
    if arithmetic.in_software:
        return None  # torch computes this in software, which is fine for a test; the setup record says so
    if arithmetic.capability is None:
        reason = (
            f"fp8 is implemented for NVIDIA's formats (e4m3fn, e5m2), and {arithmetic.name} "
            "is not an NVIDIA GPU"
        )
        return PrecisionRefusal(reason=reason, is_of_hardware=False)
    if arithmetic.capability < FP8_CAPABILITY:
        return _too_old("fp8", arithmetic, FP8_CAPABILITY)
    return None


def _too_old(what: str, arithmetic: Arithmetic, needed: tuple[int, int]) -> PrecisionRefusal:
    have, least = (".".join(map(str, version or ())) for version in (arithmetic.capability, needed))
    return PrecisionRefusal(reason=f"{what} needs compute capability {least}; {arithmetic.name} has {have}")


def apply_precision(name: Precision, device: torch.device) -> PrecisionPolicy:
    """Set the matmul precision of this process, and return the resulting policy.

    Raises:
        UnsupportedError: the device does not support computation in this precision.
        EnvironmentUnfitError: a setting, or this torch version, prevents its use.
    """
    accelerator = accelerator_of(device)
    refused = refusal(name, accelerator.arithmetic(device))
    if refused is not None:
        error = UnsupportedError if refused.is_of_hardware else EnvironmentUnfitError
        raise error(refused.reason, place="training.precision", next_step=refused.next_step)
    accelerator.use_tf32(on=name == "tf32")
    return PrecisionPolicy(name=name, device_type=device.type)

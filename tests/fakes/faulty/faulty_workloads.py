"""A workload that goes wrong as it is told, registered as anyone's package would: torch-free half."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from gpuproof.workloads.info.base import InputShape, Work, WorkloadInfo

FEATURES = 8


@dataclass(frozen=True, slots=True, kw_only=True)
class FaultyOptions:
    """What goes wrong, when, and where; and how long a step takes before it does."""

    fault: Literal["none", "raise", "sleep", "hold_lock", "nan"] = "none"
    at_step: int = 3
    on_rank: int = 0
    unless_file: str = ""
    """The fault makes this file as it strikes, and does not strike where the file is."""
    until_file: str = ""
    """Rank `on_rank` waits in step `at_step` until this file is there."""
    step_s: float = 0.0
    holds: int = 0
    """Samples that the planted memory holds; a larger batch runs out of it. 0 plants none."""


def _input_shape(_options: FaultyOptions, _image_size: int | None, _num_classes: int | None) -> InputShape:
    return InputShape(kind="features", shape=(FEATURES,), num_targets=1)


def _work(_options: FaultyOptions, _shape: InputShape) -> Work:
    return Work(num_parameters=FEATURES + 1, forward_flops=2 * FEATURES, training_flops=4 * FEATURES)


FAULTY = WorkloadInfo(
    name="faulty",
    summary="one linear layer that goes wrong as it is told",
    item="samples",
    options_type=FaultyOptions,
    input_shape=_input_shape,
    work=_work,
    implementation="faulty_model:build",
    loss="mean_squared_error",
)

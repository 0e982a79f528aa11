"""What trains: torch with a process a device, or TensorFlow with one process on all of them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Framework = Literal["torch", "tensorflow"]
Reduction = Literal["auto", "nccl", "hierarchical_copy", "reduction_to_one_device"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Replicas:
    """What really ran: copies of a model on several devices, trained by one process."""

    framework: str
    """With its version."""
    num_devices: int
    reduction: str | None
    """How their gradients were summed; None where there is one."""

"""Deterministic mode: the same bits from the same case, or a failure that names the operation.

Two halves, since cuBLAS reads its workspace setting once, when CUDA starts: the variable is set before
torch is imported, the switches after.
"""

from __future__ import annotations

from collections.abc import MutableMapping
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from gpuproof.accelerators.base import Accelerator

CUBLAS_WORKSPACE = "CUBLAS_WORKSPACE_CONFIG"
DETERMINISTIC_WORKSPACES = (":4096:8", ":16:8")
"""Under these cuBLAS is deterministic; https://docs.nvidia.com/cuda/cublas/#results-reproducibility"""


def set_deterministic_environment(environment: MutableMapping[str, str]) -> None:
    """Give cuBLAS a deterministic workspace, unless the user chose one of the two already."""
    if environment.get(CUBLAS_WORKSPACE) not in DETERMINISTIC_WORKSPACES:
        environment[CUBLAS_WORKSPACE] = DETERMINISTIC_WORKSPACES[0]


def choose_algorithms(accelerator: Accelerator, *, deterministic: bool, cudnn_benchmark: bool) -> None:
    """Switch torch to deterministic algorithms only, or let cuDNN time its algorithms as asked.

    Timing algorithms may choose another one in each process, so that deterministic mode does without it.
    """
    import torch

    accelerator.choose_convolutions(deterministic=deterministic, timed=cudnn_benchmark and not deterministic)
    if deterministic != deterministic_now():  # the switch imports torch's compiler: as long as torch itself
        torch.use_deterministic_algorithms(deterministic)


def deterministic_now() -> bool:
    """Read back whether torch refuses operations that are not deterministic."""
    import torch

    return torch.are_deterministic_algorithms_enabled()

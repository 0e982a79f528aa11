"""Deterministic mode: the same case yields the same bits, or an error with the operation's name.

There are two parts, since cuBLAS reads its workspace setting once, when CUDA starts: the variable is set
before torch is imported, and the switches are set after.
"""

from __future__ import annotations

from collections.abc import MutableMapping
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from gpuproof.accelerators.base import Accelerator

CUBLAS_WORKSPACE = "CUBLAS_WORKSPACE_CONFIG"
DETERMINISTIC_WORKSPACES = (":4096:8", ":16:8")
"""Settings with which cuBLAS is deterministic; see
https://docs.nvidia.com/cuda/cublas/#results-reproducibility"""


def set_deterministic_environment(environment: MutableMapping[str, str]) -> None:
    """Set a deterministic workspace for cuBLAS, unless the user has already chosen one of the two."""
    if environment.get(CUBLAS_WORKSPACE) not in DETERMINISTIC_WORKSPACES:
        environment[CUBLAS_WORKSPACE] = DETERMINISTIC_WORKSPACES[0]


def choose_algorithms(accelerator: Accelerator, *, deterministic: bool, cudnn_benchmark: bool) -> None:
    """Make torch use only deterministic algorithms, or let cuDNN benchmark algorithms if requested.

    Benchmarking may choose a different algorithm in each process, so deterministic mode turns it off.
    """
    import torch

    accelerator.choose_convolutions(deterministic=deterministic, timed=cudnn_benchmark and not deterministic)
    # the switch imports torch's compiler, which takes as long as importing torch itself
    if deterministic != deterministic_now():
        torch.use_deterministic_algorithms(deterministic)


def deterministic_now() -> bool:
    """Return whether torch now rejects non-deterministic operations."""
    import torch

    return torch.are_deterministic_algorithms_enabled()

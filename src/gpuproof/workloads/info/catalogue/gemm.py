"""A plain matmul, C = A·B, as a workload that runs the matrix engines at full speed.

A sample is one matmul, so `data.batch_size` is the number of matmuls per step.
"""

from __future__ import annotations

from dataclasses import dataclass

from gpuproof.records.work.device_sizes import AUTO, Auto, DeviceSizes
from gpuproof.workloads.info.base import InputShape, Work, WorkloadInfo, require_positive


@dataclass(frozen=True, slots=True, kw_only=True)
class GemmOptions:
    """Dimensions: A is m × k, B is k × n."""

    m: int | Auto = 4096
    n: int | Auto = 4096
    k: int | Auto = 4096
    """`auto` chooses sizes that fill the device (records/sizes.csv)."""
    cold_cache: bool = False
    """Use different operands for each matmul, cycling through more than fits into any cache."""
    check: bool = True
    """Compare the result of the last matmul with a float64 result computed on the CPU."""

    def __post_init__(self) -> None:
        require_positive(self)


def gemm_flops(m: int, n: int, k: int) -> int:
    """Return the number of operations in one matmul; a multiply-add counts as two.

    >>> gemm_flops(2, 3, 4)
    48
    """
    return 2 * m * n * k


def gemm_bytes(m: int, n: int, k: int, *, element_bytes: int) -> int:
    """Return the minimum number of bytes that one matmul moves: A and B read once, C written once.

    >>> gemm_bytes(2, 3, 4, element_bytes=2)
    52
    """
    return element_bytes * (m * k + k * n + m * n)


def _input_shape(_options: GemmOptions, _image_size: int | None, _num_classes: int | None) -> InputShape:
    return InputShape(kind="features", shape=(1,), num_targets=1)


def _fitted(options: GemmOptions, sizes: DeviceSizes) -> dict[str, int]:
    edges = {"m": options.m, "n": options.n, "k": options.k}
    return {name: sizes.gemm_edge for name, edge in edges.items() if edge == AUTO}


def _work(options: GemmOptions, _shape: InputShape) -> Work | None:
    m, n, k = options.m, options.n, options.k
    if isinstance(m, str) or isinstance(n, str) or isinstance(k, str):
        return None  # determined on the device
    flops = gemm_flops(m, n, k)
    return Work(num_parameters=0, forward_flops=flops, training_flops=flops)


GEMM = WorkloadInfo(
    name="gemm",
    summary="plain matrix products of normally distributed random numbers, in the run's precision",
    item="products",
    options_type=GemmOptions,
    input_shape=_input_shape,
    work=_work,
    fitted=_fitted,
    implementation="gpuproof.workloads.torch.gemm:build_gemm",
    loss="mean_squared_error",
    kinds=("inference",),
)

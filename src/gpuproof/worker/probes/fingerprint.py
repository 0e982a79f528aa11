"""The same computation from the same seed; any difference in the digest of all bits is an error.

Operands, weights and samples are drawn on the CPU, so that every device starts from the same bits. A device
cannot be its own reference, since it may return the same wrong result in every round. So digests are recorded
here, and compared across all devices of all hosts when the run is summarised. In addition, one matmul of each
kind is compared with the host's own result, the only reference for a single device. Matrices are as large as
a device can process within the time limit. Sizes are tried from small to large, and the ranks of a launch
agree on the smallest result.
"""

from __future__ import annotations

import ctypes
import hashlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from time import monotonic

import torch
from torch.nn import functional

from gpuproof.accelerators.choose import accelerator_of
from gpuproof.records.work.probe import FingerprintSpec, NumberFormat, ProbeReading
from gpuproof.records.work.training import Precision
from gpuproof.worker.rank.bench import Bench
from gpuproof.worker.step.determinism import choose_algorithms
from gpuproof.worker.step.precision import refusal
from gpuproof.worker.step.product_check import compare_product

TORCH_TYPES: Mapping[NumberFormat, torch.dtype] = {
    "fp64": torch.float64,
    "fp32": torch.float32,
    "tf32": torch.float32,
    "fp16": torch.float16,
    "bf16": torch.bfloat16,
}
PRECISIONS: Mapping[NumberFormat, Precision] = {
    "fp64": "fp64",
    "fp32": "fp32",
    "tf32": "tf32",
    "fp16": "amp",
    "bf16": "bf16",
}
SAMPLES = 256
"""Number of rows fed through the small model."""
SMALLEST_EDGE = 256
"""Width that every device uses, so that it is the same across a fleet."""


def take_fingerprints(spec: FingerprintSpec, bench: Bench) -> Iterator[ProbeReading]:
    """Yield a digest per round, number format and workload; report unavailable formats."""
    accelerator = accelerator_of(bench.device)
    choose_algorithms(accelerator, deterministic=True, cudnn_benchmark=False)
    arithmetic = accelerator.arithmetic(bench.device)
    stack, drawn = _stack(bench), cache(lambda edge: _Drawn(spec.seed, edge, bench.device))
    works: list[tuple[NumberFormat, int]] = []
    for dtype in spec.dtypes:
        refused = refusal(PRECISIONS[dtype], arithmetic)
        if refused is None:
            works += [(dtype, edge) for edge in _edges(spec, dtype, drawn, bench)]
        else:
            yield _value(bench, {"dtype": dtype}, missing=refused.reason)
    for number in range(spec.rounds):
        _heat(spec.heat_s, drawn(max((edge for _, edge in works), default=spec.edge)), bench)
        for dtype, edge in works:
            accelerator.use_tf32(on=dtype == "tf32")
            for name, results in drawn(edge).works(TORCH_TYPES[dtype]):
                bench.count_one()
                done = {"round": number, "workload": name, "dtype": dtype, "edge": edge, "stack": stack}
                yield _value(bench, {"digest": digest_of(results), **done})
                if name == "gemm" and number == spec.rounds - 1:
                    yield _compared_with_host(drawn(edge), results[0], dtype, bench)


def _compared_with_host(
    drawn: _Drawn, product: torch.Tensor, dtype: NumberFormat, bench: Bench
) -> ProbeReading:
    """Return how many elements of the last matmul's result differ from the host's own result."""
    left, right = (side.to(TORCH_TYPES[dtype]) for side in (drawn.left, drawn.right))
    checked = compare_product(left, right, product, PRECISIONS[dtype], rank=bench.identity.rank)
    bench.beat()
    return replace(checked, labels={**checked.labels, "dtype": dtype, "edge": product.shape[0]})


def _edges(
    spec: FingerprintSpec, dtype: NumberFormat, drawn: Callable[[int], _Drawn], bench: Bench
) -> Sequence[int]:
    """Return the widths: the largest within the time limit, and the one that every device uses."""
    accelerator_of(bench.device).use_tf32(on=dtype == "tf32")

    def attempt(edge: int) -> None:
        for _, results in drawn(edge).works(TORCH_TYPES[dtype]):
            digest_of(results)

    limit_s = None if spec.time_limit_s is None else spec.time_limit_s / spec.rounds
    largest = fitting_edge(spec.edge, limit_s, attempt, bench)
    return sorted({min(SMALLEST_EDGE, largest), largest})


def _value(bench: Bench, labels: Mapping[str, object], *, missing: str | None = None) -> ProbeReading:
    return ProbeReading(
        rank=bench.identity.rank,
        quantity="fingerprint",
        unit="1",
        labels=dict(labels),
        missing=missing,
        is_inapplicable=missing is not None,
    )


def _stack(bench: Bench) -> str:
    """Name the software that determines which kernels run; the same software yields identical bits."""
    versions = accelerator_of(bench.device).library_versions()
    named = [f"{name} {version}" for name, version in sorted(versions.items()) if version is not None]
    toolkit = torch.version.cuda or torch.version.hip
    return ", ".join([f"torch {torch.__version__}", *([f"toolkit {toolkit}"] if toolkit else []), *named])


@dataclass(slots=True)
class _Drawn:
    """Operands on the device, from one seed: created on the CPU in fp32, rounded only when used."""

    left: torch.Tensor
    right: torch.Tensor
    samples: torch.Tensor

    def __init__(self, seed: int, edge: int, device: torch.device) -> None:
        source = torch.Generator().manual_seed(seed)
        self.left, self.right = (torch.randn(edge, edge, generator=source).to(device) for _ in range(2))
        self.samples = torch.randn(SAMPLES, edge, generator=source).to(device)

    def works(self, dtype: torch.dtype) -> Iterator[tuple[str, tuple[torch.Tensor, ...]]]:
        """Yield the name and the results of each workload."""
        yield "gemm", (self.product(dtype),)
        yield "model", self.model(dtype)

    def product(self, dtype: torch.dtype) -> torch.Tensor:
        """Multiply the matrices."""
        return self.left.to(dtype) @ self.right.to(dtype)

    def model(self, dtype: torch.dtype) -> tuple[torch.Tensor, ...]:
        """Run forward and backward through two layers; return their output and all gradients."""
        scale = self.left.shape[0] ** -0.5
        weights = [
            (matrix * scale).to(dtype).requires_grad_(requires_grad=True)
            for matrix in (self.left, self.right)
        ]
        hidden = functional.gelu(functional.linear(self.samples.to(dtype), weights[0]))
        output = functional.linear(functional.layer_norm(hidden, hidden.shape[1:]), weights[1])
        gradients = torch.autograd.grad(output.float().square().mean(), weights)
        return (output.detach(), *gradients)


def _heat(seconds: float, drawn: _Drawn, bench: Bench) -> None:
    """Run matmuls continuously for this long."""
    until_s = monotonic() + seconds
    while monotonic() < until_s:
        drawn.product(torch.float32)
        bench.clock.synchronize()
        bench.beat()


def digest_of(tensors: tuple[torch.Tensor, ...]) -> str:
    """Return a digest of every bit in all tensors, in order, computed on the host.

    >>> digest_of((torch.zeros(2),)) == digest_of((torch.tensor([0.0, -0.0]),))
    False
    """
    digest = hashlib.blake2b(digest_size=8)
    for tensor in tensors:
        here = tensor.cpu().contiguous()
        digest.update((ctypes.c_char * here.nbytes).from_address(here.data_ptr()))
    return digest.hexdigest()


def fitting_edge(edge: int, limit_s: float | None, attempt: Callable[[int], object], bench: Bench) -> int:
    """Return the largest width up to `edge` at which one attempt fits in `limit_s` on every rank.

    A run at twice the width is expected to take eight times as long as a repeat with kernels already loaded.
    """
    tried = min(SMALLEST_EDGE, edge)
    while limit_s is not None and tried < edge:
        larger = min(2 * tried, edge)
        attempt(tried)
        bench.clock.synchronize()
        begin_s = monotonic()
        attempt(tried)
        bench.clock.synchronize()
        bench.beat()
        if (monotonic() - begin_s) * (larger / tried) ** 3 > limit_s:
            return bench.ranks.agree(tried)
        tried = larger
    return bench.ranks.agree(edge)

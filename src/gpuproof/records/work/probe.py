"""Probes: what is asked for of one property of devices, links or a disk. None of them runs a model."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

ProbeName = Literal["link", "pattern", "fingerprint", "overlap", "storage", "nccl_tests"]
HostMemory = Literal["pinned", "pageable"]
WordPattern = Literal["walking_ones", "walking_zeros", "address", "random", "inverted"]
NumberFormat = Literal["fp64", "fp32", "tf32", "fp16", "bf16"]


@dataclass(frozen=True, slots=True, kw_only=True)
class LinkSpec:
    """Copies between the host and each device, and between each two devices."""

    kind: Literal["link"] = "link"
    sizes_bytes: tuple[int, ...]
    host_memory: tuple[HostMemory, ...]
    between_devices: bool
    both_ways: bool
    """Also both directions of a link at once."""
    iterations: int
    warmup_iterations: int


@dataclass(frozen=True, slots=True, kw_only=True)
class PatternSpec:
    """Words written to a share of the free memory, and read back."""

    kind: Literal["pattern"] = "pattern"
    memory_share: float
    patterns: tuple[WordPattern, ...]
    passes: int
    seed: int
    time_limit_s: float | None = None
    """For all passes: less memory is tried where it does not fit."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FingerprintSpec:
    """The same work from the same seed on every device, whose results must be the same in every bit."""

    kind: Literal["fingerprint"] = "fingerprint"
    dtypes: tuple[NumberFormat, ...]
    edge: int
    """Of the square matrices, and the width of the small model."""
    rounds: int
    heat_s: float
    """Seconds of work without a pause before each round."""
    seed: int
    time_limit_s: float | None = None
    """For the rounds in one number format: matrices are smaller where it does not fit."""


@dataclass(frozen=True, slots=True, kw_only=True)
class OverlapSpec:
    """Products and an all-reduce: each alone, and both together."""

    kind: Literal["overlap"] = "overlap"
    edge: int
    products: int
    message_bytes: int
    iterations: int
    warmup_iterations: int
    time_limit_s: float | None = None
    """For all products: matrices are smaller where it does not fit."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StorageSpec:
    """A file written and read in a folder that the user names."""

    kind: Literal["storage"] = "storage"
    folder: str
    file_bytes: int
    block_bytes: int
    """Of sequential access."""
    random_block_bytes: int
    random_reads: int
    time_limit_s: float
    """For each of the three parts."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NcclTestsSpec:
    """NVIDIA's own program, where it is installed."""

    kind: Literal["nccl_tests"] = "nccl_tests"
    program: str
    min_bytes: int
    max_bytes: int
    factor: int
    iterations: int
    warmup_iterations: int
    time_limit_s: float


ProbeSpec = LinkSpec | PatternSpec | FingerprintSpec | OverlapSpec | StorageSpec | NcclTestsSpec

"""Probes: requests for one property of devices, links or a disk, and their findings.

No probe runs a model. All produce the same record: a metric, its subject, and one of these: the time and work
of each repeat, a value, or the reason why there is neither.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Annotated, Any, Literal

from gpuproof.records.journal import record_kind
from gpuproof.records.run import Device
from gpuproof.records.work.options import (
    SOME,
    Bytes,
    Factor,
    Iterations,
    Limits,
    Options,
    Seconds,
    Seed,
    Text,
    WarmUp,
    growing_sizes,
)

ProbeName = Literal["link", "pattern", "fingerprint", "overlap", "storage", "nccl_tests", "nccl_ras"]
HostMemory = Literal["pinned", "pageable"]
WordPattern = Literal["walking_ones", "walking_zeros", "address", "random", "inverted"]
NumberFormat = Literal["fp64", "fp32", "tf32", "fp16", "bf16"]
Edge = Annotated[int, Limits(ge=16, le=32_768)]
LAUNCH_LATENCY, CACHE_BANDWIDTH = "kernel launch latency", "cache bandwidth"
HOST_BANDWIDTH = "host memory bandwidth"
RAS_FAULTS = "NCCL RAS faults"
"""Number of ranks that NCCL reports as missing or as having an error."""
COSTS = (LAUNCH_LATENCY, CACHE_BANDWIDTH)
"""Measures taken after the memory passes; not used for any verdict."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LinkSpec(Options):
    """Copies between the host and each device, and between each pair of devices."""

    min_bytes: Bytes = 2**20
    """Size of the smallest copy."""
    max_bytes: Bytes = 2**28
    """Size of the largest copy."""
    factor: Factor = 16
    """Factor from one size to the next."""
    host_memory: Annotated[tuple[HostMemory, ...], SOME] = ("pinned", "pageable")
    """The kinds of host memory to use."""
    between_devices: bool = True
    """Also copy between each pair of devices, in both directions."""
    both_ways: bool = True
    """Also copy in both directions of a link at the same time; for copies to and from the host only with
    pinned memory."""
    iterations: Iterations = 10
    """Timed copies per size."""
    warmup_iterations: WarmUp = 2
    """Untimed warm-up copies before the timed ones."""

    @property
    def sizes_bytes(self) -> tuple[int, ...]:
        """Copy sizes: the minimum, repeatedly multiplied by the factor, up to the maximum."""
        return growing_sizes(self.min_bytes, self.max_bytes, self.factor)


@dataclass(frozen=True, slots=True, kw_only=True)
class PatternSpec(Options):
    """Words written to a fraction of each device's free memory, and read back."""

    memory_share: Annotated[float, Limits(gt=0, le=0.95)] = 0.8
    """Fraction of the initially free memory to test."""
    patterns: Annotated[tuple[WordPattern, ...], SOME] = (
        "walking_ones",
        "walking_zeros",
        "address",
        "random",
        "inverted",
    )
    """The patterns, in order; inverted is random with every bit flipped."""
    passes: Annotated[int, Limits(ge=1, le=10_000)] = 1
    """Number of passes over all patterns."""
    seed: Seed = 0
    """Seed for the random words."""
    time_limit_s: Seconds | None = None
    """Approximate time for all passes; if it is not enough, less memory is tested, and this is reported."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FingerprintSpec(Options):
    """The same workload with the same seed on every device: results must be bit-identical."""

    dtypes: Annotated[tuple[NumberFormat, ...], SOME] = ("fp32", "bf16", "fp16")
    """Number formats to use; a format that a device does not support is skipped there, with the reason."""
    edge: Edge = 2048
    """Size of the square matrices, and width of the small model."""
    rounds: Annotated[int, Limits(ge=1, le=10_000)] = 5
    """Number of times that the workload is repeated and compared."""
    heat_s: Annotated[float, Limits(ge=0, le=86_400)] = 5.0
    """Seconds of continuous matmuls before each round, to warm up the devices."""
    seed: Seed = 0
    """Seed for operands, weights and samples."""
    time_limit_s: Seconds | None = 60.0
    """Approximate time for all rounds in one number format, excluding the warm-up; if it is not enough, the
    matrices are smaller: 256 or a doubling of it. Matrices of size 256 (of size edge if that is smaller) are
    always compared, so that all devices have one size in common."""


@dataclass(frozen=True, slots=True, kw_only=True)
class OverlapSpec(Options):
    """Matmuls and an all-reduce: each alone, and both concurrently."""

    edge: Edge = 4096
    """Size of the square matrices that are multiplied."""
    products: Annotated[int, Limits(ge=1, le=10_000)] = 8
    """Number of matmuls per iteration."""
    message_bytes: Bytes = 2**26
    """Number of bytes that all ranks sum per iteration."""
    iterations: Iterations = 20
    """Timed iterations of each case: matmuls alone, all-reduce alone, and both concurrently."""
    warmup_iterations: WarmUp = 3
    """Untimed warm-up iterations before the timed ones."""
    time_limit_s: Seconds | None = 60.0
    """Approximate time for the matmuls of all iterations; if it is not enough, the matrices are smaller: 256
    or a doubling of it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StorageSpec(Options):
    """A file that is written, read sequentially and read randomly, in a folder of your choice."""

    folder: Text | None = None
    """The folder in which the file is created and then removed; nothing is written anywhere else."""
    file_bytes: Bytes = 2**30
    """Size of the file in bytes; less is written if the time limit is reached first."""
    block_bytes: Bytes = 2**23
    """Bytes per write and per sequential read; a multiple of 4096."""
    random_block_bytes: Bytes = 4096
    """Bytes per random read; a multiple of 4096."""
    random_reads: Annotated[int, Limits(ge=1, le=10**7)] = 2000
    """Maximum number of random reads."""
    time_limit_s: Seconds = 20.0
    """Time limit for each phase: writing, sequential reading and random reading."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NcclTestsSpec(Options):
    """NVIDIA's nccl-tests, if installed."""

    program: Annotated[str, Limits(pattern=r"^[a-z_]+_perf$", max_length=64, form="nccl-test")] = (
        "all_reduce_perf"
    )
    """The nccl-tests program to run, looked up on PATH."""
    min_bytes: Bytes = 8
    """The smallest size (-b)."""
    max_bytes: Bytes = 2**27
    """The largest size (-e)."""
    factor: Factor = 4
    """Factor from one size to the next (-f)."""
    iterations: Iterations = 20
    """Timed iterations per size (-n)."""
    warmup_iterations: WarmUp = 5
    """Untimed warm-up iterations before the timed ones (-w)."""
    time_limit_s: Seconds = 300.0
    """Time after which the program is stopped."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NcclRasSpec(Options):
    """NCCL's own diagnostics of a running job (RAS, NCCL 2.28 or newer)."""

    time_limit_s: Seconds = 20.0
    """Time within which the job's ranks must respond to each other."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ProbeSpec(Options):
    """One property of devices, links or a disk."""

    name: ProbeName = "link"
    """The property to measure: link, pattern (of memory), fingerprint (of results), overlap (of compute and
    communication), storage, nccl_tests, or nccl_ras (what NCCL itself reports about its ranks)."""
    link: LinkSpec = field(default_factory=LinkSpec)
    """Options for the link probe."""
    pattern: PatternSpec = field(default_factory=PatternSpec)
    """Options for the pattern probe."""
    fingerprint: FingerprintSpec = field(default_factory=FingerprintSpec)
    """Options for the fingerprint probe."""
    overlap: OverlapSpec = field(default_factory=OverlapSpec)
    """Options for the overlap probe."""
    storage: StorageSpec = field(default_factory=StorageSpec)
    """Options for the storage probe."""
    nccl_tests: NcclTestsSpec = field(default_factory=NcclTestsSpec)
    """Options for the nccl_tests probe."""
    nccl_ras: NcclRasSpec = field(default_factory=NcclRasSpec)
    """Options for the nccl_ras probe."""


@record_kind("probe")
@dataclass(frozen=True, slots=True, kw_only=True)
class ProbeReading:
    """One rank's result from a probe, or from a check of a workload's output."""

    rank: int
    quantity: str
    """The measure's name: link bandwidth, wrong values, fingerprint, …"""
    unit: str
    labels: Mapping[str, Any] = field(default_factory=dict)
    amount: float | None = None
    """Work per repeat, in bytes if a bandwidth is measured. None if the time itself is the metric."""
    durations_s: tuple[float, ...] = ()
    """The time of each repeat, in order."""
    value: float | None = None
    """The value, if no time was measured."""
    missing: str | None = None
    """Reason if there is neither a time nor a value: the probe does not apply here, or could not run."""
    is_inapplicable: bool = False
    """Whether the reason proves that there is nothing to measure here."""
    evidence: tuple[str, ...] = ()
    """Other observations: addresses of wrong words, how a cache was bypassed, the reference for
    comparisons."""
    is_of_host: bool = False
    """Whether the result applies to the rank's host rather than its device."""
    device: Device | None = None
    """The device that the result is about, if it is not the rank's own."""
    source: Device | None = None
    """For a link, its start; None means the host."""
    target: Device | None = None
    """For a link, its end; None means the host."""

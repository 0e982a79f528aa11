"""Probes: what is asked for of one property of devices, links or a disk, and what was found.

None of them runs a model. All give the same record: a quantity, of what, and either the time of each repeat
with what was done in it, or a value, or the reason why there is none.
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
"""Ranks that NCCL misses or reports an error of."""
COSTS = (LAUNCH_LATENCY, CACHE_BANDWIDTH)
"""Measured after passes over memory; no verdict goes by them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LinkSpec(Options):
    """Copies between the host and each device, and between each two devices."""

    min_bytes: Bytes = 2**20
    """The smallest copy."""
    max_bytes: Bytes = 2**28
    """The largest copy."""
    factor: Factor = 16
    """Factor from one size to the next."""
    host_memory: Annotated[tuple[HostMemory, ...], SOME] = ("pinned", "pageable")
    """Kinds of the host's memory."""
    between_devices: bool = True
    """Copy between each two devices too, in both directions."""
    both_ways: bool = True
    """Copy in both directions of a link at once too."""
    iterations: Iterations = 10
    """Timed copies of each size."""
    warmup_iterations: WarmUp = 2
    """Copies before them that are not timed."""

    @property
    def sizes_bytes(self) -> tuple[int, ...]:
        """Sizes of copies, from the smallest up to the largest that the factor reaches."""
        return growing_sizes(self.min_bytes, self.max_bytes, self.factor)


@dataclass(frozen=True, slots=True, kw_only=True)
class PatternSpec(Options):
    """Words written to a share of each device's free memory, and read back."""

    memory_share: Annotated[float, Limits(gt=0, le=0.95)] = 0.8
    """Share of the memory that is free when the test begins."""
    patterns: Annotated[tuple[WordPattern, ...], SOME] = (
        "walking_ones",
        "walking_zeros",
        "address",
        "random",
        "inverted",
    )
    """Patterns, in this order; inverted is random with every bit flipped."""
    passes: Annotated[int, Limits(ge=1, le=10_000)] = 1
    """How often all patterns are gone through."""
    seed: Seed = 0
    """Seed of the random words."""
    time_limit_s: Seconds | None = None
    """For all passes, about: where it does not fit, less memory is tried, and that is said."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FingerprintSpec(Options):
    """The same work from the same seed on every device: results must be the same in every bit."""

    dtypes: Annotated[tuple[NumberFormat, ...], SOME] = ("fp32", "bf16", "fp16")
    """Number formats that the work is done in; one that a device lacks is left out there, with the reason."""
    edge: Edge = 2048
    """Size of the square matrices, and width of the small model."""
    rounds: Annotated[int, Limits(ge=1, le=10_000)] = 5
    """How often the work is done and compared."""
    heat_s: Annotated[float, Limits(ge=0, le=86_400)] = 5.0
    """Seconds of products without a pause before each round, so that the devices are warm."""
    seed: Seed = 0
    """Seed of operands, weights and samples."""
    time_limit_s: Seconds | None = 60.0
    """For all rounds in one number format, about, heat apart: where it does not fit, matrices are halved.
    Those 256 wide are compared in any case, so that all devices have something in common."""


@dataclass(frozen=True, slots=True, kw_only=True)
class OverlapSpec(Options):
    """Products and an all-reduce, each alone and both together."""

    edge: Edge = 4096
    """Size of the square matrices that are multiplied."""
    products: Annotated[int, Limits(ge=1, le=10_000)] = 8
    """Products in one iteration."""
    message_bytes: Bytes = 2**26
    """Bytes that all ranks sum in one iteration."""
    iterations: Iterations = 20
    """Timed iterations of each of the three."""
    warmup_iterations: WarmUp = 3
    """Iterations before them that are not timed."""
    time_limit_s: Seconds | None = 60.0
    """For the products of all iterations, about: where they do not fit, matrices are halved."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StorageSpec(Options):
    """A file written, read in order and read at random in a folder of yours."""

    folder: Text | None = None
    """Where the file is made, and removed again; nothing is written anywhere else."""
    file_bytes: Bytes = 2**30
    """Size of the file, in bytes; less is written where the time limit comes first."""
    block_bytes: Bytes = 2**23
    """Bytes of one write or one sequential read; a multiple of 4096."""
    random_block_bytes: Bytes = 4096
    """Bytes of one random read; a multiple of 4096."""
    random_reads: Annotated[int, Limits(ge=1, le=10**7)] = 2000
    """Largest number of random reads."""
    time_limit_s: Seconds = 20.0
    """Time limit for each of writing, sequential reading and random reading."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NcclTestsSpec(Options):
    """NVIDIA's nccl-tests, where they are installed."""

    program: Annotated[str, Limits(pattern=r"^[a-z_]+_perf$", max_length=64)] = "all_reduce_perf"
    """Program of nccl-tests to run, looked for on PATH."""
    min_bytes: Bytes = 8
    """The smallest size (-b)."""
    max_bytes: Bytes = 2**27
    """The largest size (-e)."""
    factor: Factor = 4
    """Factor from one size to the next (-f)."""
    iterations: Iterations = 20
    """Timed iterations of each size (-n)."""
    warmup_iterations: WarmUp = 5
    """Untimed iterations before them (-w)."""
    time_limit_s: Seconds = 300.0
    """Time after which the program is ended."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NcclRasSpec(Options):
    """NCCL's own diagnostics of a job under way (RAS, NCCL 2.28 or newer)."""

    time_limit_s: Seconds = 20.0
    """Time within which its ranks have to answer each other."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ProbeSpec(Options):
    """One property of devices, links or a disk."""

    name: ProbeName = "link"
    """The property to measure: link, pattern (of memory), fingerprint (of results), overlap (of compute and
    communication), storage, nccl_tests, or nccl_ras (what NCCL itself reports of its ranks)."""
    link: LinkSpec = field(default_factory=LinkSpec)
    """Keys of the probe link."""
    pattern: PatternSpec = field(default_factory=PatternSpec)
    """Keys of the probe pattern."""
    fingerprint: FingerprintSpec = field(default_factory=FingerprintSpec)
    """Keys of the probe fingerprint."""
    overlap: OverlapSpec = field(default_factory=OverlapSpec)
    """Keys of the probe overlap."""
    storage: StorageSpec = field(default_factory=StorageSpec)
    """Keys of the probe storage."""
    nccl_tests: NcclTestsSpec = field(default_factory=NcclTestsSpec)
    """Keys of the probe nccl_tests."""
    nccl_ras: NcclRasSpec = field(default_factory=NcclRasSpec)
    """Keys of the probe nccl_ras."""


@record_kind("probe")
@dataclass(frozen=True, slots=True, kw_only=True)
class ProbeReading:
    """One figure of one rank: of a probe, or of a check of what a workload computed."""

    rank: int
    quantity: str
    """As the measure is called: link bandwidth, wrong values, fingerprint, …"""
    unit: str
    labels: Mapping[str, Any] = field(default_factory=dict)
    amount: float | None = None
    """What one repeat did: bytes, of a bandwidth. None where time itself is the quantity."""
    durations_s: tuple[float, ...] = ()
    """Of each repeat, in order."""
    value: float | None = None
    """Where no time was taken."""
    missing: str | None = None
    """Why there is neither: what applies to nothing here, or could not be done."""
    is_inapplicable: bool = False
    """The reason is evidence that there is nothing to measure here."""
    evidence: tuple[str, ...] = ()
    """What else was seen: addresses of wrong words, how a cache was avoided, against what was compared."""
    is_of_host: bool = False
    """Of the rank's host, and not of its device."""
    device: Device | None = None
    """Of which device, where that is not the rank's own."""
    source: Device | None = None
    """Of a link: where it begins; None is the host."""
    target: Device | None = None
    """Of a link: where it ends; None is the host."""

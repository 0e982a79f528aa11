"""`probe`: one property of devices, links or a disk (kind: probe), each with keys of its own."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from gpuproof.config.sections.base import Bytes, ConfigSection, Seconds, Text, growing_sizes
from gpuproof.records.work.probe import HostMemory, NumberFormat, ProbeName, WordPattern

Iterations = Annotated[int, Field(ge=1, le=100_000)]
WarmUp = Annotated[int, Field(ge=0, le=100_000)]
Edge = Annotated[int, Field(ge=16, le=32_768)]


class LinkConfig(ConfigSection):
    """Copies between the host and each device, and between each two devices."""

    min_bytes: Bytes = 2**20
    """The smallest copy."""
    max_bytes: Bytes = 2**28
    """The largest copy."""
    factor: int = Field(default=16, ge=2, le=1024)
    """Factor from one size to the next."""
    host_memory: Annotated[tuple[HostMemory, ...], Field(min_length=1, strict=False)] = ("pinned", "pageable")
    """Kinds of the host's memory."""
    between_devices: bool = True
    """Copy between each two devices too, in both directions."""
    both_ways: bool = True
    """Copy in both directions of a link at once too."""
    iterations: Iterations = 10
    """Timed copies of each size."""
    warmup_iterations: WarmUp = 2
    """Copies before them that are not timed."""

    def sizes_bytes(self) -> tuple[int, ...]:
        """Return the sizes of copies."""
        return growing_sizes(self.min_bytes, self.max_bytes, self.factor)


class PatternConfig(ConfigSection):
    """Words written to a share of each device's free memory, and read back."""

    memory_share: float = Field(default=0.8, gt=0, le=0.95)
    """Share of the memory that is free when the test begins."""
    patterns: Annotated[tuple[WordPattern, ...], Field(min_length=1, strict=False)] = (
        "walking_ones",
        "walking_zeros",
        "address",
        "random",
        "inverted",
    )
    """Patterns, in this order; inverted is random with every bit flipped."""
    passes: int = Field(default=1, ge=1, le=10_000)
    """How often all patterns are gone through."""
    seed: int = Field(default=0, ge=0, lt=2**32)
    """Seed of the random words."""
    time_limit_s: Seconds | None = None
    """For all passes, about: where it does not fit, less memory is tried, and that is said."""


class FingerprintConfig(ConfigSection):
    """The same work from the same seed on every device: results must be the same in every bit."""

    dtypes: Annotated[tuple[NumberFormat, ...], Field(min_length=1, strict=False)] = ("fp32", "bf16", "fp16")
    """Number formats that the work is done in; one that a device lacks is left out there, with the reason."""
    edge: Edge = 2048
    """Size of the square matrices, and width of the small model."""
    rounds: int = Field(default=5, ge=1, le=10_000)
    """How often the work is done and compared."""
    heat_s: float = Field(default=5.0, ge=0, le=86_400)
    """Seconds of products without a pause before each round, so that the devices are warm."""
    seed: int = Field(default=0, ge=0, lt=2**32)
    """Seed of operands, weights and samples."""
    time_limit_s: Seconds | None = 60.0
    """For all rounds in one number format, about, heat apart: where it does not fit, matrices are halved.
    Those 256 wide are compared in any case, so that all devices have something in common."""


class OverlapConfig(ConfigSection):
    """Products and an all-reduce, each alone and both together."""

    edge: Edge = 4096
    """Size of the square matrices that are multiplied."""
    products: int = Field(default=8, ge=1, le=10_000)
    """Products in one iteration."""
    message_bytes: Bytes = 2**26
    """Bytes that all ranks sum in one iteration."""
    iterations: Iterations = 20
    """Timed iterations of each of the three."""
    warmup_iterations: WarmUp = 3
    """Iterations before them that are not timed."""
    time_limit_s: Seconds | None = 60.0
    """For the products of all iterations, about: where they do not fit, matrices are halved."""


class StorageConfig(ConfigSection):
    """A file written, read in order and read at random in a folder of yours."""

    folder: Text | None = None
    """Where the file is made, and removed again; nothing is written anywhere else."""
    file_bytes: Bytes = 2**30
    """Size of the file, in bytes; less is written where the time limit comes first."""
    block_bytes: Bytes = 2**23
    """Bytes of one write or one sequential read; a multiple of 4096."""
    random_block_bytes: Bytes = 4096
    """Bytes of one random read; a multiple of 4096."""
    random_reads: int = Field(default=2000, ge=1, le=10**7)
    """Largest number of random reads."""
    time_limit_s: Seconds = 20.0
    """Time limit for each of writing, sequential reading and random reading."""


class NcclTestsConfig(ConfigSection):
    """NVIDIA's nccl-tests, where they are installed."""

    program: Annotated[str, Field(pattern=r"^[a-z_]+_perf$", max_length=64)] = "all_reduce_perf"
    """Program of nccl-tests to run, looked for on PATH."""
    min_bytes: Bytes = 8
    """The smallest size (-b)."""
    max_bytes: Bytes = 2**27
    """The largest size (-e)."""
    factor: int = Field(default=4, ge=2, le=1024)
    """Factor from one size to the next (-f)."""
    iterations: Iterations = 20
    """Timed iterations of each size (-n)."""
    warmup_iterations: WarmUp = 5
    """Untimed iterations before them (-w)."""
    time_limit_s: Seconds = 300.0
    """Time after which the program is ended."""


class ProbeConfig(ConfigSection):
    """One property of devices, links or a disk."""

    name: ProbeName = "link"
    """The property to measure: link, pattern (of memory), fingerprint (of results), overlap (of compute and
    communication), storage, or nccl_tests."""
    link: LinkConfig = Field(default_factory=LinkConfig)
    """Keys of the probe link."""
    pattern: PatternConfig = Field(default_factory=PatternConfig)
    """Keys of the probe pattern."""
    fingerprint: FingerprintConfig = Field(default_factory=FingerprintConfig)
    """Keys of the probe fingerprint."""
    overlap: OverlapConfig = Field(default_factory=OverlapConfig)
    """Keys of the probe overlap."""
    storage: StorageConfig = Field(default_factory=StorageConfig)
    """Keys of the probe storage."""
    nccl_tests: NcclTestsConfig = Field(default_factory=NcclTestsConfig)
    """Keys of the probe nccl_tests."""

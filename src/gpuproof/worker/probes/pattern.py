"""Does every word of memory retain what is written to it?

The whole area is written before any of it is read, which reveals two addresses that map to the same cell. The
patterns are classics of memory testing: a walking one (or zero), the word's own address, and random words and
their inverse. The data read back is compared on the device. Words that differ are copied to the host, with
their address in the area and the wrong bits.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from time import monotonic

import torch

from gpuproof.accelerators.base import OutOfMemory
from gpuproof.accelerators.choose import free_bytes_of
from gpuproof.base.errors import EnvironmentUnfitError
from gpuproof.records.work.probe import PatternSpec, ProbeReading, WordPattern
from gpuproof.worker.rank.bench import Bench

WORD_BYTES = 8
BLOCK_WORDS = 2**25
"""Size of a block: 256 MiB, since a device may be unable to allocate the whole area in one piece."""
CHUNK_WORDS = 2**21
"""Number of words that are generated and compared at once."""
MOST_SHOWN = 8
"""Maximum number of wrong words reported individually."""
MIX = (-0x61C8864680B583EB, -0x40A7B892E31B1A47, -0x6B2FB644ECCEEE15)
"""Constants of SplitMix64 (https://doi.org/10.1145/2714064.2660195) as signed numbers."""


def try_memory(spec: PatternSpec, bench: Bench) -> Iterator[ProbeReading]:
    """Yield the number of wrong words for each pattern and pass.

    Raises:
        EnvironmentUnfitError: the amount of free memory is unknown.
    """
    area = _Area(bench, _free_bytes(bench), spec)
    for number in range(spec.passes):
        for pattern in spec.patterns:
            seed = spec.seed + number
            area.write(pattern, seed)
            num_wrong, shown = area.read(pattern, seed)
            yield ProbeReading(
                rank=bench.identity.rank,
                quantity="wrong values",
                unit="1",
                labels={"pattern": pattern, "pass": number, "num_words": area.num_words},
                value=float(num_wrong),
                evidence=(area.extent, *shown),
            )


def _free_bytes(bench: Bench) -> int:
    available = free_bytes_of(bench.device)
    if available is None:
        raise EnvironmentUnfitError("free memory is not reported", place="probe.pattern.memory_share")
    return available // (bench.identity.local_world_size if bench.device.type == "cpu" else 1)


class _Area:
    """Blocks of the device's memory, addressed as one sequence of words."""

    def __init__(self, bench: Bench, free_bytes: int, spec: PatternSpec) -> None:
        self._bench = bench
        wanted = int(free_bytes * spec.memory_share) // WORD_BYTES
        # the estimate has tested this many words already
        fitting = min(wanted, max(CHUNK_WORDS, self._fitting_words(spec)))
        self._blocks = _allocate(max(1, fitting), bench.device)
        self.num_words = sum(len(block) for block in self._blocks)
        share = self.num_words * WORD_BYTES / free_bytes
        less = "" if self.num_words >= wanted else "; more could not be allocated"
        less = f"; testing more would take longer than {spec.time_limit_s:g} s" if fitting < wanted else less
        self.extent = f"{self.num_words * WORD_BYTES:,} bytes, {share:.0%} of the free memory{less}"

    def _fitting_words(self, spec: PatternSpec) -> int:
        """Estimate from a few words how many words can be tested with all patterns in the time limit."""
        if spec.time_limit_s is None:
            return sys.maxsize
        self._blocks = _allocate(CHUNK_WORDS, self._bench.device)
        taken_s = 0.0
        for _ in range(2):  # the first run loads kernels and maps pages
            begin_s = monotonic()
            for pattern in spec.patterns:
                self.write(pattern, spec.seed)
                self.read(pattern, spec.seed)
            self._bench.clock.synchronize()
            taken_s = monotonic() - begin_s
        return int(CHUNK_WORDS * spec.time_limit_s / spec.passes / max(taken_s, 1e-9))

    def write(self, pattern: WordPattern, seed: int) -> None:
        """Fill all words."""
        for first, words in self._chunks():
            words.copy_(words_of(pattern, first, len(words), seed=seed, like=words))
            self._bench.beat()

    def read(self, pattern: WordPattern, seed: int) -> tuple[int, list[str]]:
        """Count the words that differ, and report the first of them."""
        num_wrong = 0
        shown: list[str] = []
        for first, words in self._chunks():
            expected = words_of(pattern, first, len(words), seed=seed, like=words)
            differing = words != expected
            here = int(differing.sum())
            num_wrong += here
            if here and len(shown) < MOST_SHOWN:
                places = differing.nonzero().flatten()[: MOST_SHOWN - len(shown)]
                pairs = zip(places.tolist(), words[places].tolist(), expected[places].tolist(), strict=True)
                shown += [describe(first + place, got, right) for place, got, right in pairs]
            self._bench.count_one()
        return num_wrong, shown

    def _chunks(self) -> Iterator[tuple[int, torch.Tensor]]:
        first = 0
        for block in self._blocks:
            for words in block.split(CHUNK_WORDS):
                yield first, words
                first += len(words)


def _allocate(num_words: int, device: torch.device) -> list[torch.Tensor]:
    """Allocate blocks until there are enough words, or until no more can be allocated."""
    blocks: list[torch.Tensor] = []
    while num_words > 0:
        try:
            block = torch.empty(min(num_words, BLOCK_WORDS), dtype=torch.int64, device=device)
        except (OutOfMemory, MemoryError):
            if not blocks:
                raise
            return blocks
        blocks.append(block)
        num_words -= len(block)
    return blocks


def describe(place: int, got: int, expected: int) -> str:
    """Describe a wrong word: its address, and which of its bits are wrong.

    >>> describe(2, 0b1001, 0b1000)
    'byte 0x10: bit 0 is wrong (0x9, not 0x8)'
    >>> describe(2, 0b1000, 0b1000)
    'byte 0x10: wrong when it was compared, right when read again (0x8)'
    """
    address, mask = f"byte {place * WORD_BYTES:#x}", 2**64 - 1
    if got == expected:
        return f"{address}: wrong when it was compared, right when read again ({got & mask:#x})"
    bits = [bit for bit in range(64) if (got ^ expected) >> bit & 1]
    which = f"bit {bits[0]} is" if len(bits) == 1 else f"bits {', '.join(map(str, bits))} are"
    return f"{address}: {which} wrong ({got & mask:#x}, not {expected & mask:#x})"


def words_of(pattern: WordPattern, first: int, count: int, *, seed: int, like: torch.Tensor) -> torch.Tensor:
    """Return the words of a pattern from `first` on, as 64-bit, on the device of `like`; (count,)."""
    index = torch.arange(first, first + count, dtype=torch.int64, device=like.device)
    if pattern == "address":
        return index * WORD_BYTES
    if pattern in ("walking_ones", "walking_zeros"):
        ones = torch.ones_like(index) << index % 64
        return ones if pattern == "walking_ones" else ~ones
    mixed = _mixed(index + seed * 2**32)
    return mixed if pattern == "random" else ~mixed


def _mixed(index: torch.Tensor) -> torch.Tensor:
    """Return SplitMix64 of each index; the multiplications overflow, as intended."""
    mixed = index * MIX[0]
    for shift, factor in ((30, MIX[1]), (27, MIX[2])):
        mixed = (mixed ^ _shifted(mixed, shift)) * factor
    return mixed ^ _shifted(mixed, 31)


def _shifted(words: torch.Tensor, by: int) -> torch.Tensor:
    """Shift right and fill with zeros: torch's own shift extends the sign."""
    return words >> by & (1 << 64 - by) - 1

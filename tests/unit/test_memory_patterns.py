"""Words of each pattern by hand, and a wrong one told with its address and bits."""

from __future__ import annotations

import torch

from gpuproof.worker.probes.pattern import describe, words_of

LIKE = torch.zeros(0, dtype=torch.int64)


def words(pattern: str, first: int, count: int, seed: int = 0) -> list[int]:
    made = words_of(pattern, first, count, seed=seed, like=LIKE)  # type: ignore[arg-type]
    return [word % 2**64 for word in made.tolist()]


def test_patterns_by_hand() -> None:
    assert words("walking_ones", 62, 4) == [2**62, 2**63, 1, 2]
    assert words("walking_zeros", 63, 2) == [2**63 - 1, 2**64 - 2]
    assert words("address", 10, 2) == [80, 88]
    # The first two outputs of SplitMix64 from seed 0, as published with it.
    assert words("random", 1, 2) == [0xE220A8397B1DCDAF, 0x6E789E6AA1B965F4]
    assert words("inverted", 1, 1) == [0xE220A8397B1DCDAF ^ (2**64 - 1)]


def test_chunks_join_and_seeds_differ() -> None:
    assert words("random", 5, 10)[3:] == words("random", 8, 7)
    assert set(words("random", 0, 100)).isdisjoint(words("random", 0, 100, seed=1))


def test_a_wrong_word_is_described() -> None:
    assert describe(3, -1, -2) == f"byte 0x18: bit 0 is wrong (0x{'f' * 16}, not 0x{'f' * 15}e)"
    assert "bits 1, 3 are wrong" in describe(0, 0b1010, 0)
    # what the comparison found may be gone when the word is fetched
    assert describe(1, 8, 8) == "byte 0x8: wrong when it was compared, right when read again (0x8)"

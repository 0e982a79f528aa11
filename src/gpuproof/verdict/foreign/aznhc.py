"""AzureHPC node health checks: lines of `HOSTS || check arguments`, one file a type of virtual machine.

Bandwidths of GPUs are in GB/s, of network cards in Gb/s. The lines that say which cards a machine has give
the bound for what goes over them.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from gpuproof.verdict.foreign.thresholds import Threshold, needing_some

LINE = re.compile(r"^\s*[^#|]+\|\|\s*(check_\w+)\s*(.*?)\s*$")
SIZE = re.compile(r"(\d+)([KMG])$")
POWERS = {"K": 2**10, "M": 2**20, "G": 2**30}
GIGABIT, GIGABYTE = 1e9 / 8, 1e9


def read_aznhc(text: str, *, source: str) -> list[Threshold]:
    """Read the floors of bandwidth.

    Raises:
        UsageError: the file has none.
    """
    checks = [
        (number, match.group(1), match.group(2).split())
        for number, line in enumerate(text.splitlines(), 1)
        if (match := LINE.match(line))
    ]
    cards = [float(words[0]) * GIGABIT for _, check, words in checks if check == "check_hw_ib" and words]
    gpus = next((int(words[0]) for _, check, words in checks if check == "check_gpu_count" and words), None)
    thresholds = [
        threshold
        for number, check, words in checks
        for threshold in _thresholds(f"{source}:{number}", check, words, cards=cards, num_gpus=gpus)
    ]
    return needing_some(thresholds, source=source, form="AzNHC")


def _thresholds(
    place: str, check: str, words: list[str], *, cards: list[float], num_gpus: int | None
) -> Iterator[Threshold]:
    def threshold(quantity: str, at: int, unit_bytes: float, **conditions: object) -> Threshold:
        value = _number(words[at]) if len(words) > at else None
        return Threshold(
            place=place,
            name=" ".join([check, *words]),
            quantity=quantity,
            value=None if value is None else value * unit_bytes,
            unit="B/s",
            conditions={name: condition for name, condition in conditions.items() if condition is not None},
        )

    if check in ("check_gpu_bw", "check_cuda_bw"):
        yield threshold("host link", 0, GIGABYTE, direction="h2d")
        if check == "check_gpu_bw" and len(words) > 1:
            yield threshold("device link", 1, GIGABYTE)
    elif check == "check_nccl_allreduce":
        size = next((_size(word) for word in words if SIZE.match(word)), None)
        yield threshold("all_reduce", 0, GIGABYTE, num_hosts=1, num_devices=num_gpus, size_bytes=size)
    elif check == "check_nccl_allreduce_ib_loopback":
        yield threshold("network loopback", 0, GIGABYTE, cards_bytes_per_s=sum(cards) or None)
    elif check.startswith("check_ib_bw"):
        # The slowest card that the file lists decides: the check is of each of them.
        yield threshold("network card", 0, GIGABIT, card_bytes_per_s=max(cards, default=None))


def _number(word: str) -> float | None:
    try:
        return float(word)
    except ValueError:
        return None


def _size(word: str) -> int:
    match = SIZE.match(word)
    assert match is not None
    return int(match.group(1)) * POWERS[match.group(2)]

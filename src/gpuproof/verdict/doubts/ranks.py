"""Is one rank slower than the others, so that its rate is the rate of all? It is named, with its device."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from gpuproof.base.units import seconds, share
from gpuproof.launches.ranks import Basis, RankFigures, RanksCompared, compare_ranks
from gpuproof.records.result import Doubt
from gpuproof.verdict.doubts.base import Measured, suspect

SAID_OF: Mapping[Basis, str] = {
    "own steps": "without gradient sync, after the window; in the window all ranks wait for the slowest",
    "steps in the window": "in the window, where each rank works by itself",
    "windows": "to the end of the window",
}


def unequal_ranks(measured: Measured) -> Iterator[Doubt]:
    """Find ranks that stand apart from the others."""
    compared = compare_ranks(measured.launch)
    if compared is None or not compared.apart:
        return
    yield suspect(
        "unequal-ranks",
        f"{_named(compared)}: {_times(compared)} {SAID_OF[compared.basis]}",
        "Look at that device's clock, temperature and neighbours, or leave it out (distributed.devices)",
    )


def _named(compared: RanksCompared) -> str:
    first, *more = compared.apart
    by = first.slower_by if first.slower_by > 0 else -first.slower_by
    others = (
        f" (so {'are' if len(more) > 1 else 'is'} rank {', '.join(str(r.rank) for r in more)})"
        if more
        else ""
    )
    peers = "the other rank" if len(compared.ranks) == 2 else "the median of the other ranks"
    word = "slower" if first.slower_by > 0 else "faster"
    return f"{rank_name(first)} is {share(by)} {word} than {peers}{others}"


def _times(compared: RanksCompared) -> str:
    first = compared.apart[0]
    time_s = compared.time_s(first)
    unit = "" if compared.basis == "windows" else " a step"
    return f"{seconds(time_s)} against {seconds(time_s / (1 + first.slower_by))}{unit}"


def rank_name(rank: RankFigures) -> str:
    """Name a rank by its number, host and device."""
    return f"rank {rank.rank} on {rank.host} ({device_name(rank)})"


def device_name(rank: RankFigures) -> str:
    """Name a rank's device so that it can be found: its permanent identity where it has one."""
    device = rank.device
    which = device.uuid or ("" if device.index is None else f"{device.kind}:{device.index}")
    return f"{device.name} {which}".rstrip()

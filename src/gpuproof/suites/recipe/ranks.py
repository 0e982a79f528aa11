"""The table of ranks: where each ran, how long its steps took, together and by itself, and which one lags."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from gpuproof import units
from gpuproof.analysis.launch import Launch
from gpuproof.analysis.ranks import Basis, RankFigures, RanksCompared, compare_ranks
from gpuproof.records.page import Cell, Column, Section, Text, table
from gpuproof.verdict.doubts.ranks import device_name


@dataclass(frozen=True, slots=True, kw_only=True)
class RankRow:
    """One rank in the table. Times are in seconds."""

    rank: int
    host: str
    device: str
    window_s: float
    step_s: float
    own_step_s: float | None
    slower_by: float
    stands_apart: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class RanksShown:
    """The ranks of one launch: of the one in which they differ most."""

    replicate: int
    basis: Basis
    rows: tuple[RankRow, ...]
    own_missing: str | None


def ranks_shown(launches: Sequence[Launch]) -> RanksShown | None:
    """Choose the launch whose ranks are shown; None where launches have one rank."""
    compared = [(launch, ranks) for launch in launches if (ranks := compare_ranks(launch)) is not None]
    if not compared:
        return None
    launch, comparison = max(compared, key=lambda pair: (len(pair[1].apart) > 0, _spread(pair[1])))
    return RanksShown(
        replicate=launch.case.replicate,
        basis=comparison.basis,
        rows=tuple(_row(rank, stands_apart=rank in comparison.apart) for rank in comparison.ranks),
        own_missing=comparison.own_missing,
    )


def _spread(comparison: RanksCompared) -> float:
    lags = [rank.slower_by for rank in comparison.ranks]
    return max(lags) - min(lags)


def _row(rank: RankFigures, *, stands_apart: bool) -> RankRow:
    return RankRow(
        rank=rank.rank,
        host=rank.host,
        device=device_name(rank),
        window_s=rank.window_s,
        step_s=rank.step_s,
        own_step_s=rank.own_step_s,
        slower_by=rank.slower_by,
        stands_apart=stands_apart,
    )


def sections_of_ranks(shown: RanksShown, *, num_launches: int) -> Iterator[Section]:
    """Lay the table out, and say what its figures are."""
    yield table(
        f"Ranks of launch {shown.replicate + 1}" if num_launches > 1 else "Ranks",
        shown.rows,
        Column.of("rank", lambda row: str(row.rank)),
        Column.of("host", lambda row: row.host, align="left"),
        Column.of("device", lambda row: row.device, align="left"),
        Column.of("window", lambda row: units.seconds(row.window_s, digits=4)),
        Column.of("step", lambda row: units.seconds(row.step_s)),
        Column.of(
            "alone",
            lambda row: "" if row.own_step_s is None else units.seconds(row.own_step_s),
            is_optional=True,
        ),
        Column.of("vs others", _lag),
    )
    yield Text(title="", lines=(_explanation(shown),))


def _lag(row: RankRow) -> Cell:
    text = units.change(row.slower_by).replace("-", "−")
    return Cell(text, "warn" if row.stands_apart else "plain")


def _explanation(shown: RanksShown) -> str:
    if shown.basis == "own steps":
        return (
            "ranks average gradients in every step, so that all windows are as long as the slowest rank's; "
            "alone: the median of whole steps without gradient sync, after the window"
        )
    if shown.basis == "steps in the window":
        return "each rank worked by itself: its steps wait for no other rank"
    why = shown.own_missing or "they were not timed alone (benchmark.own_compute)"
    return f"ranks wait for each other in every step, so which of them is slow is not known: {why}"

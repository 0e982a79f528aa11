"""The figures of ranks: where each ran, how long its steps took, together and by itself, and who lags."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from gpuproof.base import units
from gpuproof.launches.launch import Launch
from gpuproof.launches.ranks import Basis, RanksCompared, compare_ranks
from gpuproof.launches.subjects import subjects_of_ranks
from gpuproof.records.page import Cell, Section, Text
from gpuproof.records.page.tables import Column, figure, pivot
from gpuproof.records.result import Measure
from gpuproof.verdict.doubts.ranks import device_name

QUANTITIES = ("window", "step", "alone", "vs others")
LAG = QUANTITIES[-1]


@dataclass(frozen=True, slots=True, kw_only=True)
class RanksShown:
    """What the ranks of one launch are called: of the one in which they differ most."""

    replicate: int
    basis: Basis
    names: Mapping[str, tuple[str, str]]
    """Rank → its host and device."""
    apart: tuple[int, ...]
    own_missing: str | None


def ranks_shown(launches: Sequence[Launch]) -> tuple[RanksShown | None, list[Measure]]:
    """Choose the launch whose ranks are shown, and measure them; None where launches have one rank."""
    compared = [(launch, ranks) for launch in launches if (ranks := compare_ranks(launch)) is not None]
    if not compared:
        return None, []
    launch, comparison = max(compared, key=lambda pair: (len(pair[1].apart) > 0, _spread(pair[1])))
    shown = RanksShown(
        replicate=launch.case.replicate,
        basis=comparison.basis,
        names={str(rank.rank): (rank.host, device_name(rank)) for rank in comparison.ranks},
        apart=tuple(rank.rank for rank in comparison.apart),
        own_missing=comparison.own_missing,
    )
    return shown, list(_measures(launch, comparison))


def _spread(comparison: RanksCompared) -> float:
    lags = [rank.slower_by for rank in comparison.ranks]
    return max(lags) - min(lags)


def _measures(launch: Launch, comparison: RanksCompared) -> Iterator[Measure]:
    subjects = subjects_of_ranks(launch.case, launch.windows, launch.setups)
    for rank, subject in zip(comparison.ranks, subjects, strict=True):
        values = (rank.window_s, rank.step_s, rank.own_step_s, rank.slower_by)
        for quantity, value in zip(QUANTITIES, values, strict=True):
            if value is not None:
                yield Measure(
                    name=f"rank {quantity}",
                    value=value,
                    unit="1" if quantity == LAG else "s",
                    text=_text(quantity, value),
                    subject=subject.device,
                    labels={"rank": rank.rank, "replicate": launch.case.replicate, "quantity": quantity},
                )


def _text(quantity: str, value: float) -> str:
    if quantity == LAG:
        return units.change(value).replace("-", "−")
    return units.seconds(value, digits=4 if quantity == "window" else 3)


def sections_of_ranks(
    shown: RanksShown, measures: Sequence[Measure], *, num_launches: int
) -> Iterator[Section]:
    """Lay the figures out, and say what they are."""

    def lag(measure: Measure) -> Cell:
        return Cell(measure.text, "warn" if measure.labels["rank"] in shown.apart else "plain")

    yield pivot(
        f"Ranks of launch {shown.replicate + 1}" if num_launches > 1 else "Ranks",
        measures,
        (
            Column.of("rank", lambda measure: str(measure.labels["rank"])),
            Column.of("host", lambda measure: shown.names[str(measure.labels["rank"])][0], align="left"),
            Column.of("device", lambda measure: shown.names[str(measure.labels["rank"])][1], align="left"),
        ),
        *(figure(quantity, quantity, is_optional=quantity == "alone") for quantity in QUANTITIES[:-1]),
        figure(LAG, LAG, lag),
    )
    yield Text(title="", lines=(_explanation(shown),))


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

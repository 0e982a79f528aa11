"""The figures of an operation at a size: of one launch, over launches, and as people read them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from statistics import fmean

from gpuproof.base import units
from gpuproof.launches.collectives import CollectiveFigures
from gpuproof.records.result import Better
from gpuproof.verdict.rules.quantities import COUNTS_OF_WRONG

BUS_BANDWIDTH = "bus bandwidth"
WRONG_VALUES = COUNTS_OF_WRONG[0]

OfLaunch = Callable[[CollectiveFigures], float | None]


@dataclass(frozen=True, slots=True, kw_only=True)
class CollectiveQuantity:
    """A figure of an operation at a size."""

    name: str
    column: str
    """What it is called in collectives.csv."""
    unit: str
    of_launch: OfLaunch
    over: Callable[[Sequence[CollectiveFigures]], float | None]
    """Of all launches together."""
    statistic: str
    text: Callable[[float], str]
    better: Better | None = None
    """None where another quantity says the same, so that it is compared once."""
    missing: str = ""
    """Why a launch has none, where some may have none."""

    def name_at(self, point: CollectiveFigures) -> str:
        """Return what the measure at a size is called; a size alone is its bus bandwidth."""
        at = f"{point.operation} of {units.memory(point.size_bytes)}"
        return at if self.name == BUS_BANDWIDTH else f"{at}, {self.name}"


def _mean(of_launch: OfLaunch) -> Callable[[Sequence[CollectiveFigures]], float | None]:
    def mean(launches: Sequence[CollectiveFigures]) -> float | None:
        values = [value for launch in launches if (value := of_launch(launch)) is not None]
        return fmean(values) if values else None

    return mean


def _percentile(q: float) -> CollectiveQuantity:
    def of_launch(figures: CollectiveFigures) -> float | None:
        return figures.latency(q).value

    def pooled(launches: Sequence[CollectiveFigures]) -> float | None:
        times_s = tuple(time_s for launch in launches for time_s in launch.iterations_s)
        return of_launch(replace(launches[0], iterations_s=times_s))

    return CollectiveQuantity(
        name=f"p{q:g} latency",
        column=f"p{q:g}_s",
        unit="s",
        of_launch=of_launch,
        over=pooled,
        statistic=f"p{q:g} of all iterations",
        text=units.seconds,
        better="lower",
        missing="too few iterations",
    )


def _wrong(figures: CollectiveFigures) -> float | None:
    return float(figures.num_wrong) if figures.num_checked else None


def _all_wrong(launches: Sequence[CollectiveFigures]) -> float | None:
    return float(sum(launch.num_wrong for launch in launches)) if launches[0].num_checked else None


QUANTITIES = (
    CollectiveQuantity(
        name="mean latency",
        column="time_s",
        unit="s",
        of_launch=lambda figures: figures.time_s,
        over=_mean(lambda figures: figures.time_s),
        statistic="mean",
        text=units.seconds,
    ),
    CollectiveQuantity(
        name="algorithm bandwidth",
        column="algorithm_bytes_per_s",
        unit="B/s",
        of_launch=lambda figures: figures.algorithm_bytes_per_s,
        over=_mean(lambda figures: figures.algorithm_bytes_per_s),
        statistic="mean",
        text=units.bandwidth,
    ),
    CollectiveQuantity(
        name=BUS_BANDWIDTH,
        column="bus_bytes_per_s",
        unit="B/s",
        of_launch=lambda figures: figures.bus_bytes_per_s,
        over=_mean(lambda figures: figures.bus_bytes_per_s),
        statistic="mean",
        text=units.bandwidth,
        better="higher",
        missing="over one rank nothing moves",
    ),
    _percentile(50.0),
    _percentile(99.0),
    CollectiveQuantity(
        name="longest latency",
        column="longest_s",
        unit="s",
        of_launch=lambda figures: max(figures.iterations_s),
        over=lambda launches: max(max(launch.iterations_s) for launch in launches),
        statistic="max",
        text=units.seconds,
        better="lower",
    ),
    CollectiveQuantity(
        name="rank spread",
        column="rank_spread",
        unit="1",
        of_launch=lambda figures: figures.rank_spread,
        over=lambda launches: max(launch.rank_spread for launch in launches),
        statistic="max",
        text=units.share,
        better="lower",
    ),
    CollectiveQuantity(
        name=WRONG_VALUES,
        column="num_wrong",
        unit="1",
        of_launch=_wrong,
        over=_all_wrong,
        statistic="sum",
        text=lambda value: units.count(int(value)),
        better="lower",
        missing="not compared",
    ),
)
"""In the order of collectives.csv."""

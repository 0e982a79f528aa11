"""Plan the launches: `rounds` for each host alone, then `rounds` of one job over two of them.

The state contains everything that planning depends on, regardless of the order in which launches ended: a
resumed run processes them in another order, and must plan the same launches.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from statistics import median
from typing import Literal

from gpuproof.config.models import RunConfig
from gpuproof.launches.launch import summarize_launch
from gpuproof.records.case import Case
from gpuproof.records.codec import from_json
from gpuproof.records.collected import CaseRecords
from gpuproof.suites.base import HostPlace, LaunchKey, launch_key
from gpuproof.suites.cases import build_rounds, placed_name
from gpuproof.suites.points.plan import refuse_keys

ALONE, PAIR = "alone", "pair"


@dataclass(frozen=True, slots=True, kw_only=True)
class ToyOptions:
    """The `toy` section of the recipe."""

    rounds: int = 2
    """Number of launches of each host, and of the pair."""
    pair: Literal["slowest", "fastest"] = "slowest"
    """Which two hosts form the pair."""
    least_kept: float = 0.5
    """Fraction of both hosts' individual throughput below which the page warns."""

    def __post_init__(self) -> None:
        if self.rounds < 1:
            raise ValueError(f"rounds is {self.rounds}, but must be 1 or more")


@dataclass(frozen=True, slots=True, kw_only=True)
class ToyState:
    """The state of a run."""

    config: RunConfig
    options: ToyOptions
    places: tuple[HostPlace, ...]
    rates: Mapping[LaunchKey, float | None] = field(default_factory=dict)
    """Items per second of each launch that ended; None if nothing was measured."""
    begun: tuple[str, ...] = ()
    """Hosts of the pair once one of its launches has ended: later rates do not change the pair."""

    @property
    def num_left(self) -> int:
        """Launches that have not ended yet, plus those that may still be requested."""
        may_pair = len(self.places) > 1 and bool(self.pair or self._is_alone_left)
        return max(0, (len(self.places) + may_pair) * self.options.rounds - len(self.rates))

    @property
    def pair(self) -> tuple[HostPlace, ...]:
        """The two hosts, ordered by node rank; empty while a host is being measured, or if too few were."""
        names = self.begun
        measured = sorted((rate, place.name) for place in self.places if (rate := self.rate_alone(place)))
        if not names and len(measured) > 1 and not self._is_alone_left:
            chosen = measured[:2] if self.options.pair == "slowest" else measured[:-3:-1]
            names = tuple(name for _, name in chosen)
        return tuple(place for name in names for place in self.places if place.name == name)

    @property
    def _is_alone_left(self) -> bool:
        rounds, names = range(self.options.rounds), [placed_name(ALONE, place) for place in self.places]
        return any((name, replicate) not in self.rates for name in names for replicate in rounds)

    def rate_alone(self, place: HostPlace) -> float | None:
        """Return the median rate of a host alone; None if none of its launches was measured."""
        name = placed_name(ALONE, place)
        rates = [rate for (case_id, _), rate in self.rates.items() if case_id == name and rate is not None]
        return median(rates) if rates else None

    def settle(self, launch: CaseRecords) -> ToyState:
        """Return the state after a launch ended, successfully or not."""
        measured = summarize_launch(launch)
        rate = None if measured is None else measured.items_per_s_total
        return self.with_rate(launch_key(launch.case), rate, hosts=launch.case.placement.hosts)

    def with_rate(self, key: LaunchKey, rate: float | None, *, hosts: tuple[str, ...]) -> ToyState:
        """Return the state after a launch on these hosts measured this rate, or measured nothing (None)."""
        begun = hosts if len(hosts) > 1 else self.begun
        return replace(self, rates={**self.rates, key: rate}, begun=begun)

    def next(self, running: Collection[LaunchKey]) -> Iterator[Case]:
        """Yield the launches that may start now; a case is created when it is requested."""
        done, rounds = {*self.rates, *running}, self.options.rounds
        alone = [(place,) for place in self.places]
        yield from build_rounds(self.config, ALONE, alone, rounds=rounds, done=done)
        if pair := self.pair:
            yield from build_rounds(self.config, PAIR, [pair], rounds=rounds, done=done)


def plan(config: RunConfig, places: Sequence[HostPlace]) -> ToyState:
    """Return the state before the first launch of a checked recipe."""
    options = from_json(ToyOptions, config.suite_options["toy"], place="toy")
    return ToyState(config=config, options=options, places=tuple(places))


def begin(config: RunConfig, places: Sequence[HostPlace]) -> ToyState:
    """Start with nothing launched.

    Raises:
        UsageError: the recipe has a key that the suite does not support, or it cannot run.
    """
    refuse_keys(
        "toy",
        ("kind", config.kind != "training", "Set kind to training: hosts exchange gradients"),
        ("matrix", bool(config.matrix), "Remove matrix"),
        ("distributed.nodes", config.distributed.nodes != 1, "Omit it: the suite places its jobs"),
    )
    state = plan(config, places)
    next(state.next(()))  # rejects a wrong workload or workload option
    return state

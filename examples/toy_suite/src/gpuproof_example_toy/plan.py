"""Which launches: `rounds` of each host by itself, then `rounds` of one job over the two that these choose.

The state holds all on which planning depends, and is the same in whichever order launches ended:
a resumed run settles them in another one, and must plan the same.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import median
from typing import Literal

from gpuproof.analysis.launch import summarize_launch
from gpuproof.config.models import RunConfig
from gpuproof.errors import UsageError
from gpuproof.records.case import Case
from gpuproof.records.codec import from_json
from gpuproof.records.collected import CaseRecords
from gpuproof.suites.base import HostPlace, LaunchKey, launch_key
from gpuproof.suites.cases import build_case, place_case, placed_name

ALONE, PAIR = "alone", "pair"


@dataclass(frozen=True, slots=True, kw_only=True)
class ToyOptions:
    """The recipe's block `toy`."""

    rounds: int = 2
    """Launches of each host, and of the pair."""
    pair: Literal["slowest", "fastest"] = "slowest"
    """Which two hosts the pair is made of."""
    least_kept: float = 0.5
    """Of the throughput that both hosts have alone, the share below which the page warns."""

    def __post_init__(self) -> None:
        if self.rounds < 1:
            raise ValueError(f"rounds is {self.rounds}, and must be 1 or more")


@dataclass(frozen=True, slots=True, kw_only=True)
class ToyState:
    """Where the run is."""

    config: RunConfig
    options: ToyOptions
    places: tuple[HostPlace, ...]
    ended: frozenset[LaunchKey] = frozenset()
    rates: Mapping[LaunchKey, float]
    """Items a second of each launch that measured."""
    begun: tuple[str, ...] = ()
    """The hosts of the pair once one of its launches has ended: later rates choose no other."""

    @property
    def num_left(self) -> int:
        """Launches that have not ended and may still be asked for."""
        may_pair = len(self.places) > 1 and bool(self.pair or self._left(ALONE, self.places))
        num_groups = len(self.places) + (1 if may_pair else 0)
        return max(0, num_groups * self.options.rounds - len(self.ended))

    @property
    def pair(self) -> tuple[HostPlace, ...]:
        """The two hosts, in the order of node ranks; empty while a host is measured, or if too few were."""
        if self.begun:
            return tuple(place for name in self.begun for place in self.places if place.name == name)
        measured = sorted((rate, place.name) for place in self.places if (rate := self.rate_alone(place)))
        if len(measured) < 2 or self._left(ALONE, self.places):
            return ()
        chosen = measured[:2] if self.options.pair == "slowest" else measured[:-3:-1]
        return tuple(place for _, name in chosen for place in self.places if place.name == name)

    def rate_alone(self, place: HostPlace) -> float | None:
        """Return the median rate of a host by itself; None where none of its launches measured."""
        name = placed_name(ALONE, place)
        rates = [rate for (case_id, _), rate in self.rates.items() if case_id == name]
        return median(rates) if rates else None

    def settle(self, launch: CaseRecords) -> ToyState:
        """Return the state after a launch ended, well or not."""
        measured = summarize_launch(launch)
        rate = None if measured is None else measured.items_per_s_total
        return self.with_rate(launch_key(launch.case), rate, hosts=launch.case.placement.hosts)

    def with_rate(self, key: LaunchKey, rate: float | None, *, hosts: tuple[str, ...]) -> ToyState:
        """Return the state after a launch on these hosts gave this rate, or none."""
        return replace(
            self,
            ended=self.ended | {key},
            rates=self.rates if rate is None else {**self.rates, key: rate},
            begun=hosts if len(hosts) > 1 else self.begun,
        )

    def next(self, running: Collection[LaunchKey]) -> Iterator[Case]:
        """Yield what may begin now; a case is built when it is asked for."""
        for replicate in range(self.options.rounds):
            for place in self.places:
                yield from self._case(ALONE, (place,), replicate, running)
        if pair := self.pair:
            for replicate in range(self.options.rounds):
                yield from self._case(PAIR, pair, replicate, running)

    def _case(
        self, name: str, places: Sequence[HostPlace], replicate: int, running: Collection[LaunchKey]
    ) -> Iterator[Case]:
        key = (placed_name(name, *places), replicate)
        if key not in self.ended and key not in running:
            yield place_case(build_case(self.config, replicate, case_id=name), *places)

    def _left(self, name: str, places: Sequence[HostPlace]) -> bool:
        """Say whether a launch of each of these places by itself has not ended."""
        rounds = range(self.options.rounds)
        return any((placed_name(name, place), r) not in self.ended for place in places for r in rounds)


def plan(config: RunConfig, places: Sequence[HostPlace]) -> ToyState:
    """Return the state before the first launch of a recipe that was checked."""
    options = from_json(ToyOptions, config.suite_options["toy"], place="toy")
    return ToyState(config=config, options=options, places=tuple(places), rates={})


def check(config: RunConfig) -> None:
    """Refuse a recipe that this suite cannot run.

    Raises:
        UsageError: it has a key that the suite could not heed.
    """
    for key, is_wrong, next_step in (
        ("kind", config.kind != "training", "Set kind to training: hosts exchange gradients"),
        ("matrix", bool(config.matrix), "Remove matrix"),
        ("distributed.nodes", config.distributed.nodes != 1, "Leave it out: the suite places its jobs"),
    ):
        if is_wrong:
            raise UsageError("the suite toy does not take this", place=key, next_step=next_step)

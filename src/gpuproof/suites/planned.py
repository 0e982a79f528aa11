"""For the time being: today's `plan.next_cases` as a Suite, on this machine, over hosts, or on each."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from gpuproof.config.models import RunConfig
from gpuproof.records.case import Case
from gpuproof.records.collected import CaseRecords
from gpuproof.records.run import Failure
from gpuproof.suites.base import AfterFailure, HostPlace, LaunchKey, Remaining
from gpuproof.suites.fleet import on_host, results_on
from gpuproof.suites.plan import is_expected_failure, is_sweep, next_cases
from gpuproof.suites.training import launch_key

OF_HOSTS = ("setup", "deploy", "execute", "download", "parse", "exception")


@dataclass(frozen=True)
class PlannedState:
    """What was asked, and what came of it."""

    config: RunConfig
    places: tuple[HostPlace, ...]
    results: tuple[CaseRecords, ...] = ()


class PlannedSuite:
    """All cases of a recipe, each host's own where there are several."""

    def __init__(self, config: RunConfig, places: Sequence[HostPlace]) -> None:
        self._config = config
        self._is_by_host = config.distributed.nodes == 1 and places[0].name != ""

    def begin(self, config: RunConfig, places: Sequence[HostPlace]) -> PlannedState:
        """Return the state before the first launch."""
        next_cases(config, ())
        return PlannedState(config, tuple(places))

    def settle(self, state: PlannedState, launch: CaseRecords) -> PlannedState:
        """Add a launch."""
        return replace(state, results=(*state.results, launch))

    def next(
        self, state: PlannedState, running: Mapping[LaunchKey, Case], time_left_s: float | None
    ) -> Iterator[Case]:
        """Yield what is left, of each host its next."""
        if not self._is_by_host:
            yield from (c for c in next_cases(state.config, state.results) if launch_key(c) not in running)
            return
        for place in state.places:
            if not self._has_ended(state, place) and all(
                case.placement.host != place.name for case in running.values()
            ):
                for case in self._left_on(state, place):
                    yield case
                    if launch_key(case) in running:
                        break

    def remaining(self, state: PlannedState) -> Remaining:
        """Count what is left."""
        if not self._is_by_host:
            return Remaining(num_launches=len(next_cases(state.config, state.results)))
        left = (
            len(self._left_on(state, place)) for place in state.places if not self._has_ended(state, place)
        )
        return Remaining(num_launches=sum(left))

    def on_failure(self, launch: CaseRecords) -> AfterFailure:
        """Say what a launch that did not end well means."""
        return "skip" if self._is_by_host else self._meaning(launch)

    def _meaning(self, launch: CaseRecords) -> AfterFailure:
        failure = launch.primary_failure
        if is_expected_failure(self._config, launch):
            return "expected"
        if failure is None:
            return "skip"
        lacks = failure.cause == "environment" and not is_sweep(self._config)
        return "stop" if failure.cause == "disk_full" or lacks else "skip"

    def _left_on(self, state: PlannedState, place: HostPlace) -> list[Case]:
        own = results_on(place.name, state.results)
        return [on_host(c, place.name, nproc=place.num_devices) for c in next_cases(state.config, own)]

    def _has_ended(self, state: PlannedState, place: HostPlace) -> bool:
        """Say whether a host is lost, or lacks what the recipe needs."""
        return any(
            self._meaning(launch) == "stop"
            or any(f.rank is None and f.phase in OF_HOSTS for f in launch.of(Failure))
            for launch in state.results
            if launch.case.placement.host == place.name and launch.status != "done"
        )


def find_suite(config: RunConfig, places: Sequence[HostPlace]) -> Any:
    """Return the suite that a recipe asks for."""
    return PlannedSuite(config, places)

"""Run any suite on several hosts: the inner suite once per host, then a comparison of all hosts.

This suite is not an entry point: it wraps a suite with per-host scope when a recipe runs on hosts of an
inventory.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Literal

from gpuproof.config.models import RunConfig
from gpuproof.readings.evidence import Evidence
from gpuproof.records.case import Case
from gpuproof.records.collected import CaseRecords
from gpuproof.records.page import Page
from gpuproof.records.result import Result
from gpuproof.suites.base import AfterFailure, Conclusion, HostPlace, LaunchKey, Remaining, Suite
from gpuproof.suites.by_host.plan import HostStates, as_on_one_machine
from gpuproof.suites.cases import place_case


class ByHost:
    """Run an inner suite once on each host."""

    scope: Literal["each_host", "whole"] = "whole"
    options: type | None = None

    def __init__(self, inner: Suite) -> None:
        self.inner = inner
        self.name = inner.name
        self.summary = f"{inner.summary}, on each of several hosts"
        self.command = inner.command

    def answers(self, config: RunConfig) -> bool:
        """Accept the recipes that the inner suite accepts."""
        return self.inner.answers(config)

    def begin(self, config: RunConfig, places: Sequence[HostPlace]) -> HostStates:
        """Start the inner suite for each host; all states are equal, so they are planned only once."""
        state = self.inner.begin(config, places)
        return HostStates(
            places={place.name: place for place in places},
            states=dict.fromkeys((place.name for place in places), state),
        )

    def settle(self, state: HostStates, launch: CaseRecords) -> HostStates:
        """Add the launch to its host's state."""
        return state.settle(launch, self.inner)

    def next(
        self, state: HostStates, running: Mapping[LaunchKey, Case], time_left_s: float | None
    ) -> Iterator[Case]:
        """Yield one launch for each idle host."""
        return state.next(self.inner, running, time_left_s)

    def planned(self, state: HostStates) -> Iterator[Case]:
        """Yield the launches of every host that are known now."""
        for name, own in state.states.items():
            yield from (place_case(case, state.places[name]) for case in self.inner.planned(own))

    def remaining(self, state: HostStates) -> Remaining:
        """Add up the remaining launches on usable hosts."""
        left = [self.inner.remaining(own) for name, own in state.states.items() if name not in state.dropped]
        until = next((host.until for host in left if host.until), None)
        return Remaining(num_launches=sum(host.num_launches for host in left), until=until)

    def on_failure(self, launch: CaseRecords) -> AfterFailure:
        """Continue with the other hosts, even if one of them lacks something."""
        meaning = self.inner.on_failure(as_on_one_machine(launch))
        return "skip" if meaning == "stop" else meaning

    def conclude(self, evidence: Evidence) -> Conclusion:
        """Draw conclusions for each host separately, then for all together."""
        from gpuproof.suites.by_host.conclude import conclude

        return conclude(evidence, self.inner)

    def page(self, result: Result) -> Page:
        """Lay out hosts, GPU types and outliers."""
        from gpuproof.suites.by_host.page import page

        return page(result)

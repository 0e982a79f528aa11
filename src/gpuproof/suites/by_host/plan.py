"""Run any suite on several hosts, with one state per host and cases assigned to hosts by name.

Each host has separate cases (`main@node1`), so the store, `--resume` and readers need not know about hosts.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from itertools import islice
from typing import Any

from gpuproof.records.case import Case
from gpuproof.records.collected import CaseRecords
from gpuproof.records.run import is_host_failure
from gpuproof.suites.base import HostPlace, LaunchKey, Suite
from gpuproof.suites.cases import AT, place_case


def as_on_one_machine(launch: CaseRecords) -> CaseRecords:
    """Return a launch with the case name that it had before it was assigned to a host."""
    case_id = launch.case.case_id.rpartition(AT)[0]
    return replace(launch, case=replace(launch.case, case_id=case_id)) if case_id else launch


@dataclass(frozen=True, slots=True, kw_only=True)
class HostStates:
    """The inner suite's state for each host."""

    places: Mapping[str, HostPlace]
    states: Mapping[str, Any]
    dropped: frozenset[str] = frozenset()
    """Hosts on which no more launches are started, because they are unusable or lack something that all their
    launches need."""

    def settle(self, launch: CaseRecords, inner: Suite) -> HostStates:
        """Return the states after a launch ended."""
        host = launch.case.placement.host
        if host is None or host not in self.states:
            return self
        own = as_on_one_machine(launch)
        dropped = self.dropped
        if launch.status != "done" and (_is_unusable(launch) or inner.on_failure(own) == "stop"):
            dropped |= {host}
        return replace(
            self,
            states={**self.states, host: inner.settle(self.states[host], own)},
            dropped=dropped,
        )

    def next(
        self, inner: Suite, running: Mapping[LaunchKey, Case], time_left_s: float | None
    ) -> Iterator[Case]:
        """Yield one launch for each idle host."""
        busy = {case.placement.host for case in running.values()}
        for name, state in self.states.items():
            if name not in busy and name not in self.dropped:
                for case in islice(inner.next(state, {}, time_left_s), 1):
                    yield place_case(case, self.places[name])


def _is_unusable(launch: CaseRecords) -> bool:
    failure = launch.primary_failure
    return failure is not None and is_host_failure(failure)

"""The suite interface: plan a run's launches and evaluate them, without side effects.

A suite is one folder and one entry point in the group `gpuproof.suites`. The campaign requests cases from it,
reports to it how each case ended, and finally asks it to evaluate the evidence. The renderers draw its page.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, Protocol, runtime_checkable

from gpuproof.base.errors import RecordError
from gpuproof.config.models import RunConfig
from gpuproof.readings.evidence import Evidence
from gpuproof.readings.recording import RecordingData
from gpuproof.records.case import Case
from gpuproof.records.codec import from_json
from gpuproof.records.collected import CaseRecords
from gpuproof.records.page import Page, Picture
from gpuproof.records.result import Result

LaunchKey = tuple[str, int]
"""Case and replicate, which identify a launch within its run."""


def launch_key(case: Case) -> LaunchKey:
    """Return the key that identifies a launch within its run."""
    return case.case_id, case.replicate


AfterFailure = Literal["expected", "retry", "skip", "stop"]
"""Action that a suite takes after a failed launch. expected: the failure is what the suite was looking for;
retry: launch it again; skip: continue with the other launches; stop: no other launch would do better."""


@dataclass(frozen=True, slots=True, kw_only=True)
class HostPlace:
    """A host on which cases can be placed; stored in run.json and never changed."""

    name: str
    """Name of the host in the inventory; empty for this machine."""
    num_devices: int | None = None
    """Number of ranks that the host starts according to the inventory; if None, the recipe decides."""
    attached_hosts: int | None = None
    """Number of hosts on which the user's own launcher started the ranks; each launch uses all of them. None
    if launches use only the hosts that they need."""


THIS_MACHINE = (HostPlace(name=""),)


def read_places(description: Mapping[str, Any]) -> tuple[HostPlace, ...]:
    """Return the hosts of a run's launches from its run.json; older versions stored them differently.

    Raises:
        RecordError: the host description is damaged.
    """
    entries = description.get("places")
    if entries is not None and not isinstance(entries, list):
        raise RecordError("places is not a list", place="run.json", next_step="It was changed or truncated")
    if entries is not None:
        return tuple(from_json(HostPlace, place, place="run.json") for place in entries)
    hosts = (description.get("fleet") or {}).get("hosts", ())
    places = (HostPlace(name=host["name"], num_devices=host.get("gpus")) for host in hosts)
    return tuple(places) or THIS_MACHINE


@dataclass(frozen=True, slots=True, kw_only=True)
class Remaining:
    """Launches that a suite still has to run, as far as known."""

    num_launches: int
    seconds: float | None = None
    basis: Literal["estimate", "limit", "plan"] = "estimate"
    """Whether `seconds` is an estimate from earlier launches, an enforced limit, or a planned budget."""
    until: str | None = None
    """Condition that must be met before launches stop, as in "5 launches or more, until …"; None if no
    further launches follow."""


@dataclass(frozen=True, slots=True)
class JsonContent:
    """The content of a JSON file; serialised only when the file is written."""

    value: Any


@dataclass(frozen=True, slots=True)
class TextContent:
    """Creates a file's text only when the file is written or another file is built from it."""

    make: Callable[[], str]


@dataclass(frozen=True, slots=True)
class PictureContent:
    """Creates a picture, but only when its file is written; returns None if there is nothing to draw.

    It may raise EnvironmentUnfitError; a note then says why there is no picture.
    """

    make: Callable[[], Picture | None]


@dataclass(frozen=True, slots=True)
class RecordingFiles:
    """Files derived from a recording: readings, summary and plot, named with the export's prefix."""

    load: Callable[[], RecordingData]
    """Loads the recording; called once it has been written."""
    metadata: Mapping[str, Any]
    """Fields added to every row."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Export:
    """A derived file of the run: its path in the run directory, and its content or its writer."""

    name: str
    content: str | TextContent | JsonContent | PictureContent | RecordingFiles | Callable[[Path], object]
    is_of_host: bool = False
    """Whether each of several hosts has a separate file, with tests in S0's format."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Conclusion:
    """The result and files that a suite derives from the evidence."""

    result: Result
    exports: tuple[Export, ...] = ()


@runtime_checkable
class Suite(Protocol):
    """A kind of run. `State` is the suite's own immutable value, on which all planning depends."""

    name: str
    summary: str
    """One-line description of what the suite measures."""
    command: str
    """The gpuproof command that runs the suite."""
    scope: Literal["each_host", "whole"]
    """How the suite runs on several hosts: once on each host, or once across all of them."""
    options: type | None
    """The dataclass for the suite's own block in the recipe; None if built-in sections are enough."""

    def answers(self, config: RunConfig) -> bool:
        """Report whether a recipe that does not specify a suite is meant for this suite."""

    def begin(self, config: RunConfig, places: Sequence[HostPlace]) -> Any:
        """Return the state before the first launch.

        Raises:
            UsageError: the recipe cannot run.
        """

    def settle(self, state: Any, launch: CaseRecords) -> Any:
        """Return the state after a launch ended, whatever its outcome."""

    def next(
        self, state: Any, running: Mapping[LaunchKey, Case], time_left_s: float | None
    ) -> Iterator[Case]:
        """Yield the launches that may start now, built lazily.

        The yielded launches are neither finished nor among `running`. The run ends when nothing is running
        and nothing is yielded.
        """

    def planned(self, state: Any) -> Iterator[Case]:
        """Yield the launches known before the first one, including those that wait for a host to be idle."""

    def remaining(self, state: Any) -> Remaining:
        """Report the remaining launches known so far, including the running ones."""

    def on_failure(self, launch: CaseRecords) -> AfterFailure:
        """Return the suite's response to a failed launch."""

    def conclude(self, evidence: Evidence) -> Conclusion:
        """Evaluate the measured results, without access to a device, framework or workload plug-in."""

    def page(self, result: Result) -> Page:
        """Lay out the result as a page."""

"""The suite interface: which launches make up a run, and how to conclude from them. Pure; starts nothing.

A suite is one folder and one entry point in the group `gpuproof.suites`. The campaign asks it for cases,
reports how each case ended, and finally has it conclude from the evidence; the renderers draw its page.
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
    """Name a launch within its run."""
    return case.case_id, case.replicate


AfterFailure = Literal["expected", "retry", "skip", "stop"]
"""What a failed launch means to its suite. expected: it is what the suite was looking for; retry: launch it
again; skip: continue with the other launches; stop: no other launch would do better."""


@dataclass(frozen=True, slots=True, kw_only=True)
class HostPlace:
    """A host that cases can be placed on; frozen in run.json."""

    name: str
    """Its name in the inventory; empty for this machine."""
    num_devices: int | None = None
    """Number of ranks that the host starts according to the inventory; None leaves it to the recipe."""
    attached_hosts: int | None = None
    """Number of hosts on which the user's own launcher started the ranks; each launch uses all of them. None
    for a place from which launches use only what they need."""


THIS_MACHINE = (HostPlace(name=""),)


def read_places(description: Mapping[str, Any]) -> tuple[HostPlace, ...]:
    """Return a run's places from its run.json; older versions recorded only the hosts.

    Raises:
        RecordError: they are damaged.
    """
    entries = description.get("places")
    if entries is not None and not isinstance(entries, list):
        raise RecordError(
            "the places are not a list", place="run.json", next_step="It was changed or truncated"
        )
    if entries is not None:
        return tuple(from_json(HostPlace, place, place="run.json") for place in entries)
    hosts = (description.get("fleet") or {}).get("hosts", ())
    places = (HostPlace(name=host["name"], num_devices=host.get("gpus")) for host in hosts)
    return tuple(places) or THIS_MACHINE


@dataclass(frozen=True, slots=True, kw_only=True)
class Remaining:
    """What a suite still has to launch, as far as it is known."""

    num_launches: int
    seconds: float | None = None
    basis: Literal["estimate", "limit", "plan"] = "estimate"
    """Whether `seconds` is an estimate from earlier launches, an enforced limit, or a planned budget."""
    until: str | None = None
    """What determines how many more launches follow, as in "5 launches or more, until …"; None if there are
    no more."""


@dataclass(frozen=True, slots=True)
class JsonContent:
    """The content of a JSON file; serialised only when the file is written."""

    value: Any


@dataclass(frozen=True, slots=True)
class TextContent:
    """Creates a file's text; called only when the file is written or another file is built from it."""

    make: Callable[[], str]


@dataclass(frozen=True, slots=True)
class PictureContent:
    """Creates a picture; called only when its file is written. Returns None if there is nothing to draw.

    It may raise EnvironmentUnfitError: a note then says why there is no picture.
    """

    make: Callable[[], Picture | None]


@dataclass(frozen=True, slots=True)
class RecordingFiles:
    """Files derived from a recording: readings, summary and picture, named with the export's prefix."""

    load: Callable[[], RecordingData]
    """Called once the recording is written."""
    metadata: Mapping[str, Any]
    """Added to every row."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Export:
    """A derived file of the run: its path in the run directory, and its content or what writes it."""

    name: str
    content: str | TextContent | JsonContent | PictureContent | RecordingFiles | Callable[[Path], object]
    is_of_host: bool = False
    """Whether each of several hosts has its own file, with tests in S0's form."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Conclusion:
    """What a suite concludes from the evidence."""

    result: Result
    exports: tuple[Export, ...] = ()


@runtime_checkable
class Suite(Protocol):
    """A kind of run. `State` is the suite's own immutable value: all that planning depends on."""

    name: str
    summary: str
    """What it measures, in one line."""
    command: str
    """The gpuproof command that runs it."""
    scope: Literal["each_host", "whole"]
    """How it runs on several hosts: once on each host, or once over all of them."""
    options: type | None
    """The dataclass for the suite's own block in the recipe; None if built-in sections are enough."""

    def answers(self, config: RunConfig) -> bool:
        """Report whether a recipe that does not specify a suite is meant for this one."""

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

        The yielded launches are neither settled nor among `running`. The run ends when nothing is running and
        nothing is yielded.
        """

    def remaining(self, state: Any) -> Remaining:
        """Report what is known to be left, including the running launches."""

    def on_failure(self, launch: CaseRecords) -> AfterFailure:
        """Return what a failed launch means to the suite."""

    def conclude(self, evidence: Evidence) -> Conclusion:
        """Judge what was measured, without access to a device, framework or workload plug-in."""

    def page(self, result: Result) -> Page:
        """Lay out the result as a page."""

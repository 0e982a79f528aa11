"""The contract of a suite: which launches a run is made of, and what they come to. Pure; it starts nothing.

A suite is one folder and one entry point of the group `gpuproof.suites`. The campaign asks it for cases,
tells it how each ended, and in the end has it conclude from the evidence; the renderers draw its page.
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
"""Case and replicate: the name of a launch within its run."""


def launch_key(case: Case) -> LaunchKey:
    """Name a launch within its run."""
    return case.case_id, case.replicate


AfterFailure = Literal["expected", "retry", "skip", "stop"]
"""What a launch that failed means to its suite: just what it looked for; to be launched again; to be left at
that, and the others go on; or that no other launch would fare better."""


@dataclass(frozen=True, slots=True, kw_only=True)
class HostPlace:
    """A host that cases can be placed on; frozen in run.json."""

    name: str
    """As the inventory calls it; empty for this machine."""
    num_devices: int | None = None
    """Ranks that the inventory says the host starts; None leaves it to the recipe."""
    attached_hosts: int | None = None
    """Hosts over which a launcher of the user's started the ranks: each launch takes all of these. None is
    a place of which launches take what they ask for."""


THIS_MACHINE = (HostPlace(name=""),)


def read_places(description: Mapping[str, Any]) -> tuple[HostPlace, ...]:
    """Return the places of a run as its run.json has them; older versions wrote down the hosts only.

    Raises:
        RecordError: they are damaged.
    """
    entries = description.get("places")
    if entries is not None and not isinstance(entries, list):
        raise RecordError("the places are no list", place="run.json", next_step="It was changed or cut")
    if entries is not None:
        return tuple(from_json(HostPlace, place, place="run.json") for place in entries)
    hosts = (description.get("fleet") or {}).get("hosts", ())
    places = (HostPlace(name=host["name"], num_devices=host.get("gpus")) for host in hosts)
    return tuple(places) or THIS_MACHINE


@dataclass(frozen=True, slots=True, kw_only=True)
class Remaining:
    """What a suite still asks for, as far as it is known."""

    num_launches: int
    seconds: float | None = None
    basis: Literal["estimate", "limit", "plan"] = "estimate"
    """Whether `seconds` is what launches took before, a limit that is kept, or what was set aside."""
    until: str | None = None
    """What decides how many more follow, as in "5 launches or more, until …"; None where these are all."""


@dataclass(frozen=True, slots=True)
class JsonContent:
    """What a file of JSON holds; written out only where the file is written."""

    value: Any


@dataclass(frozen=True, slots=True)
class TextContent:
    """What makes a file's text; called only where the file is written, or another is made of it."""

    make: Callable[[], str]


@dataclass(frozen=True, slots=True)
class PictureContent:
    """What makes a picture; called only where its file is written. None is that there is nothing to draw.

    It may raise EnvironmentUnfitError: then a note says why there is none.
    """

    make: Callable[[], Picture | None]


@dataclass(frozen=True, slots=True)
class RecordingFiles:
    """What is made of a recording: readings, summary and picture, whose names begin with the export's."""

    load: Callable[[], RecordingData]
    """Called once it is written."""
    metadata: Mapping[str, Any]
    """Of every row."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Export:
    """A derived file of the run: its name below the run directory, and what is in it, or what writes it."""

    name: str
    content: str | TextContent | JsonContent | PictureContent | RecordingFiles | Callable[[Path], object]
    is_of_host: bool = False
    """Whether on several hosts each has one of its own, with tests in S0's form."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Conclusion:
    """What a suite makes of the evidence."""

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
    """On several hosts: once on each of them, or once over all."""
    options: type | None
    """The dataclass of the recipe's block of the suite's name; None where sections of ours serve."""

    def answers(self, config: RunConfig) -> bool:
        """Say whether a recipe that names no suite asks for this one."""

    def begin(self, config: RunConfig, places: Sequence[HostPlace]) -> Any:
        """Return the state before the first launch.

        Raises:
            UsageError: the recipe cannot be run.
        """

    def settle(self, state: Any, launch: CaseRecords) -> Any:
        """Return the state after a launch ended, however it did."""

    def next(
        self, state: Any, running: Mapping[LaunchKey, Case], time_left_s: float | None
    ) -> Iterator[Case]:
        """Yield the launches that may begin now, built one by one as they are asked for.

        None of them is settled or among `running`. Where nothing runs and nothing is yielded, the run ends.
        """

    def remaining(self, state: Any) -> Remaining:
        """Say what is known to be still to do, running launches included."""

    def on_failure(self, launch: CaseRecords) -> AfterFailure:
        """Say what a launch that did not end well means."""

    def conclude(self, evidence: Evidence) -> Conclusion:
        """Judge what was measured, with no device, framework or plug-in of a workload at hand."""

    def page(self, result: Result) -> Page:
        """Lay out what the result has to say."""

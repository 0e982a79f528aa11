"""What rules and checks are asked about: measures, what hosts told of themselves, and what is expected."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal

from gpuproof.records.collected import CaseRecords
from gpuproof.records.result import Measure
from gpuproof.records.run import Environment, Setup, Start
from gpuproof.verdict.expectations import Expectations, load_expectations

if TYPE_CHECKING:  # it needs numpy, and doctor does not
    from gpuproof.readings.ports import PortsDuringLaunch
    from gpuproof.verdict.baseline import Baseline

HostFacts = Mapping[str, Any]
"""What a host told of itself, as `worker/host/environment.py` has it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ExpectedGpus:
    """How many GPUs a host should have, or a job on it."""

    number: int
    source: str
    """Who says so: an option, the inventory, or the scheduler that granted them."""
    is_granted: bool = False
    """Whether a scheduler granted them: then they have to be visible, and others of the host are not ours."""


Owner = Literal["ours", "another's", "unknown"]
"""Whose process met an event: of a rank of ours, of somebody else, or the driver does not say."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Announced:
    """Something that a driver announced of a GPU while it was recorded."""

    title: str
    """The kind of event with its code, as in `xid 79`; the name of a running total that grew."""
    growth: float = 0.0
    """Of a running total, during the launch."""
    unix_s: float | None = None
    """By the clock of its host; None of a total, and where nobody knows."""
    pid: int | None = None
    """The process that met it, where the driver says so."""
    owner: Owner = "unknown"
    """Ours, too, where no process is named and a rank of ours failed by itself on this GPU in this launch."""
    instance: str | None = None
    """Of a divided GPU, where the driver says so."""
    launch: str | None = None
    """CASE/REPLICATE beside which it was recorded."""
    kill: Literal["before", "after"] | None = None
    """Whether it came before or after ranks of this launch were ended because one hung; None: none was."""
    unheard: str | None = None
    """Why nothing could be heard during the launch, of a host by its log; then nothing was announced."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FleetFacts(Sequence[CaseRecords]):
    """All that is known of a fleet when it is judged; as a sequence, its launches.

    So checks of other packages, which are asked about launches, get what ours get.
    """

    measures: Sequence[Measure] = ()
    hosts: Mapping[str, HostFacts] = field(default_factory=dict)
    """By host name."""
    baseline: Baseline | None = None
    expectations: Expectations = field(default_factory=load_expectations)
    hosts_there: tuple[str, ...] = ()
    """Hosts that were named or on which ranks began: one that is not among `hosts` told nothing of itself."""
    expected_gpus: Mapping[str, ExpectedGpus] = field(default_factory=dict)
    """By host, where somebody says how many it should have."""
    sku: str | None = None
    """The product that each host should be (--sku); None: it is detected, and what it lacks is advisory."""
    launches: Sequence[CaseRecords] = ()
    events: Mapping[str, Sequence[Announced]] | None = None
    """What drivers announced of each GPU and host, by subject; None: nobody listened."""
    ports: Mapping[str, Sequence[PortsDuringLaunch]] = field(default_factory=dict)
    """What the ports of each host counted during each launch that was to be recorded."""
    pcie_under_load: Mapping[str, Mapping[str, float]] = field(default_factory=dict)
    """By UUID the highest `pcie_gen` and `pcie_width` that were read of a GPU under load."""

    def __len__(self) -> int:
        """Count the launches."""
        return len(self.launches)

    def __getitem__(self, place: Any) -> Any:
        """Return a launch, or a slice of them."""
        return self.launches[place]

    @property
    def all_hosts(self) -> dict[str, HostFacts | None]:
        """What each host told that should be there; None of one that told nothing."""
        return {**dict.fromkeys(self.hosts_there), **self.hosts}


def host_of(subject: str) -> str | None:
    """Name the host of a subject; None of a link and of the whole."""
    return subject.split("/")[1] if subject.startswith("host/") else None


def setups_on(launch: CaseRecords) -> list[tuple[str, Setup]]:
    """Return what each rank that began built, after the name of its host in the inventory."""
    hosts = {start.rank: launch.host_of(start) for start in launch.of(Start)}
    return [(hosts[setup.rank], setup) for setup in launch.setups if setup.rank in hosts]


def facts_by_host(launches: Sequence[CaseRecords]) -> dict[str, HostFacts]:
    """Return what hosts say of themselves, at last."""
    return {host: reports[-1] for host, reports in reports_by_host(launches).items()}


def reports_by_host(launches: Sequence[CaseRecords]) -> dict[str, list[HostFacts]]:
    """Return the facts of hosts in each launch; of two with one name in a job nobody knows whose they are."""
    reports: dict[str, list[HostFacts]] = {}
    for launch in launches:
        meant: dict[str, set[str]] = {}
        for start in launch.of(Start):
            meant.setdefault(start.host, set()).add(launch.host_of(start))
        for environment in launch.of(Environment):
            names = meant.get(environment.host) or {launch.case.placement.host or environment.host}
            if len(names) == 1:
                reports.setdefault(next(iter(names)), []).append(environment.facts)
    return reports


def gpus_of(facts: HostFacts) -> list[Mapping[str, Any]]:
    """Return the GPUs that torch saw on a host; processors are none."""
    return [device for device in facts.get("devices") or () if device.get("index") is not None]


def gpu_subjects(host: str, facts: HostFacts) -> dict[str, Mapping[str, Any]]:
    """Return each GPU of a host by its subject: its UUID, else its index."""
    return {f"host/{host}/gpu/{gpu.get('uuid') or gpu['index']}": gpu for gpu in gpus_of(facts)}

"""Input of rules and checks: measures, facts that hosts reported, and expectations."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal

from gpuproof.records.collected import CaseRecords
from gpuproof.records.result import Measure
from gpuproof.records.run import Environment, Setup, Start
from gpuproof.verdict.expectations import Expectations, load_expectations

if TYPE_CHECKING:  # this needs numpy, and doctor does not
    from gpuproof.readings.ports import PortsDuringLaunch
    from gpuproof.verdict.baseline import Baseline

HostFacts = Mapping[str, Any]
"""Facts that a host reported about itself, as in `worker/host/environment.py`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ExpectedGpus:
    """How many GPUs a host, or a job on the host, should have."""

    number: int
    source: str
    """The source: an option, the inventory, or the scheduler that granted them."""
    is_granted: bool = False
    """Whether a scheduler granted them: then they must be visible, and the host's other GPUs belong to
    others."""


Owner = Literal["ours", "another's", "unknown"]
"""Which process encountered an event: one of gpuproof's ranks, another process, or unknown."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Announced:
    """An event that a driver reported for a GPU during recording."""

    title: str
    """The kind of event with its code, e.g. `xid 79`; or the name of a running total that increased."""
    growth: float = 0.0
    """For a running total: the increase during the launch."""
    unix_s: float | None = None
    """Time according to its host's clock; None for a total, or if unknown."""
    pid: int | None = None
    """The process that encountered it, if the driver reports it."""
    owner: Owner = "unknown"
    """Owner of that process; also ours if no process is given, but one of our ranks failed on its own on this
    GPU in this launch."""
    instance: str | None = None
    """The instance of a partitioned GPU, if the driver reports it."""
    launch: str | None = None
    """The launch during which it was recorded, as CASE/REPLICATE."""
    kill: Literal["before", "after"] | None = None
    """Whether it came before or after ranks of this launch were stopped because of a hang; None if none were
    stopped."""
    unheard: str | None = None
    """Why nothing could be read during the launch (for a host: from its log); there are then no events."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FleetFacts(Sequence[CaseRecords]):
    """All data available for evaluating a fleet. As a sequence, it contains the launches.

    This gives checks from other packages, which evaluate launches, the same input as gpuproof's own checks.
    """

    measures: Sequence[Measure] = ()
    hosts: Mapping[str, HostFacts] = field(default_factory=dict)
    """Facts that each host reported, by host name."""
    baseline: Baseline | None = None
    expectations: Expectations = field(default_factory=load_expectations)
    hosts_there: tuple[str, ...] = ()
    """Hosts that were listed or on which ranks started; a host missing from `hosts` reported nothing."""
    expected_gpus: Mapping[str, ExpectedGpus] = field(default_factory=dict)
    """Expected number of GPUs per host, for hosts with a known number."""
    sku: str | None = None
    """Expected product of every host (--sku). With None, it is detected, and anything missing is advisory."""
    launches: Sequence[CaseRecords] = ()
    events: Mapping[str, Sequence[Announced]] | None = None
    """Driver reports about each GPU and host, by subject; None if events were not recorded."""
    ports: Mapping[str, Sequence[PortsDuringLaunch]] = field(default_factory=dict)
    """Port counters of each host, for each launch during which they should have been recorded."""
    pcie_under_load: Mapping[str, Mapping[str, float]] = field(default_factory=dict)
    """The highest `pcie_gen` and `pcie_width` that were read from each GPU under load, by UUID."""

    def __len__(self) -> int:
        """Count the launches."""
        return len(self.launches)

    def __getitem__(self, place: Any) -> Any:
        """Return a launch, or a slice of the launches."""
        return self.launches[place]

    @property
    def all_hosts(self) -> dict[str, HostFacts | None]:
        """Facts that each expected host reported; None for a host that reported nothing."""
        return {**dict.fromkeys(self.hosts_there), **self.hosts}


def host_of(subject: str) -> str | None:
    """Return the host of a subject; None for a link or for the whole run."""
    return subject.split("/")[1] if subject.startswith("host/") else None


def setups_on(launch: CaseRecords) -> list[tuple[str, Setup]]:
    """Return the inventory name of the host and the setup, for each rank that started."""
    hosts = {start.rank: launch.host_of(start) for start in launch.of(Start)}
    return [(hosts[setup.rank], setup) for setup in launch.setups if setup.rank in hosts]


def facts_by_host(launches: Sequence[CaseRecords]) -> dict[str, HostFacts]:
    """Return what each host last reported about itself."""
    return {host: reports[-1] for host, reports in reports_by_host(launches).items()}


def reports_by_host(launches: Sequence[CaseRecords]) -> dict[str, list[HostFacts]]:
    """Return host facts per launch; if two hosts in a job share a name, their facts are omitted."""
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


def port_rates(facts: HostFacts) -> list[float]:
    """Return the rates of a host's active InfiniBand and RoCE ports in Gb/s, fastest first.

    >>> port_rates({"infiniband": [{"state": "ACTIVE", "rate": "400 Gb/sec (4X NDR)"}]})
    [400.0]
    """
    active = [port["rate"] or "" for port in facts.get("infiniband") or () if port["state"] == "ACTIVE"]
    rates = (re.match(r"\d+(\.\d+)?", text) for text in active)
    return sorted((float(rate[0]) for rate in rates if rate), reverse=True)


def gpus_of(facts: HostFacts) -> list[Mapping[str, Any]]:
    """Return the GPUs that torch saw on a host; CPUs do not count."""
    return [device for device in facts.get("devices") or () if device.get("index") is not None]


def gpu_subjects(host: str, facts: HostFacts) -> dict[str, Mapping[str, Any]]:
    """Return each GPU of a host by its subject: its UUID, else its index."""
    return {f"host/{host}/gpu/{gpu.get('uuid') or gpu['index']}": gpu for gpu in gpus_of(facts)}

"""The parts of stages: their launches, where each launch runs, and which subject it tests.

The owner of a rank, a device or a fact is identified by the host's name in the inventory. Hosts may use
another name for themselves, and several may share a name, so ranks are identified by their position in the
job.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from gpuproof.config.models import RunConfig
from gpuproof.records.collected import CaseRecords
from gpuproof.records.run import Device, Start, is_host_failure
from gpuproof.suites.base import HostPlace
from gpuproof.suites.cases import AT, placed_name
from gpuproof.suites.validate.options import StageName
from gpuproof.verdict.facts import facts_by_host

GPU_TYPES = ("auto", "cuda", "xpu")
HOST_MEMORY = "host-memory"
"""The case that deliberately runs on the CPU, whatever else is being tested."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Site:
    """Where the validation runs."""

    places: tuple[HostPlace, ...]
    num_devices: int
    """Number of devices per host, if the inventory does not specify one."""
    devices: tuple[int, ...] | None
    """Indices of the devices used on each host; None means the first ones."""
    has_devices: bool
    """Whether each rank has its own device, rather than only the CPU."""
    has_gpus: bool = False
    """Whether these are real GPUs; False for whatever `auto` finds on hosts that are not queried
    beforehand."""

    def count_on(self, place: HostPlace) -> int:
        """Count the tested devices of a host."""
        return place.num_devices or self.num_devices


@dataclass(frozen=True, slots=True, kw_only=True)
class StageCase:
    """One launch of a stage, repeated several times."""

    name: str
    """The case's name, without its host."""
    places: tuple[HostPlace, ...]
    """Where it runs: on a single host, or on all hosts as one job."""
    ranks_per_host: int
    devices: tuple[int, ...] | None = None
    is_over_all: bool = False
    """Whether it is one job across all hosts, even if there is only one host."""
    is_of_one_device: bool = False
    """Whether its result is for a single device."""
    is_per_device: bool = False
    """Whether each of its devices works alone, so that its result applies to each."""
    values: Mapping[str, Any]
    """Recipe keys, by dotted name, that override the shared recipe."""
    labels: Mapping[str, Any] = field(default_factory=dict)
    """Additional labels for its results, besides those that every case in the stage has."""
    of_model: bool = False
    """Whether to keep the recipe's own model sections."""
    seconds: float
    """Expected duration of one launch."""
    repeats: int = 1

    @property
    def case_id(self) -> str:
        """The name of its launches, including the host if it runs on one of several hosts."""
        return self.name if self.is_over_all else placed_name(self.name, *self.places)

    @property
    def attached_hosts(self) -> int | None:
        """Number of hosts on which the user's own launcher started ranks; None if gpuproof starts them."""
        return self.places[0].attached_hosts

    @property
    def is_part_of_launch(self) -> bool:
        """Whether it uses fewer ranks than the user's own launcher starts for each launch."""
        is_attached = self.attached_hosts is not None
        return is_attached and self.ranks_per_host != self.places[0].num_devices


@dataclass(frozen=True, slots=True, kw_only=True)
class Stage:
    """Cases that run one after the other, or concurrently on several hosts."""

    name: StageName
    is_required: bool
    cases: tuple[StageCase, ...]

    @property
    def minutes(self) -> float:
        """Expected duration on one host, in minutes."""
        return seconds_of(case for case in self.cases for _ in range(case.repeats)) / 60


def seconds_of(launches: Iterable[StageCase]) -> float:
    """Return the expected duration of launches on the busiest host, since hosts run in parallel."""
    by_host: defaultdict[str, float] = defaultdict(float)
    for case in launches:
        for place in case.places:
            by_host[place.name] += case.seconds
    return max(by_host.values(), default=0.0)


def site_of(config: RunConfig, places: Sequence[HostPlace]) -> Site:
    """Return where to validate a recipe."""
    distributed = config.distributed
    return Site(
        places=tuple(places),
        num_devices=distributed.nproc,
        devices=distributed.devices,
        has_devices=distributed.device != "cpu",
        has_gpus=distributed.device in GPU_TYPES,
    )


def first_devices(site: Site, count: int) -> tuple[int, ...] | None:
    """Return the first devices of the given list; None if there is no list."""
    return None if site.devices is None else site.devices[:count]


def on_devices(
    site: Site, name: str, values: Mapping[str, Any], *, seconds: float, repeats: int, alone: bool
) -> Iterator[StageCase]:
    """Yield a launch for each single device, if requested, then one for all of a host's devices."""
    shared: dict[str, Any] = {"values": values, "seconds": seconds, "repeats": repeats}
    for place in site.places:
        count = site.count_on(place)
        indices = (site.devices or tuple(range(count)))[:count] if site.has_devices else (None,)
        for index in indices if alone or count == 1 else ():
            yield StageCase(
                name=f"{name}-one" if index is None else f"{name}-device{index}",
                places=(place,),
                ranks_per_host=1,
                devices=None if index is None else (index,),
                is_of_one_device=True,
                **shared,
            )
        if count > 1:
            devices = first_devices(site, count)
            yield StageCase(
                name=f"{name}-all",
                places=(place,),
                ranks_per_host=count,
                devices=devices,
                is_per_device=True,
                **shared,
            )


def over_all(site: Site, name: str, **fields: Any) -> StageCase:
    """Return one job across all hosts, with as many ranks on each host as the smallest has devices."""
    count = min(site.count_on(place) for place in site.places)
    devices = first_devices(site, count)
    return StageCase(
        name=name, places=site.places, ranks_per_host=count, devices=devices, is_over_all=True, **fields
    )


def begun_on(launches: Sequence[CaseRecords]) -> tuple[str, ...]:
    """Return the hosts on which ranks started, in order of first appearance."""
    hosts = (launch.host_of(start) for launch in launches for start in launch.of(Start))
    return tuple(dict.fromkeys(hosts))


def lost_of(launches: Sequence[CaseRecords]) -> dict[str, CaseRecords]:
    """Return the hosts that could not be used, each with a launch that shows why."""
    return {host: launch for launch in launches for host in lost_hosts(launch)}


def lost_hosts(launch: CaseRecords) -> frozenset[str]:
    """Return the hosts that a launch could not reach; a host that was reclaimed is not lost."""
    failure = launch.primary_failure
    if failure is not None and failure.cause == "interrupted":
        return frozenset()
    if launch.status == "done" or failure is None or launch.of(Start) or not is_host_failure(failure):
        return frozenset()
    return frozenset({failure.host} & set(launch.case.placement.hosts))


def device_subject(host: str, device: Device) -> str:
    """Return the subject of a device: by its UUID, else by its index."""
    of_cpu = "cpu-0" if device.kind == "cpu" else None
    return f"host/{host}/gpu/{device.uuid or of_cpu or device.index or 0}"


def of_devices(launches: Iterable[CaseRecords]) -> tuple[CaseRecords, ...]:
    """Omit launches that test host memory: the CPU they use is not a device being tested."""
    return tuple(x for x in launches if x.case.case_id.partition(AT)[0] != HOST_MEMORY)


def devices_by_host(launches: Sequence[CaseRecords]) -> dict[str, int]:
    """Count the devices that each host reports."""
    return {
        host: len(devices)
        for host, facts in facts_by_host(launches).items()
        if isinstance(devices := facts.get("devices"), list)
    }

"""Which subjects do a launch's results describe? `host/H`, `host/H/gpu/UUID`, `link/A>B`.

A host is identified by its inventory name if the case has one, else by its own name. A device without a
permanent identity is identified by its index; a CPU is `cpu-N`, where N is the rank's number on its host.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from gpuproof.records.case import Case
from gpuproof.records.collected import CaseRecords
from gpuproof.records.run import Device, Environment, Setup, Start, Window


@dataclass(frozen=True, slots=True, kw_only=True)
class RankSubjects:
    """The host and device of one rank, as subjects."""

    host: str
    device: str


def device_subject(host: str, device: Device, *, local_rank: int) -> str:
    """Return a device as a subject; `host` is a subject too."""
    if device.uuid is not None:
        return f"{host}/gpu/{device.uuid}"
    number = local_rank if device.index is None else device.index
    return f"{host}/gpu/{'cpu-' if device.kind == 'cpu' else ''}{number}"


def link_subject(source: str, target: str) -> str:
    """Return the link from one subject to another.

    >>> link_subject("host/a", "host/a/gpu/GPU-1")
    'link/host/a>host/a/gpu/GPU-1'
    """
    return f"link/{source}>{target}"


def device_indices(launches: Iterable[CaseRecords]) -> dict[str, int]:
    """Map each GPU's subject to its number on its host, as reported by the driver or else by torch."""
    indices: dict[str, int] = {}
    for launch in launches:
        hosts = {start.rank: launch.host_of(start) for start in launch.of(Start)}
        names = {start.host: hosts[start.rank] for start in launch.of(Start)}
        for environment in launch.of(Environment):
            host = f"host/{names.get(environment.host, environment.host)}"
            for gpu in (environment.facts.get("accelerators") or {}).get("devices") or ():
                if isinstance(index := gpu.get("physical_index"), int):
                    indices[f"{host}/gpu/{gpu.get('uuid')}"] = index
            for gpu in environment.facts.get("devices") or ():
                subject = f"{host}/gpu/{gpu.get('uuid') or gpu.get('index')}"
                indices.setdefault(subject, _listed(indices, subject, gpu.get("index") or 0))
        for setup in (one for one in launch.setups if one.rank in hosts and one.device.kind != "cpu"):
            subject = device_subject(f"host/{hosts[setup.rank]}", setup.device, local_rank=0)
            indices.setdefault(subject, _listed(indices, subject, setup.device.index or 0))
    return indices


def _listed(indices: Mapping[str, int], subject: str, index: int) -> int:
    """Return the driver's index for a device; torch may omit the `GPU-` prefix of its UUID."""
    host, _, uuid = subject.rpartition("/gpu/")
    return indices.get(f"{host}/gpu/GPU-{uuid}", index)


def subjects_of_ranks(
    case: Case, windows: Sequence[Window], setups: Sequence[Setup]
) -> tuple[RankSubjects, ...]:
    """Return the subjects of a launch's ranks in rank order, considering both windows and setups."""
    named = case.placement.hosts
    subjects, ranks_on = [], Counter[str]()
    for window, setup in zip(windows, setups, strict=True):
        place = window.rank // case.placement.ranks_per_host
        name = named[place] if len(named) == case.placement.num_hosts > place else window.host
        host = f"host/{name}"
        subjects.append(
            RankSubjects(host=host, device=device_subject(host, setup.device, local_rank=ranks_on[host]))
        )
        ranks_on[host] += 1
    return tuple(subjects)

"""Which host a rank, a device or a fact belongs to, by the name that the inventory gives it.

Hosts may call themselves otherwise than the inventory does, and several may call themselves the same: ranks
are told by their place in the job.
"""

from __future__ import annotations

from collections.abc import Sequence

from gpuproof.records.collected import CaseRecords
from gpuproof.records.run import Device, Start, is_host_failure
from gpuproof.verdict.facts import facts_by_host


def begun_on(launches: Sequence[CaseRecords]) -> tuple[str, ...]:
    """Return the hosts on which ranks began, in the order of first appearance."""
    hosts = (launch.host_of(start) for launch in launches for start in launch.of(Start))
    return tuple(dict.fromkeys(hosts))


def lost_of(launches: Sequence[CaseRecords]) -> dict[str, CaseRecords]:
    """Return the hosts that could not be used, each with a launch that says why."""
    return {host: launch for launch in launches for host in lost_hosts(launch)}


def lost_hosts(launch: CaseRecords) -> frozenset[str]:
    """Return the hosts to which a launch could not be brought; one that was taken back is not lost."""
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


def devices_by_host(launches: Sequence[CaseRecords]) -> dict[str, int]:
    """Count the devices that each host says it has."""
    return {
        host: len(devices)
        for host, facts in facts_by_host(launches).items()
        if isinstance(devices := facts.get("devices"), list)
    }

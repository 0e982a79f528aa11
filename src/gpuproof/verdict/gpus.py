"""Determine which GPUs each host should have, including those that reported nothing.

In: data reported by hosts, drivers, ranks and schedulers. Out: for each host, the GPUs that a driver lists,
that the framework saw and that ran, plus a placeholder (`host/H/gpu/missing-1`) for each GPU that is expected
but not listed. CUDA_VISIBLE_DEVICES restricts which GPUs are visible; it does not create an expectation.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from gpuproof.records.collected import CaseRecords
from gpuproof.records.readings import bare_uuid
from gpuproof.records.run import Device
from gpuproof.verdict.facts import ExpectedGpus, FleetFacts, HostFacts, gpu_subjects, setups_on

VISIBILITY = ("CUDA_VISIBLE_DEVICES", "ROCR_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES")
NUMBERED_ON_EACH_HOST = ("SIM-", "FAKE-")
"""Device names used by simulators. They are the same on every host, so they cannot be used to distinguish two
hosts."""
Listed = Mapping[str, Mapping[str, Any]]


@dataclass(frozen=True, slots=True, kw_only=True)
class HostGpus:
    """The GPUs of one host, keyed by subject."""

    host: str
    is_mute: bool
    """Whether the host reported nothing about itself."""
    expected: ExpectedGpus | None
    ran: Mapping[str, Device]
    visible: tuple[str, ...]
    """GPUs visible to the framework, or numbered for it by the driver."""
    listed: Listed
    """GPUs listed by the driver, with the facts that it reports. Instances of a partitioned GPU are included
    only if they are used."""
    divided: frozenset[str]
    """Listed GPUs with instances in use, which are therefore not tested as a whole."""
    silent: tuple[Mapping[str, Any], ...]
    """Devices whose driver does not respond."""
    num_hidden: int
    """Granted GPUs that visibility variables exclude."""

    @property
    def subjects(self) -> tuple[str, ...]:
        """The GPUs to check: those that ran or are visible, if there are as many as expected."""
        ran, used = tuple(self.ran), tuple(dict.fromkeys([*self.ran, *self.visible]))
        number = None if self.expected is None else self.expected.number
        enough = next((group for group in (ran, used) if number is not None and len(group) >= number), None)
        if enough is not None:
            return enough
        there = self.there
        missing = max(self.num_missing, (number or 0) - len(there))
        return (*there, *(f"host/{self.host}/gpu/missing-{place + 1}" for place in range(missing)))

    @property
    def there(self) -> tuple[str, ...]:
        """GPUs that ran, are visible or are listed."""
        names = dict.fromkeys([*self.ran, *self.visible])
        nameless = [
            subject for subject in self.listed if subject not in names and _is_nameless(self, subject)
        ]
        spare = len(names) - sum(subject in names for subject in self.listed)
        names |= dict.fromkeys(subject for subject in self.listed if subject not in nameless)
        names |= dict.fromkeys(nameless[max(0, spare) :])
        return tuple(name for name in names if name not in self.divided)

    @property
    def num_missing(self) -> int:
        """Count the GPUs that are granted but not visible, or expected but missing."""
        if self.expected is None or self.is_mute:
            return 0
        if self.expected.is_granted:
            used = len({*self.ran, *self.visible})
            return max(0, self.expected.number - used - (self.num_hidden if used else 0))
        unlisted = len([subject for subject in self.there if subject not in self.listed])
        return max(0, self.expected.number - len(self.there) - max(0, len(self.silent) - unlisted))

    @property
    def is_simulated(self) -> bool:
        """Whether every GPU that was used or is visible is simulated, so that no driver needs to list it."""
        has_run = bool(self.ran) or not self.visible
        return has_run and not self.is_mute and all(device.simulated for device in self.ran.values())

    @property
    def unlisted(self) -> tuple[str, ...]:
        """GPUs that were used or are visible, but are not in the driver's list."""
        used = dict.fromkeys([*self.ran, *self.visible])
        spare = sum(_is_nameless(self, subject) and subject not in used for subject in self.listed)
        return tuple(subject for subject in used if subject not in self.listed)[spare:]


def gpus_by_host(facts: FleetFacts) -> dict[str, HostGpus]:
    """Return the GPUs of every expected host."""
    ran = ran_by_host(facts.launches)
    return {
        host: _of_host(host, reported, ran.get(host, {}), facts.expected_gpus.get(host))
        for host, reported in facts.all_hosts.items()
    }


def unlisted_gpus(hosts: Collection[HostGpus]) -> list[str]:
    """Return GPUs that ran or are visible but that no driver lists; empty for a synthetic fleet."""
    if not any(gpus.listed for gpus in hosts) and all(gpus.is_simulated for gpus in hosts):
        return []
    return [subject for gpus in hosts if not gpus.is_mute for subject in gpus.unlisted]


def ran_by_host(launches: Iterable[CaseRecords]) -> dict[str, dict[str, Device]]:
    """Return, for each host, the devices that ranks computed on, keyed by subject; CPUs do not count."""
    devices: dict[str, dict[str, Device]] = {}
    for launch in launches:
        for host, setup in setups_on(launch):
            device = setup.device
            if device.kind != "cpu":
                name = f"host/{host}/gpu/{device.uuid or device.index or 0}"
                devices.setdefault(host, {})[name] = device
    return devices


def _of_host(
    host: str, reported: HostFacts | None, ran: Mapping[str, Device], expected: ExpectedGpus | None
) -> HostGpus:
    facts = reported or {}
    accelerators = facts.get("accelerators") or {}
    by_torch = gpu_subjects(host, facts)
    listed, divided = _listed(host, accelerators.get("devices") or (), by_torch, ran)
    numbered = [s for s, device in listed.items() if device.get("framework_index") is not None]
    named = _num_named(facts.get("environment") or {})
    is_narrowed = named is not None and expected is not None and expected.is_granted
    return HostGpus(
        host=host,
        is_mute=reported is None,
        expected=expected,
        ran=ran,
        visible=tuple(dict.fromkeys([*by_torch, *numbered])),
        listed=listed,
        divided=divided,
        silent=tuple(accelerators.get("silent") or ()),
        num_hidden=max(0, expected.number - (named or 0)) if is_narrowed and expected is not None else 0,
    )


def _listed(
    host: str, devices: Sequence[Mapping[str, Any]], by_torch: Listed, ran: Mapping[str, Device]
) -> tuple[dict[str, Mapping[str, Any]], frozenset[str]]:
    """Return listed devices by their names in measures, and the devices with instances in use."""
    by_index = {str(device.get("index")): subject for subject, device in by_torch.items()}
    by_uuid = {bare_uuid(subject.rpartition("/gpu/")[2]): subject for subject in [*by_torch, *ran]}
    listed: dict[str, Mapping[str, Any]] = {}
    parents: set[str] = set()
    for device in devices:
        uuid, parent = device.get("uuid"), (device.get("static") or {}).get("mig_parent_uuid")
        subject = by_index.get(str(device.get("framework_index"))) or by_uuid.get(bare_uuid(uuid or ""))
        if subject is not None or parent is None:
            listed[subject or f"host/{host}/gpu/{uuid or device.get('physical_index')}"] = device
            parents |= {parent} if parent is not None else set()
    return listed, frozenset(subject for subject, device in listed.items() if device.get("uuid") in parents)


def _is_nameless(gpus: HostGpus, subject: str) -> bool:
    """Return whether a listed device lacks an identity that could be matched with what ran."""
    device = gpus.listed[subject]
    return device.get("uuid") is None and device.get("framework_index") is None


def _num_named(environment: Mapping[str, str]) -> int | None:
    """Count the devices in the most restrictive visibility variable; None if none is set."""
    named = [len([x for x in environment[v].split(",") if x.strip()]) for v in VISIBILITY if v in environment]
    return min(named, default=None)


def doubled_uuids(gpus: Iterable[HostGpus]) -> dict[str, dict[str, list[str]]]:
    """Return, for each host, the GPU UUIDs that also occur on other hosts, with those hosts."""
    owners: dict[str, list[str]] = {}
    for host_gpus in gpus:
        identities = {
            bare_uuid(subject.rpartition("/gpu/")[2]) for subject in {*host_gpus.ran, *host_gpus.visible}
        }
        identities |= {bare_uuid(d["uuid"]) for d in host_gpus.listed.values() if d.get("uuid") is not None}
        for uuid in sorted(identities):
            if not uuid.isdecimal() and not uuid.startswith(NUMBERED_ON_EACH_HOST):
                owners.setdefault(uuid, []).append(host_gpus.host)
    doubled: dict[str, dict[str, list[str]]] = {}
    for uuid, hosts in owners.items():
        for host in hosts if len(hosts) > 1 else ():
            doubled.setdefault(host, {})[uuid] = [other for other in hosts if other != host]
    return doubled

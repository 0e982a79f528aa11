"""Are all expected GPUs present, and was each one tested? Counted from both sides, host by host.

The expected number comes from --expected-gpus or the inventory, else from the scheduler's grant, else from
the driver's list. CUDA_VISIBLE_DEVICES and --devices restrict the GPUs used, but do not change the
expectation.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from gpuproof.base.groups import grouped
from gpuproof.records.collected import CaseRecords
from gpuproof.records.outcome import Judged, Outcome, not_applicable, pass_or_fail, skipped
from gpuproof.suites.base import HostPlace
from gpuproof.suites.validate.options import ValidateOptions
from gpuproof.suites.validate.placing import begun_on, device_subject, of_devices
from gpuproof.suites.validate.plan import StageOrder
from gpuproof.verdict.baseline import stack_of
from gpuproof.verdict.checks.answers import MUTE, UNLISTED, unanswered
from gpuproof.verdict.checks.devices import MEMORY_COUNTERS
from gpuproof.verdict.facts import (
    ExpectedGpus,
    FleetFacts,
    HostFacts,
    facts_by_host,
    reports_by_host,
    setups_on,
)
from gpuproof.verdict.gpus import HostGpus, doubled_uuids, gpus_by_host, unlisted_gpus

THERE, TESTED, SAME = "every GPU is there", "every device is tested", "every launch is of the same host"
LISTED, GONE = "listed", "not listed"
DRIVERS = "what the host and its driver list"
LOOK = "Check dmesg, nvidia-smi -L and the slots; for a host with fewer GPUs, lower --expected-gpus"


def subjects_there(facts: FleetFacts) -> tuple[str, ...]:
    """Return every host and GPU that should exist, with placeholders for GPUs that are not listed.

    For workloads on CPUs, these are the hosts and the CPU of each host.
    """
    gpus = gpus_by_host(facts)
    setups = grouped(pair for launch in of_devices(facts.launches) for pair in setups_on(launch))
    parts = (
        subject
        for host in facts.all_hosts
        for subject in (
            f"host/{host}",
            *gpus[host].subjects,
            *(device_subject(host, x.device) for x in setups.get(host, ()) if x.device.kind == "cpu"),
        )
    )
    return tuple(dict.fromkeys(parts))


def facts_there(order: StageOrder, launches: Sequence[CaseRecords]) -> FleetFacts:
    """Return what hosts reported, which hosts should exist, and how many GPUs each should have."""
    places = [place for stage in order.stages for case in stage.cases for place in case.places]
    hosts, on_cpu = facts_by_host(launches), order.config.distributed.device == "cpu"
    return FleetFacts(
        hosts=hosts,
        hosts_there=hosts_there(places, launches),
        expected_gpus=_expected_gpus(places, order.options, hosts, on_cpu=on_cpu),
        sku=order.options.sku,
        launches=launches,
    )


def hosts_there(places: Sequence[HostPlace], launches: Sequence[CaseRecords]) -> tuple[str, ...]:
    """Return the hosts being validated: the given ones, or this machine once ranks have started."""
    return tuple(dict.fromkeys(place.name for place in places if place.name)) or begun_on(launches)


def _expected_gpus(
    places: Sequence[HostPlace],
    options: ValidateOptions,
    hosts: Mapping[str, HostFacts],
    *,
    on_cpu: bool,
) -> dict[str, ExpectedGpus]:
    """Return how many GPUs each host should have, if specified by option, inventory, or grant.

    If work runs on CPUs (`on_cpu`), the inventory counts ranks, and the grant is not used.
    """
    inventory = {
        place.name: ExpectedGpus(number=place.num_devices, source="the inventory")
        for place in places
        if place.num_devices is not None and place.attached_hosts is None and not on_cpu
    }
    expected: dict[str, ExpectedGpus] = {}
    for host in dict.fromkeys([*(place.name for place in places if place.name), *hosts]):
        grant = None if on_cpu else hosts.get(host, {}).get("granted_gpus")
        if options.stated_gpus is not None:
            number, key = options.stated_gpus
            expected[host] = ExpectedGpus(number=number, source=f"--{key.replace('_', '-')}")
        elif host in inventory:
            expected[host] = inventory[host]
        elif grant is not None:
            number, source = int(grant["number"]), str(grant["source"])
            expected[host] = ExpectedGpus(number=number, source=source, is_granted=True)
    return expected


def count_outcomes(facts: FleetFacts) -> Iterator[Judged]:
    """For each host, check whether its GPUs exist and are distinct, and whether each was tested."""
    gpus = gpus_by_host(facts)
    doubled = doubled_uuids(gpus.values())
    for host, of_host in gpus.items():
        for outcome in _there(of_host, doubled.get(host, {})):
            yield Judged(name=THERE, outcome=outcome)
        if not of_host.is_mute:
            yield Judged(name=TESTED, outcome=_use_outcome(of_host))
    for subject in unlisted_gpus(gpus.values()):
        yield Judged(name=THERE, outcome=unanswered(subject, UNLISTED, LOOK))
    for host, reports in reports_by_host(facts.launches).items():
        if changes := _changes(reports):
            reason = f"it reported something else in an earlier launch: {'; '.join(changes)}"
            yield Judged(name=SAME, outcome=unanswered(f"host/{host}", reason, "Measure again, in one run"))


def _changes(reports: Sequence[HostFacts]) -> list[str]:
    """Report changed versions and modes, GPUs that a host lost, and memory error counts that fell."""
    last = _state(reports[-1])
    changes: dict[str, None] = {}
    for state in (_state(report) for report in reports if report != reports[-1]):
        for name, value in state.items():
            now = last.get(name, GONE if value == LISTED else None)
            is_more = isinstance(now, (int, float)) and now > (value or 0)
            if not (value is None or now is None or now == value or is_more):
                changes[f"{name} {value}, now {now}"] = None
    return list(changes)


def _state(facts: HostFacts) -> dict[str, Any]:
    """Return what must not change on a host during measurement, and counters that can only grow."""
    state: dict[str, Any] = {**stack_of({"": facts}), "gpu": None}
    for device in (facts.get("accelerators") or {}).get("devices") or ():
        name = f"GPU {device.get('uuid') or device.get('physical_index')}"
        state[name] = LISTED
        counters = device.get("state") or {}
        state |= {f"{counter} of {name}": counters.get(counter) for counter in MEMORY_COUNTERS}
    return state


def _there(gpus: HostGpus, doubled: Mapping[str, Sequence[str]]) -> Iterator[Outcome]:
    subject, there = f"host/{gpus.host}", gpus.there
    if gpus.is_mute:
        yield unanswered(subject, MUTE, "Run it again; check the host's rank-N.jsonl")
        return
    if gpus.silent:
        names = ", ".join(f"{device.get('vendor')} {device.get('pci_bus_id')}" for device in gpus.silent)
        reason = f"the driver of {names} does not respond: {gpus.silent[0].get('reason')}"
        yield unanswered(subject, reason, "Check dmesg; reset the GPU or the host")
    for uuid, others in doubled.items():
        reason = f"{', '.join(others)} {'has' if len(others) == 1 else 'have'} the same GPU {uuid}"
        step = "List each machine only once (--on): two names for one machine count as one host"
        yield unanswered(
            subject,
            f"{reason}: either they are the same machine, or one of them reports another's GPU",
            step,
        )
    if gpus.num_missing or not (gpus.silent or doubled):
        yield _count_outcome(gpus, there)


def _count_outcome(gpus: HostGpus, there: Sequence[str]) -> Outcome:
    subject, expected = f"host/{gpus.host}", gpus.expected
    if expected is None:
        if not there:
            return not_applicable("no driver lists a GPU here, and none is expected", subject)
        return pass_or_fail(
            subject, True, _gpus(len(there)), expected="those listed", source=DRIVERS, next_step=LOOK
        )
    visible = len({*gpus.ran, *gpus.visible})
    seen = f"{_gpus(visible)} visible" if expected.is_granted else f"{_gpus(len(there))} there"
    return pass_or_fail(
        subject,
        not gpus.num_missing,
        seen if not gpus.num_missing else f"{seen}: {gpus.num_missing} missing",
        expected=_gpus(expected.number),
        source=expected.source,
        next_step=LOOK,
    )


def _gpus(number: int) -> str:
    return f"{number} GPU" if number == 1 else f"{number} GPUs"


def _use_outcome(gpus: HostGpus) -> Outcome:
    """Compare the devices that were used with those that should have been."""
    subject = f"host/{gpus.host}"
    testable = [device for device in gpus.subjects if device in gpus.there]
    if not testable:
        return not_applicable("the host reports that it has no device", subject)
    used = [device for device in testable if device in gpus.ran]
    if len(used) < len(testable):
        return skipped(
            f"{len(used)} of {len(testable)} devices were used; the others were not tested",
            "Test all of them: --nproc, no --devices or CUDA_VISIBLE_DEVICES; or set how many "
            f"there should be: --expected-gpus {len(used)}",
            subject,
            responsible="user",
        )
    return pass_or_fail(
        subject,
        True,
        f"{len(used)} {'device was' if len(used) == 1 else 'devices were'} used",
        expected=f"all {len(testable)} that should be tested",
        source=DRIVERS if gpus.expected is None else gpus.expected.source,
        next_step=None,
    )

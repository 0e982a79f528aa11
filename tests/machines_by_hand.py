"""Whole machines by hand: launches for every stage of a shipped recipe, on hosts of which nothing is wrong.

What is wrong with a machine is a `Faults`: everything of a kind at once, so that each cell of it has to fail.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import permutations
from pathlib import Path
from typing import Any

from collectives_by_hand import trial, window_of_repeats
from fleet_by_hand import host_facts
from gpuproof.campaign.conclude import read_evidence
from gpuproof.config.models import RunConfig
from gpuproof.readings.evidence import Evidence
from gpuproof.records.case import Case, CollectiveWork, ProbeWork
from gpuproof.records.collected import CaseRecords
from gpuproof.records.readings import Sample
from gpuproof.records.run import Device, Environment, RankResult, Setup, Start, Window
from gpuproof.records.what_ran import Connections
from gpuproof.records.work.probe import ProbeReading
from gpuproof.suites.base import HostPlace
from gpuproof.suites.validate import SUITE
from probes_by_hand import copies, digest
from recordings import end, header, identity, write
from records_by_hand import H200, of_own_launch, result, setup, start
from validation_by_hand import STEP_S, device, done, written

MEMORY_BYTES = 3e10
"""Of a step of the memory stage: in 10 ms what a healthy H200 does."""


@dataclass(frozen=True, kw_only=True)
class Faults:
    """What is wrong with all devices, hosts and links of a machine."""

    slower: float = 1.0
    """How many times as long everything takes, …"""
    slower_together: float = 1.0
    """… and jobs of several ranks besides."""
    are_values_wrong: bool = False
    gpu: Mapping[str, Any] = field(default_factory=dict)
    """What the driver tells of the state of each GPU."""
    host: Mapping[str, Any] = field(default_factory=dict)
    """What each host tells of itself."""


HEALTHY = Faults()


def machine(folder: Path, config: RunConfig, places: Sequence[HostPlace], faults: Faults) -> Evidence:
    """Validate a machine by a recipe; return the evidence that it leaves."""
    state, launches = SUITE.begin(config, tuple(places)), []
    while (case := next(SUITE.next(state, {}, None), None)) is not None:
        launches.append(_launch(case, int(places[0].num_devices or 1), faults))
        state = SUITE.settle(state, launches[-1])
    run = written(folder, launches, config)
    described = {key: value for key, value in run.description().items() if key != "schema_version"}
    names = [{"name": place.name, "num_devices": place.num_devices} for place in places]
    run.write_description({**described, "places": names})
    for launch in launches:
        for host in _hosts(launch.case):
            _record(run.recording_at(launch.case, host), launch, host, int(places[0].num_devices or 1))
    return read_evidence(run)


def _record(path: Path, launch: CaseRecords, host: str, num_devices: int) -> None:
    """Write what was read beside a launch, second by second: the driver announced nothing."""
    devices = [identity(i, uuid=device(i, host).uuid, name=H200.name) for i in range(num_devices)]
    begin_s, end_s = 40.0, max(window.end_monotonic_s for window in launch.windows) + 1
    times_s = [begin_s + second for second in range(int(end_s - begin_s) + 2)]
    samples = [Sample(monotonic_s=at, unix_s=at, lane="fast", devices={}, host={}) for at in times_s]
    ended = replace(end(0, samples=len(samples)), monotonic_s=times_s[-1], unix_s=times_s[-1])
    write(path, [header(devices, host=host, monotonic_s=begin_s, unix_s=begin_s), *samples, ended])


def _launch(case: Case, num_devices: int, faults: Faults) -> CaseRecords:
    if isinstance(case.work, ProbeWork):
        found = _of_figures(case, list(_probe_figures(case, num_devices, faults)))
    elif isinstance(case.work, CollectiveWork):
        found = _of_figures(case, [*_trials(case, faults)])
    else:
        found = _of_model(case, faults)
    facts = [_facts(host, num_devices, faults) for host in _hosts(case)]
    others = (record for record in found.records if not isinstance(record, Environment))
    here = (_at_home(case, record) if isinstance(record, Start | Window) else record for record in others)
    ranks = range(case.placement.num_ranks) if len(_hosts(case)) > 1 else ()
    quiet = (Connections(rank=rank, connections=(), missing=None) for rank in ranks)
    return replace(found, records=(*here, *quiet, *facts))


def _hosts(case: Case) -> tuple[str, ...]:
    return case.placement.hosts or (case.placement.host or "node1",)


def _place(case: Case, rank: int) -> tuple[str, Device]:
    """Return host and device of a rank."""
    each = max(1, case.placement.ranks_per_host)
    host, index = _hosts(case)[rank // each], (case.placement.devices or tuple(range(each)))[rank % each]
    return host, device(index, host)


def _at_home(case: Case, record: Start | Window) -> Start | Window:
    """Return what a rank wrote, on the host that it was placed on."""
    host, each = _place(case, record.rank)[0], max(1, case.placement.ranks_per_host)
    if isinstance(record, Window):
        return replace(record, host=host)
    return replace(record, host=host, local_rank=record.rank % each, local_world_size=each)


def _facts(host: str, num_devices: int, faults: Faults) -> Environment:
    """Return what a host tells, whose GPUs are those of the launches."""
    told = host_facts(host, gpus=num_devices, name=H200.name, **faults.host)
    for gpu in told["accelerators"]["devices"]:
        gpu["state"] = {**gpu["state"], **faults.gpu}
    names = json.dumps(told).replace(f"GPU-{host}-", "GPU-" if host == "node1" else f"{host}-")
    return Environment(host=host, facts=json.loads(names))


def _slower(case: Case, faults: Faults) -> float:
    return faults.slower * (faults.slower_together if case.placement.num_ranks > 1 else 1.0)


def _of_model(case: Case, faults: Faults) -> CaseRecords:
    found = done(case, step_s=STEP_S * _slower(case, faults))
    name = case.model_work.model.name
    records: list[Any] = []
    for record in found.records:
        if isinstance(record, Setup) and name == "memory":
            records.append(replace(record, flops_per_step=None, bytes_per_step=MEMORY_BYTES))
        elif isinstance(record, Setup) and record.precision == "tf32" and record.options is not None:
            records.append(replace(record, options=replace(record.options, tf32="on")))
        elif isinstance(record, RankResult) and faults.are_values_wrong:
            records.append(replace(record, last_loss=None))
        else:
            records.append(record)
    if name == "gemm":
        records += [_compared(rank, faults, "gemm") for rank in range(case.placement.num_ranks)]
    return replace(found, records=tuple(records))


def _of_figures(case: Case, figures: Sequence[Any]) -> CaseRecords:
    """A launch without a model that ended well."""
    ranks = range(case.placement.num_ranks)
    item = "operations" if isinstance(case.work, CollectiveWork) else "repeats"
    records = (
        *(start(rank, world_size=len(ranks)) for rank in ranks),
        *(setup(rank, device=_place(case, rank)[1], item=item, precision="link") for rank in ranks),
        *figures,
        *(window_of_repeats(rank, figures) for rank in ranks),
        *(result(rank) for rank in ranks),
    )
    return CaseRecords(case=case, records=of_own_launch(records))


def _trials(case: Case, faults: Faults) -> Iterator[Any]:
    assert isinstance(case.work, CollectiveWork)
    for operation in case.work.collective.operations:
        for rank in range(case.placement.num_ranks):
            whole = trial(rank, operation, num_wrong=int(faults.are_values_wrong))
            times_s = tuple(time_s * _slower(case, faults) for time_s in whole.durations_s)
            yield replace(whole, durations_s=times_s)


def _probe_figures(case: Case, num_devices: int, faults: Faults) -> Iterator[ProbeReading]:
    assert isinstance(case.work, ProbeWork)
    name = case.work.probe.name
    if name == "link":
        yield from _copies(_hosts(case)[0], num_devices, faults)
    for rank in range(case.placement.num_ranks) if name != "link" else ():
        if name == "fingerprint":
            yield from (digest(rank, "same", round_number=number) for number in range(3))
            yield _compared(rank, faults, "gemm")
        elif name == "pattern":
            yield _compared(rank, faults, "a")
        elif name == "nccl_tests":
            yield ProbeReading(
                rank=rank,
                quantity="bus bandwidth",
                unit="B/s",
                is_of_host=True,
                missing="all_reduce_perf is not on PATH",
                is_inapplicable=True,
            )
        else:
            yield ProbeReading(
                rank=rank, quantity="time", unit="s", labels={"of": "both"}, durations_s=(0.01,) * 20
            )


def _compared(rank: int, faults: Faults, pattern: str) -> ProbeReading:
    labels, value = {"pattern": pattern}, float(faults.are_values_wrong)
    return ProbeReading(rank=rank, quantity="wrong values", unit="1", labels=labels, value=value)


def _copies(host: str, num_devices: int, faults: Faults) -> Iterator[ProbeReading]:
    """Yield the copies between a host and each of its devices, and between devices, and what they left."""
    devices = [device(index, host) for index in range(num_devices)]
    ways: list[tuple[str, Device | None, Device | None]] = [("h2d", None, one) for one in devices]
    ways += [("d2h", one, None) for one in devices]
    ways += [("d2d", one, other) for one, other in permutations(devices, 2)]
    for kind, source, target in ways:
        whole = copies(source=source, target=target)
        times_s = tuple(time_s * faults.slower for time_s in whole.durations_s)
        yield replace(whole, labels={**whole.labels, "kind": kind}, durations_s=times_s)
        yield replace(_compared(0, faults, kind), source=source, target=target)

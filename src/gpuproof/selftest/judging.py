"""Evaluate a fleet with or without a fault: written, read back, checked like any validation run."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import count
from pathlib import Path
from shutil import copyfile
from typing import Any

from gpuproof.campaign.campaign import create_run
from gpuproof.campaign.conclude import read_evidence
from gpuproof.config.models import RunConfig
from gpuproof.readings.evidence import Evidence
from gpuproof.records.case import Case
from gpuproof.records.codec import from_json
from gpuproof.records.collected import CaseRecords
from gpuproof.records.outcome import Judged
from gpuproof.selftest.fleet import (
    LINK_BYTES_PER_S,
    OPERATION_S,
    PRODUCTS_FLOPS_PER_S,
    STEP_S,
    Fleet,
    Planted,
)
from gpuproof.selftest.launch_records import records_of, write_launch
from gpuproof.store.layout import recording_name
from gpuproof.store.run import RunDirectory, read_case
from gpuproof.suites.base import HostPlace
from gpuproof.suites.validate import SUITE
from gpuproof.suites.validate.suspicion import blame_hosts
from gpuproof.verdict.blame.findings import blamed

TOLERANCE = 0.03
"""Tolerance for the floors: ten times the scatter of step times, and a tenth of the planted slowdown."""
BATCH_SIZE = 8
COLLECTIVE_BYTES = 2**24
ONE_SIZE = {"min_bytes": COLLECTIVE_BYTES, "max_bytes": COLLECTIVE_BYTES}
EDGE = 4096
CHECKS = (
    *("same driver", "same torch", "same NCCL", "clocks", "memory health", "clock policy", "all ranks"),
    *("backend", "lost packets"),
)
"""Environment checks that run on every fleet, in addition to the suite's own."""
_LINKS = {"measure": "bus bandwidth", "labels": {"stage": "collective"}}
_TRAINING = {"measure": "throughput", "labels": {"case": "training"}}
_STATE = ("memory health", "clock policy", "all ranks")
ASPECTS: tuple[Mapping[str, Any], ...] = (
    {"aspect": "compute", "title": "a GPU", "measure": "throughput", "labels": {"stage": "gemm"}},
    {"aspect": "collectives", "each": "whole", "needs": "hosts", "title": "an all-reduce", **_LINKS},
    {"aspect": "training", "each": "whole", "title": "training", **_TRAINING},
    {"aspect": "state", "title": "the state of a GPU", "checks": _STATE},
    {"aspect": "state", "each": "host", "title": "the state of a host", "checks": ("clocks", "lost packets")},
)
"""Requirements for READY on a made-up fleet, covering everything that is measured on it."""
FIGURES = ("matrix products are fast", "training is fast", "collectives are fast")
HOSTS = tuple(f"node{number}" for number in range(1, 7))
NOISE, SLOWDOWN = 0.01, 0.1
HARMLESS: tuple[Mapping[str, Any], ...] = (
    {"code": 31, "gpus": ["GPU-node1-0"], "times": 3, "pids": [4242]},
    {"code": 13, "gpus": ["GPU-node2-0"]},
    {"code": 45, "times": 40, "at_s": 12.0},
)
"""XIDs that occur on healthy fleets: from a user's process, from an unknown process, and from a job that ends
on all hosts."""
SAID = ("PASS", "NOT-APPLICABLE")
"""Outcomes that do not count against the fleet."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Turned:
    """A verdict word, and all the reasons why it is not better."""

    word: str
    against: tuple[str, ...]


def judge_fleet(
    fleet: Fleet,
    folder: Path,
    *,
    recordings: Sequence[Path] = (),
    rules: Sequence[Mapping[str, Any]] = (),
    checks: Sequence[str] = (),
    more_rules: str | None = None,
    **options: Any,
) -> Turned:
    """Write a run of a fleet, read it back, and evaluate it with the suite, these `rules` and checks.

    `recordings` contains each host's readings during the first launch, the second, and so on; the last
    recording is used for all further launches. `more_rules` is an additional rules file; `options` are passed
    to `recipe`.

    Raises:
        UsageError: `more_rules` cannot be evaluated, regardless of the measured values.
    """
    check_rules = [{"check": name} for name in (*CHECKS, *checks)]
    if more_rules is not None:
        options |= {"file_rules": more_rules, "file_source": "rules.yaml"}
    evidence = write_fleet(fleet, folder, recordings=recordings, rules=[*rules, *check_rules], **options)
    result = SUITE.conclude(evidence).result
    torn = [f"{launch.case.case_id}: {note}" for launch in evidence.launches for note in launch.torn]
    return turned(result.outcomes, result.detail["readiness"], notes=torn)


def turned(judged: Sequence[Judged], readiness: Mapping[str, Any], *, notes: Sequence[str] = ()) -> Turned:
    """Return the uncapped verdict word, and the reasons why it is not better, required checks first."""
    open_ = sorted((x for x in judged if x.outcome.status not in SAID), key=lambda x: not x.is_required)
    reasons = (reason for reason in readiness["reasons"] if reason != readiness.get("capped"))
    return Turned(word=readiness["uncapped"], against=(*map(objection, open_), *reasons, *notes))


def objection(item: Judged) -> str:
    """Format an outcome other than PASS as one line."""
    outcome = item.outcome
    return f"{item.name} {outcome.status}, {outcome.subject}: {outcome.measured or outcome.reason}"


def write_fleet(
    fleet: Fleet,
    folder: Path,
    *,
    recordings: Sequence[Path] = (),
    rules: Sequence[Mapping[str, Any]] = (),
    **options: Any,
) -> Evidence:
    """Simulate all launches that the suite requests on a made-up fleet; return the evidence."""
    config = recipe(
        fleet, folder, rules=rules, is_read=bool(recordings) or fleet.planted.xids is not None, **options
    )
    number = fleet.num_devices if fleet.is_counted else None
    places = tuple(HostPlace(name=host, num_devices=number) for host in fleet.hosts)
    begun = count()
    run = create_run(config, origins={}, source="selftest", places=places)
    state = SUITE.begin(config, places)
    while (case := next(iter(SUITE.next(state, {}, None)), None)) is not None:
        if case.case_id == fleet.planted.stops_before:
            break
        beside = recordings[min(next(begun), len(recordings) - 1)] if recordings else None
        state = SUITE.settle(state, _launched(fleet, case, run, beside))
    return read_evidence(run)


def _launched(fleet: Fleet, case: Case, run: RunDirectory, recording: Path | None) -> Any:
    folder = run.begin_case(case)
    write_launch(fleet, case, folder)
    if recording is not None:
        for host in case.placement.hosts:
            copyfile(recording, folder / recording_name(host))
    return read_case(folder)


def recipe(
    fleet: Fleet,
    folder: Path,
    *,
    rules: Sequence[Mapping[str, Any]],
    is_read: bool,
    figures: Collection[str] = FIGURES,
    **options: Any,
) -> RunConfig:
    """Return the recipe for validating a fleet: GEMMs, one collective, training.

    `figures` lists the floors to use; `options` are the suite's options.
    """
    floors = value_rules(fleet, at_once=not options.get("alone", True))
    validate = {
        "stages": ["gemm", "collective", "training"],
        "blame": "never",  # the search runs separately: see judge_links
        "gemm_size": EDGE,
        "gemm_precisions": ["bf16"],
        "collective": {"operations": ["all_reduce"], **ONE_SIZE},
        "aspects": ASPECTS,
        "rules": [*(rule for rule in floors if rule["name"] in figures), *rules],
        **options,
    }
    return RunConfig.model_validate(
        {
            "suite": "validate",
            "model": {"name": "medium"},
            "data": {"name": "synthetic", "batch_size": BATCH_SIZE},
            "training": {"precision": "fp32"},
            "benchmark": {"measure_by": "steps", "measure_steps": 120},
            "monitoring": {"enabled": is_read},
            "distributed": {"nproc": fleet.num_devices},
            "run": {"save_dir": str(folder), "run_id": "selftest", "commit_hash": None, "repeats": 1},
            "validate": validate,
        }
    )


def value_rules(fleet: Fleet, *, at_once: bool = False) -> list[dict[str, Any]]:
    """Return floors from the fleet's healthy GPUs, measured one at a time or all of a host at once."""
    num_ranks = len(fleet.hosts) * fleet.num_devices
    size_s = OPERATION_S + COLLECTIVE_BYTES / LINK_BYTES_PER_S
    moved = 2 * (num_ranks - 1) / num_ranks * COLLECTIVE_BYTES / size_s
    over = {"quantity": "bus bandwidth"}
    products = {"workload": "gemm", "at_once": at_once, "m": EDGE}
    samples_per_s = num_ranks * BATCH_SIZE / STEP_S
    among = "whole" if len(fleet.hosts) > 1 else "host"
    return [
        floor(FIGURES[0], "gpu", "throughput", products, (PRODUCTS_FLOPS_PER_S, "FLOP/s")),
        floor(FIGURES[1], "whole", "throughput", {"case": "training"}, (samples_per_s, "samples/s")),
        floor(FIGURES[2], among, "bus bandwidth", over, (moved, "B/s")),
    ]


def floor(
    name: str, kind: str, measure: str, labels: Mapping[str, Any], healthy: tuple[float, str]
) -> dict[str, Any]:
    """Return a rule that requires values at least as good as the healthy value, given with its unit."""
    return {
        "name": name,
        "each": kind,
        "measure": {"name": measure, "labels": dict(labels)},
        "expect": {"at_least": healthy[0], "unit": healthy[1]},
        "tolerance": TOLERANCE,
        "contract": True,
    }


def judge_links(folder: Path, seed: int, *, slow: Sequence[str] = ()) -> Turned:
    """Check six hosts that may have one slow link between two of them; if not READY, search for it."""
    fleet = Fleet(hosts=HOSTS, num_devices=1, seed=seed, planted=Planted(slow_link=tuple(slow)))
    judged = judge_fleet(fleet, folder)
    if judged.word == "READY":
        return judged
    places = [HostPlace(name=host, num_devices=1) for host in HOSTS]
    search = blame_hosts(_tests(), places, noise=NOISE, slowdown=SLOWDOWN)
    while not search.is_over:
        for case in list(search.next(())):
            search = search.settle(CaseRecords(case=case, records=tuple(records_of(fleet, case))))
    named = (f"{who.subject}: {who.evidence}" for who in blamed(search.search.findings()))
    return Turned(word=judged.word, against=(*judged.against, *named))


def judge_events(folder: Path, seed: int, *, hung: int | None = None, **xids: Any) -> Turned:
    """Evaluate a fleet with the XIDs that applications cause on healthy fleets, plus `PlantedXids`.

    The XIDs apply to the last GPU unless they specify other GPUs; `hung` is a training rank that hangs and is
    stopped.
    """
    fleet = Fleet(seed=seed)
    every = [fleet.uuid_of(host, index) for host in fleet.hosts for index in range(fleet.num_devices)]
    rows = [{"gpus": every, **row} for row in HARMLESS]
    if xids:
        rows.append({"gpus": every[-1:], **xids, **({"gpus": every} if xids.get("gpus") == "all" else {})})
    planted = from_json(Planted, {"hung": hung, "xids": rows})
    return judge_fleet(replace(fleet, planted=planted), folder, checks=["xid"])


def _tests() -> RunConfig:
    """Return the recipe for testing groups: one operation at one size, from each rank to every rank."""
    work = {"kind": "collective", "collective": {"operations": ["all_to_all"], **ONE_SIZE}}
    return RunConfig.model_validate({**work, "distributed": {"nproc": 1}})

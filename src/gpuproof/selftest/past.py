"""Faults that only a fleet's own past shows: devices and hosts that became slower by a few per cent.

Healthy fleets are measured on some days and recorded as a baseline; on another day the same fleet is held
against it, GPU by GPU, and against its peers. Days differ by 0.5 %, as `launch_records` has it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from functools import lru_cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from gpuproof import __version__
from gpuproof.processes.scratch import scratch_folder
from gpuproof.records.codec import to_json
from gpuproof.selftest.fleet import Fleet, with_fault
from gpuproof.selftest.judging import EDGE, FIGURES, Turned, judge_fleet, write_fleet
from gpuproof.suites.validate import SUITE
from gpuproof.verdict.baseline import RunFigures, record_baseline, stack_of
from gpuproof.verdict.facts import facts_by_host

DAYS = 5
PRODUCTS = {
    "each": "gpu",
    "measure": {"name": "throughput", "labels": {"workload": "gemm", "at_once": False, "m": EDGE}},
}
RULES: tuple[Mapping[str, Any], ...] = (
    {"name": "products as before", **PRODUCTS, "expect": {"baseline": "measured"}},
    {"name": "products alike", **PRODUCTS, "expect": {"peers": True}},
)
PER_HOST = 8


def judge_past(
    folder: Path, seed: int, *, num_hosts: int = 1, num_slow: int = 0, slower_percent: float = 0.0
) -> Turned:
    """Judge a fleet by its past, after the last devices of its last host lost so much of their rate."""
    fleet = _fleet(num_hosts, seed)
    slow = [fleet.uuid_of(fleet.hosts[-1], PER_HOST - 1 - place) for place in range(num_slow)]
    today = with_fault(replace(fleet, day=0), slower=dict.fromkeys(slow, 1 / (1 - slower_percent / 100)))
    return judge_fleet(today, folder, rules=RULES, figures=FIGURES[1:], baseline=_past(num_hosts, seed))


def _fleet(num_hosts: int, seed: int) -> Fleet:
    hosts = tuple(f"node{number + 1}" for number in range(num_hosts))
    return Fleet(hosts=hosts, num_devices=PER_HOST, seed=seed)


@lru_cache(maxsize=4)
def _past(num_hosts: int, seed: int) -> Any:
    """Return the baseline of a healthy fleet, as JSON; faults of one fleet share it."""
    healthy = _fleet(num_hosts, seed)
    runs = []
    for day in range(1, DAYS + 1):
        with scratch_folder("past-") as scratch, TemporaryDirectory(dir=scratch) as folder:
            evidence = write_fleet(replace(healthy, day=day), Path(folder), figures=FIGURES[1:])
            stack = stack_of(facts_by_host(evidence.launches))
            result = SUITE.conclude(evidence).result
        name = f"day-{day}"
        runs.append(RunFigures(run_id=name, measures=result.measures, stack=stack, day=f"2026-11-0{day}"))
    return to_json(record_baseline("own", runs, recorded="2026-11-06", gpuproof_version=__version__))

"""The memory of hosts as a stage: by all CPUs, compared between hosts, and no device under test."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from concluding import text_of
from gpuproof.campaign.conclude import Concluded, conclude
from gpuproof.config.models import RunConfig
from gpuproof.records.case import Case
from gpuproof.records.collected import CaseRecords
from gpuproof.records.run import Environment
from gpuproof.store.run import RunDirectory
from gpuproof.suites.base import HostPlace
from planning import HERE
from records_by_hand import CPU
from validation_by_hand import FLOOR, STEP_S, done, recipe, walk, written

ALIKE = "memory of each host, alike"
RULE: dict[str, Any] = {
    **{"name": ALIKE, "required": False, "each": "host", "expect": {"peers": True}},
    "measure": {"name": "host memory bandwidth", "labels": {"stage": "host_memory"}},
}
HOSTS = tuple(HostPlace(name=name, num_devices=2) for name in "abcdef")


def config(*stages: str) -> RunConfig:
    return recipe(
        distributed={"nproc": 2, "threads_per_rank": 1},
        validate={"stages": stages, "rules": [FLOOR, RULE]},
    )


def on_cpu(case: Case, *, slow: str = "") -> CaseRecords:
    """The host's memory does 1 GB in 10 ms, and that of a slow host in 20; other work is on GPUs."""
    if not case.case_id.startswith("host-memory"):
        return done(case)
    found = done(case, step_s=STEP_S * (2 if case.placement.host == slow else 1))
    kept = [x for x in found.records if not isinstance(x, Environment)]
    cpu = {"device": CPU, "bytes_per_step": 1e9, "flops_per_step": None, "threads": 64}
    return replace(found, records=tuple(replace(x, **cpu) if x in found.setups else x for x in kept))


def run_of(folder: Path, places: Sequence[HostPlace], *stages: str, slow: str = "") -> Concluded:
    launches = walk(config(*stages), places, lambda case: on_cpu(case, slow=slow))
    run: RunDirectory = written(folder, launches, config(*stages))
    described = {key: value for key, value in run.description().items() if key != "schema_version"}
    run.write_description({**described, "places": [{"name": p.name, "num_devices": 2} for p in places]})
    return conclude(run)


def test_one_rank_a_host_takes_all_cpus_and_leaves_the_description_of_the_host_to_others() -> None:
    cases = [launch.case for launch in walk(config("host_memory", "training"), HOSTS[:2], on_cpu)]
    host_a, host_b = cases[:2]
    assert (host_a.case_id, host_b.case_id) == ("host-memory@a", "host-memory@b")
    assert (host_a.placement.device, host_a.placement.num_ranks, host_a.capture_env) == ("cpu", 1, False)
    assert host_a.work.parallel.threads_per_rank is None
    assert host_a.model_work.model.options["buffer_bytes"] == 2**31
    assert {case.placement.device for case in cases[2:]} == {"auto"}
    (alone,) = (launch.case for launch in walk(config("host_memory"), HERE, on_cpu))
    assert alone.capture_env


def test_a_single_host_is_reported_and_its_cpu_takes_nothing_from_ready(tmp_path: Path) -> None:
    found = run_of(tmp_path, HERE, "host_memory", "training")
    (measure,) = [m for m in found.result.measures if m.labels.get("stage") == "host_memory"]
    assert (measure.name, measure.subject, measure.unit) == ("host memory bandwidth", "host/node1", "B/s")
    assert measure.value == pytest.approx(1e11)
    assert measure.detail.endswith("threads: 64")
    assert found.result.verdict == "READY", text_of(found)
    (alike,) = [x for x in found.result.outcomes if x.name == ALIKE]
    assert (alike.outcome.status, alike.is_required) == ("NOT-APPLICABLE", False)
    assert found.page.title == "validation of node1, NVIDIA H200"
    assert "advisory: host memory bandwidth 100 GB/s" in text_of(found)


def test_hosts_are_compared_with_each_other_and_a_slow_one_is_advice(tmp_path: Path) -> None:
    found = run_of(tmp_path, HOSTS, "host_memory", slow="c")
    alike = [x for x in found.result.outcomes if x.name == ALIKE]
    assert {x.outcome.subject: x.outcome.status for x in alike} == {
        **dict.fromkeys([f"host/{name}" for name in "abdef"], "PASS"),
        "host/c": "WARN",
    }
    assert not any(x.is_required for x in alike)


def test_where_nothing_else_was_tested_no_gpu_was(tmp_path: Path) -> None:
    found = run_of(tmp_path, HERE, "host_memory")
    assert found.result.verdict == "INCONCLUSIVE"
    assert found.result.conditions["is_capped"]
    assert "no GPU was tested" in text_of(found)

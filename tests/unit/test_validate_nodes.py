"""Spares: on which of more hosts than are needed to run."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from concluding import words_of
from gpuproof.base.errors import ExitCode, UsageError
from gpuproof.campaign.conclude import Concluded, conclude
from gpuproof.config.inventory import load_inventory
from gpuproof.launchers.slurm.options import load_slurm_options
from gpuproof.records.case import Case
from gpuproof.records.collected import CaseRecords
from gpuproof.suites.base import HostPlace
from gpuproof.suites.validate import SUITE
from records_by_hand import failure, start
from validation_by_hand import STEP_S, done, recipe, walk, written

HOSTS = tuple(HostPlace(name=name, num_devices=2) for name in "abcd")
SSH = {
    "hosts": [
        {"name": name, "address": f"198.18.7.{i}", "place": "x:1", "port": 22, "user": "u", "key": None}
        for i, name in enumerate("abcd")
    ],
    "currency": "USD",
}
FAST: dict[str, Any] = {
    "name": "products are fast",
    "each": "gpu",
    "measure": {"name": "throughput", "labels": {"stage": "gemm"}},
    "expect": {"at_least": 6.5e14, "unit": "FLOP/s"},
    "contract": True,
}
PRODUCTS = {"aspect": "compute", "title": "a GPU", "measure": "throughput", "labels": {"stage": "gemm"}}


def concluded(
    folder: Path, end: Callable[[Case], CaseRecords] = done, *, spares: int, **told: Any
) -> Concluded:
    options = {"stages": ["gemm"], "gemm_size": 2048, "rules": [FAST], "aspects": [PRODUCTS]}
    options["spares"] = spares
    config = recipe(validate=options, distributed={"nproc": 2})
    run = written(folder, walk(config, HOSTS, end), config)
    described = {key: value for key, value in run.description().items() if key != "schema_version"}
    run.write_description(
        {**described, **told, "places": [{"name": x.name, "num_devices": 2} for x in HOSTS]}
    )
    return conclude(run)


def as_slow(by: dict[str, float]) -> Callable[[Case], CaseRecords]:
    return lambda case: done(case, step_s=STEP_S * by.get(case.placement.hosts[0], 1.0))


def failed_on(*hosts: str) -> Callable[[Case], CaseRecords]:
    def end(case: Case) -> CaseRecords:
        if case.placement.hosts[0] not in hosts:
            return done(case)
        return CaseRecords(case=case, records=(start(), failure("exception", next_step="look")))

    return end


def test_of_hosts_that_passed_the_slowest_are_spare(tmp_path: Path) -> None:
    found = concluded(tmp_path, as_slow({"b": 1.04, "c": 1.01}), spares=1, fleet=SSH)
    chosen = found.result.detail["chosen"]
    assert (chosen["chosen"], chosen["spares"], chosen["not_passed"]) == (["a", "c", "d"], ["b"], [])
    assert chosen["losses"]["b"] == pytest.approx(1 - 1 / 1.04 * 1.005, abs=0.01)
    (path,) = tmp_path.rglob("chosen-hosts.json")
    hosts = load_inventory(str(path)).hosts
    assert [(host.name, host.address, host.user) for host in hosts] == [
        ("a", "198.18.7.0", "u"),
        ("c", "198.18.7.2", "u"),
        ("d", "198.18.7.3", "u"),
    ]
    assert next(tmp_path.rglob("chosen-hosts.txt")).read_text() == "a\nc\nd\n"
    assert "run on: a, c, d" in words_of(found)


def test_a_host_that_failed_is_never_chosen_and_the_others_are_ready(tmp_path: Path) -> None:
    slurm = {"partition": "debug", "nodelist": None, "extra": ["--comment=x"]}
    found = concluded(tmp_path, failed_on("a"), spares=1, fleet=SSH, slurm=slurm)
    assert found.result.verdict == "READY-WITH-EXCLUSIONS"
    assert found.result.exit_code == ExitCode.DONE
    assert found.result.detail["chosen"]["chosen"] == ["b", "c", "d"]
    (path,) = tmp_path.rglob("chosen-hosts.slurm.json")
    options = load_slurm_options(str(path))
    assert (options.partition, options.nodelist, options.extra) == ("debug", "b,c,d", ["--comment=x"])


def test_where_too_few_passed_there_is_nothing_to_run_on(tmp_path: Path) -> None:
    found = concluded(tmp_path, failed_on("a", "d"), spares=1, fleet=SSH)
    assert found.result.exit_code == ExitCode.FAILED
    assert "3 hosts are needed, but only 2 passed: too few to run on" in words_of(found)
    assert not list(tmp_path.rglob("chosen-hosts*"))


def test_spares_leave_a_host_to_run_on() -> None:
    config = recipe(validate={"stages": ["gemm"], "spares": 4}, distributed={"nproc": 2})
    with pytest.raises(UsageError, match="leave none to run on"):
        SUITE.begin(config, HOSTS)

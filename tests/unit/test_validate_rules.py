"""What a validation is held against: recipes' rules, a file's, a baseline, and what drivers announced."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from gpuproof.base.errors import UsageError
from gpuproof.campaign.conclude import Concluded, conclude, conclude_otherwise
from gpuproof.config.load import load_config
from gpuproof.launchers.surroundings import refuse_to_be_a_rank
from gpuproof.readings.recording import DeviceTrack, RecordingData
from gpuproof.records.codec import to_json
from gpuproof.records.readings import Counters, DeviceIdentity, DriverEvent, Recording
from gpuproof.records.result import Measure
from gpuproof.selftest.fleet import Fleet, Planted
from gpuproof.selftest.judging import write_fleet
from gpuproof.store.baselines import run_values
from gpuproof.store.run import RunDirectory
from gpuproof.suites.validate import SUITE
from gpuproof.suites.validate.judging import rules_of
from gpuproof.suites.validate.options import read_options
from gpuproof.verdict.announced import announced_of
from gpuproof.verdict.baseline import record_baseline
from gpuproof.verdict.checks.registry import CHECKS
from gpuproof.verdict.rules.model import Rule
from validation_by_hand import FLOOR, recipe, walk, written

AS_BEFORE: dict[str, Any] = {
    "name": "training as before",
    "each": "whole",
    "measure": {"name": "throughput", "labels": {"case": "training"}},
    "expect": {"baseline": 0.95},
}


def run_of(folder: Path, rules: list[Any]) -> RunDirectory:
    config = recipe(validate={"rules": rules})
    return written(folder, walk(config), config)


def status(found: Concluded, name: str) -> str:
    (item,) = [item for item in found.result.outcomes if item.name == name]
    return item.outcome.status


@pytest.mark.parametrize("name", ["validate", "validate-quick", "validate-burn-in", "validate-playbook"])
@pytest.mark.promise("S3.15")
def test_the_rules_of_each_recipe_can_judge(name: str) -> None:
    given, _ = rules_of(read_options(load_config(name, []).config))
    names = [rule.name for rule in given]
    advisory = {"clocks", "port errors"}  # asked for without a rule
    assert set(names) >= CHECKS.keys() - advisory, "all checks, from the one set that recipes include"
    assert sum(isinstance(rule, Rule) for rule in given) >= 3


def _times(measures: Sequence[Measure], factor: float) -> list[Measure]:
    return [replace(m, value=None if m.value is None else factor * m.value) for m in measures]


@pytest.mark.promise("S3.18")
def test_a_baseline_makes_a_run_ready_and_a_better_one_does_not(tmp_path: Path) -> None:
    run = run_of(tmp_path, [AS_BEFORE])
    without = conclude(run)
    assert (without.result.verdict, status(without, "training as before")) == ("INCONCLUSIVE", "SKIP")
    assert "gpuproof baseline record" in " ".join(without.result.detail["readiness"]["reasons"])
    figures = run_values(run)
    runs = [replace(figures, run_id=str(n), measures=_times(figures.measures, 1 + n / 1e3)) for n in range(4)]
    kept = record_baseline("a", runs, recorded="2026-11-22", gpuproof_version="1")
    assert conclude_otherwise(run, {"baseline": to_json(kept)}).result.verdict == "READY"
    faster = _times(figures.measures, 1.2)
    better = record_baseline("b", [replace(figures, measures=faster)], recorded="2026", gpuproof_version="1")
    assert conclude_otherwise(run, {"baseline": to_json(better)}).result.verdict == "NOT-READY"
    unasked = conclude_otherwise(run, {"baseline": to_json(kept), "rules": [FLOOR]})
    assert (unasked.result.verdict, status(unasked, "baseline")) == ("INCONCLUSIVE", "ERROR")
    other = replace(kept, stack={**kept.stack, "driver": "other"})
    unlike = conclude_otherwise(run, {"baseline": to_json(other)})
    assert (unlike.result.verdict, status(unlike, "training as before")) == ("INCONCLUSIVE", "ERROR")


def test_a_files_rule_takes_the_place_of_the_recipes_and_asks_for_its_baseline(tmp_path: Path) -> None:
    run = run_of(tmp_path, [FLOOR, {"check": "xid"}])
    text = json.dumps({"rules": [{"check": "xid", "required": False}, AS_BEFORE]})
    found = conclude_otherwise(run, {"file_rules": text, "file_source": "r.yaml"})
    assert [x.is_required for x in found.result.outcomes if x.name == "xid"] == [False]
    assert status(found, FLOOR["name"]) == "PASS"
    assert status(found, "training as before") == "ERROR"  # a file's rule is never left out


def test_a_floor_covers_what_peers_compare_and_a_stage_that_is_not_there_is_left_out(tmp_path: Path) -> None:
    alike = {
        "name": "alike",
        "each": "host",
        "measure": {"name": "bus bandwidth", "labels": {"stage": "collective"}},
        "expect": {"peers": True},
    }
    gemm = {**alike, "name": "gemm alike", "measure": {"name": "throughput", "labels": {"stage": "gemm"}}}
    found = conclude(run_of(tmp_path, [FLOOR, alike, gemm]))
    assert (status(found, "alike"), status(found, "gemm alike")) == ("NOT-APPLICABLE", "SKIP")
    assert found.result.verdict == "READY"


def test_a_rule_of_each_device_alone_is_left_out_where_all_work_at_once(tmp_path: Path) -> None:
    alone, together = (
        {
            "name": name,
            "each": "gpu",
            "measure": {"name": "throughput", "labels": {"stage": "gemm", "at_once": is_at_once}},
            "expect": {"peers": True},
        }
        for name, is_at_once in (("alone", False), ("at once", True))
    )
    fleet = Fleet(hosts=("a", "b"), num_devices=4, planted=Planted(slower={"GPU-b-1": 1.2}))
    evidence = write_fleet(fleet, tmp_path, rules=[alone, together], alone=False, stages=["gemm"])
    judged = {(x.name, x.outcome.subject): x.outcome.status for x in SUITE.conclude(evidence).result.outcomes}
    assert judged["alone", "whole"] == "SKIP"
    failed = {subject for (name, subject), status in judged.items() if name == "at once" and status == "FAIL"}
    assert failed == {"host/b/gpu/GPU-b-1"}


def test_of_a_gpu_of_which_nothing_was_published_that_is_said(tmp_path: Path) -> None:
    name = "training as published"
    published = {
        "name": name,
        "each": "whole",
        "measure": {"name": "throughput", "labels": {"stage": "training"}},
        "expect": {"reference": "published", "ignoring": ["tool"]},
    }
    found = conclude(run_of(tmp_path, [FLOOR, published]))
    (item,) = [item for item in found.result.outcomes if item.name == name]
    assert (item.outcome.status, item.is_required) == ("SKIP", False)
    assert "unknown: no published result matches training of" in (item.outcome.reason or "")
    assert found.result.verdict == "READY"
    text = json.dumps({"rules": [published]})
    asked = conclude_otherwise(run_of(tmp_path / "b", [FLOOR]), {"file_rules": text, "file_source": "r.yaml"})
    assert (status(asked, name), asked.result.verdict) == ("ERROR", "READY")  # the contract decides


def recording(*totals: float, event: str | None = None) -> RecordingData:
    identity = DeviceIdentity(
        physical_index=0,
        vendor="fake",
        vendor_index=0,
        framework_index=0,
        uuid="GPU-0",
        pci_bus_id=None,
        name="G",
        static={},
        unavailable={},
    )
    begun = Recording(
        host="a",
        host_facts={},
        pid=1,
        boot_id=None,
        gpuproof_version="1",
        unix_s=0.0,
        monotonic_s=0.0,
        fast_interval_s=1.0,
        slow_interval_s=1.0,
        devices=(identity,),
    )
    told = DriverEvent(monotonic_s=1.0, physical_index=0, event=event or "", code=79, message="")
    return RecordingData(
        source="r",
        format="gpuproof",
        recording=begun,
        time_s=np.zeros(0),
        unix_s=np.zeros(0),
        devices=(
            DeviceTrack(identity=identity, metrics={}, throttle={}, throttle_answered=np.zeros(0, bool)),
        ),
        host={},
        counters=tuple(
            Counters(monotonic_s=0.0, at="x", devices={"0": {"ecc_uncorrected_count": n}}) for n in totals
        ),
        events=(told,) if event else (),
    )


def test_what_was_announced_and_errors_that_grew_are_told_and_old_ones_are_not() -> None:
    def said(found: RecordingData) -> list[str]:
        events = announced_of(found, found.devices[0].identity.physical_index)
        return [f"{e.title} grew by {e.growth:g}" if e.growth else e.title for e in events]

    assert said(recording(7, 7)) == []
    assert said(recording(7, 7, 9)) == ["ecc_uncorrected_count grew by 2"]
    assert said(recording(event="xid")) == ["xid 79"]
    assert said(recording(event="recovered")) == []


def test_a_rank_of_another_launch_is_refused_and_a_process_alone_is_not() -> None:
    refuse_to_be_a_rank({}, command="gpuproof validate")
    mpi = {"OMPI_COMM_WORLD_RANK": "1", "OMPI_COMM_WORLD_SIZE": "2"}
    local = {"OMPI_COMM_WORLD_LOCAL_RANK": "1", "OMPI_COMM_WORLD_LOCAL_SIZE": "2"}
    with pytest.raises(UsageError, match="a rank of another launch"):
        refuse_to_be_a_rank({**mpi, **local}, command="gpuproof validate")
    with pytest.raises(UsageError, match="does not assign GPUs to ranks"):
        refuse_to_be_a_rank(mpi, command="gpuproof validate")


def test_rules_of_a_recipe_are_cited_by_file_and_line(tmp_path: Path) -> None:
    path = tmp_path / "ours.yaml"
    text = (
        "kind: training\nsuite: validate\nvalidate:\n  rules:\n    - {check: clocks}\n\n    - {check: xid}\n"
    )
    path.write_text(text)
    options = read_options(load_config(str(path), []).config)
    assert [rule.place for rule in rules_of(options)[0]] == [f"{path}:5", f"{path}:7"]
    path.write_text(text.replace("xid", "xit"))
    with pytest.raises(UsageError, match=r"ours\.yaml:7: rules\.check: no check 'xit'"):
        rules_of(read_options(load_config(str(path), []).config))
    # rules of the command line have no lines, and those of a recipe that they replace are forgotten
    given = load_config(str(path), ["--validate.rules=[{check: ecc}]"]).config
    assert [rule.place for rule in rules_of(read_options(given))[0]] == ["validate.rules of the recipe:1"]

"""Validation without hardware: what is planned, what is judged, and what no run may come to."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from collectives_by_hand import collective_records, trial
from concluding import are_figures_measures, figures_of, text_of, words_of
from gpuproof.base.errors import ExitCode, UsageError
from gpuproof.campaign.conclude import Concluded, conclude, conclude_otherwise
from gpuproof.records.case import Case
from gpuproof.records.collected import CaseRecords
from gpuproof.records.outcome import Outcome
from gpuproof.records.run import Environment, FailureCause
from gpuproof.suites.base import HostPlace
from gpuproof.suites.validate import SUITE
from gpuproof.suites.validate.measured import drift_of
from gpuproof.verdict.rules import load_rules, rules_of_entries
from records_by_hand import CPU, failure, start
from validation_by_hand import FLOOR, STEP_S, TRAINING, done, host_facts, recipe, walk, written

HOSTS = tuple(HostPlace(name=name, num_devices=2) for name in ("a", "b", "c"))


def concluded(folder: Path, end: Callable[[Case], CaseRecords] = done, **options: Any) -> Concluded:
    config = recipe(**options)
    return conclude(written(folder, walk(config, end=end), config))


def outcome(found: Concluded, name: str) -> Outcome:
    (item,) = [item for item in found.result.outcomes if item.name == name]
    return item.outcome


def failed(cause: FailureCause, only: str) -> Callable[[Case], CaseRecords]:
    def end(case: Case) -> CaseRecords:
        told = failure(cause, next_step="look")
        return (
            CaseRecords(case=case, records=(start(), told)) if case.case_id.startswith(only) else done(case)
        )

    return end


def test_every_device_alone_then_all_at_once_then_all_together() -> None:
    config = recipe(validate={"stages": ["gemm", "collective", "training", "soak"], "gemm_size": 64})
    cases = [launch.case for launch in walk(config)]
    assert [case.case_id for case in cases] == [
        *("gemm-bf16-device0", "gemm-bf16-device1", "gemm-bf16-all"),
        *("collective-within", "training-one", "training", "soak"),
    ]
    assert [case.placement.devices for case in cases[:3]] == [(0,), (1,), None]
    assert [case.placement.num_ranks for case in cases] == [1, 1, 2, 2, 1, 2, 2]


@pytest.mark.promise("S3.16")
def test_over_hosts_each_has_its_own_and_jobs_span_all() -> None:
    cases = [launch.case for launch in walk(recipe(), HOSTS)]
    spans = {case.case_id: case.placement for case in cases}
    assert list(spans) == [
        *("collective-within@a", "collective-within@b", "collective-within@c", "collective-over"),
        *("training-one@a", "training"),
    ]
    assert (spans["training"].hosts, spans["training"].num_ranks) == (("a", "b", "c"), 6)


def test_a_stage_waits_for_the_one_before_it() -> None:
    state = SUITE.begin(recipe(), HOSTS)
    first = list(SUITE.next(state, {}, None))
    assert {case.kind for case in first} == {"collective"}
    running = {(case.case_id, case.replicate): case for case in first}
    assert list(SUITE.next(state, running, None)) == []


def test_a_lost_host_is_asked_nothing_more_and_jobs_go_on_without_it() -> None:
    def end(case: Case) -> CaseRecords:
        if "b" not in case.placement.hosts:
            return done(case)
        told = failure("environment", rank=None, phase="setup", host="b")
        return CaseRecords(case=case, records=(told,))

    launches = walk(recipe(), HOSTS, end)
    last = launches[-1].case
    assert (last.case_id, last.placement.hosts) == ("training", ("a", "c"))
    assert [x.case.case_id for x in launches if "b" in x.case.placement.hosts] == ["collective-within@b"]


def test_a_job_that_lost_a_host_is_asked_for_again_over_the_others() -> None:
    state = SUITE.begin(recipe(validate={"stages": ["training"]}), HOSTS)
    for launch in walk(recipe(validate={"stages": ["training"]}), HOSTS)[:1]:
        state = SUITE.settle(state, launch)
    (job,) = SUITE.next(state, {}, None)
    told = failure("environment", rank=None, phase="deploy", host="c")
    (again,) = SUITE.next(SUITE.settle(state, CaseRecords(case=job, records=(told,))), {}, None)
    assert (again.case_id, again.placement.hosts) == ("training", ("a", "b"))


def test_a_queue_is_no_place_to_follow_up() -> None:
    with pytest.raises(UsageError, match="a queue has no hosts"):
        SUITE.begin(recipe(), ())


@pytest.mark.promise("S3.1", "S3.15")
def test_ready_needs_all_of_it(tmp_path: Path) -> None:
    found = concluded(tmp_path)
    assert (found.result.verdict, found.result.exit_code) == ("READY", ExitCode.DONE), text_of(found)
    assert are_figures_measures(found)
    assert figures_of(found)
    assert all(x.outcome.status == "PASS" for x in found.result.outcomes if x.is_required)


@pytest.mark.parametrize(
    ("rules", "word"),
    [([], "INCONCLUSIVE"), ([{**FLOOR, "expect": {"at_least": 1e9, "unit": "samples/s"}}], "NOT-READY")],
)
def test_without_a_figure_to_meet_nothing_is_ready(rules: list[Any], word: str, tmp_path: Path) -> None:
    assert concluded(tmp_path, validate={"rules": rules}).result.verdict == word


@pytest.mark.parametrize(
    "change",
    [
        {"measure": {"name": "no such figure"}},
        {"measure": {"name": "throughput", "labels": {"case": "soak"}}},
        {"each": "link"},
        {"expect": {"at_least": 1, "unit": "FLOP/s"}},
    ],
)
def test_a_rule_without_its_measure_is_an_error(change: dict[str, Any], tmp_path: Path) -> None:
    found = concluded(tmp_path, validate={"rules": [FLOOR, {**FLOOR, "name": "other", **change}]})
    assert (found.result.verdict, outcome(found, "other").status) == ("INCONCLUSIVE", "ERROR")


@pytest.mark.parametrize(
    "wrong",
    [
        {**FLOOR, "expect": {"unit": "samples/s"}},
        {**FLOOR, "expect": {"at_least": 1, "at_most": 2, "unit": "1"}},
        {**FLOOR, "expect": {"at_least": "fast", "unit": "1"}},
        {**FLOOR, "expect": {"at_least": float("nan"), "unit": "1"}},
        {"name": "nothing"},
        {**FLOOR, "each": "galaxy"},
    ],
)
def test_a_rule_that_cannot_judge_is_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(UsageError, match=r"r\.yaml:1"):
        rules_of_entries([wrong], source="r.yaml")


@pytest.mark.parametrize("text", ["", "rules: []", "[]", "rules: {}", "7"])
def test_an_empty_file_of_rules_is_refused(text: str, tmp_path: Path) -> None:
    path = tmp_path / "r.yaml"
    path.write_text(text)
    with pytest.raises(UsageError, match="there are no rules"):
        load_rules(str(path))


@pytest.mark.parametrize(
    ("cause", "status", "word"),
    [
        ("out_of_memory", "FAIL", "NOT-READY"),
        ("hang", "FAIL", "NOT-READY"),
        ("lost_rank", "ERROR", "INCONCLUSIVE"),
        ("interrupted", "ERROR", "INCONCLUSIVE"),
    ],
)
def test_a_stage_that_failed(cause: FailureCause, status: str, word: str, tmp_path: Path) -> None:
    found = concluded(tmp_path, failed(cause, "collective"))
    assert outcome(found, "collective-within was measured").status == status
    assert found.result.verdict == word
    assert "look" in words_of(found)


def test_wrong_results_are_a_failure_and_unchecked_ones_no_pass(tmp_path: Path) -> None:
    def wrong(case: Case, **changes: Any) -> CaseRecords:
        if case.kind != "collective":
            return done(case)
        ranks = range(case.placement.num_ranks)
        return collective_records(case, [trial(rank, "all_reduce", **changes) for rank in ranks])

    bad = concluded(tmp_path / "bad", lambda case: wrong(case, num_wrong=1))
    assert (bad.result.verdict, outcome(bad, "collective-within was measured").status) == (
        "NOT-READY",
        "FAIL",
    )
    unseen = {"num_checked": 0, "not_checked": "nobody asked"}
    open_ = concluded(tmp_path / "open", lambda case: wrong(case, **unseen))
    assert outcome(open_, "collective-within was measured").status == "ERROR"


def test_an_advisory_stage_decides_nothing(tmp_path: Path) -> None:
    found = concluded(tmp_path, failed("hang", "collective"), validate={"advisory": ["collective"]})
    assert found.result.verdict == "READY", text_of(found)


def test_what_the_budget_left_out_is_said_and_is_not_passed(tmp_path: Path) -> None:
    found = concluded(tmp_path, validate={"time_budget_s": 258.0, "training_minutes": 4.0})
    assert found.result.num_launches == 2
    assert (found.result.verdict, outcome(found, "training was measured").status) == ("INCONCLUSIVE", "SKIP")
    assert "did not fit into --time-budget 4.3m" in words_of(found)


def test_a_missing_expected_host_is_not_ready(tmp_path: Path) -> None:
    there = concluded(tmp_path / "there", validate={"expected_hosts": ["node1"]})
    assert there.result.verdict == "READY"
    found = concluded(tmp_path / "missing", validate={"expected_hosts": ["node1", "node2"]})
    assert (found.result.verdict, found.result.exit_code) == ("NOT-READY", ExitCode.FAILED)
    assert outcome(found, "expected hosts").measured == "1 of 2 responded; missing: node2"


def test_devices_that_were_not_tested_are_not_ready(tmp_path: Path) -> None:
    def of_eight(case: Case) -> CaseRecords:
        told = Environment(host="node1", facts=host_facts(8))
        found = done(case)
        return replace(found, records=tuple(told if isinstance(x, Environment) else x for x in found.records))

    found = concluded(tmp_path, of_eight)
    assert found.result.verdict == "INCONCLUSIVE"
    assert "2 of 8 devices were used" in words_of(found)


def test_one_device_has_nobody_to_talk_to_and_can_be_ready(tmp_path: Path) -> None:
    def alone(case: Case) -> CaseRecords:
        told = Environment(host="node1", facts=host_facts(1))
        found = done(case)
        return replace(found, records=tuple(told if isinstance(x, Environment) else x for x in found.records))

    slower = {**FLOOR, "expect": {"at_least": 500, "unit": "samples/s"}}
    found = concluded(tmp_path, alone, distributed={"nproc": 1}, validate={"rules": [slower]})
    assert outcome(found, "collective").status == "NOT-APPLICABLE"
    assert found.result.verdict == "READY", text_of(found)
    hidden = concluded(tmp_path / "hidden", distributed={"nproc": 1}, validate={"rules": [slower]})
    assert outcome(hidden, "collective").status == "SKIP"
    assert hidden.result.verdict == "INCONCLUSIVE"


def test_a_processor_is_never_ready(tmp_path: Path) -> None:
    def on_cpu(case: Case) -> CaseRecords:
        found = done(case)
        return replace(
            found,
            records=tuple(replace(x, device=CPU) if x in found.setups else x for x in found.records),
        )

    found = concluded(tmp_path, on_cpu, validate={"allow_cpu": True})
    assert (found.result.verdict, found.result.exit_code) == ("INCONCLUSIVE", ExitCode.INCONCLUSIVE)
    assert "a CPU is never ready for production" in words_of(found)


def test_a_data_set_that_was_replaced_is_named_in_the_report(tmp_path: Path) -> None:
    said = "there is no cifar-10-batches-py in data: trained on synthetic data instead of cifar10"
    assert said in text_of(concluded(tmp_path, validate={"data_replaced": said}))


def test_without_training_the_report_says_what_is_missing_and_what_nothing_heeded(tmp_path: Path) -> None:
    def said(*stages: str) -> str:
        config = recipe(validate={"stages": list(stages), "rules": []})
        run = written(tmp_path / stages[-1], walk(config), config)
        described = {key: value for key, value in run.description().items() if key != "schema_version"}
        keys = ("model.name", "training.learning_rate", "benchmark.measure_steps", "distributed.nproc")
        given = dict.fromkeys(keys, "command line")
        run.write_description({**described, "origins": {**given, "data.batch_size": "default"}})
        text = words_of(conclude(run))
        assert ("is not written" in text) != (run.root / "validation_result.json").is_file()
        return text

    without = said("collective")
    assert "it covers the training over all devices, which is not a stage of this validation" in without
    idle = "model.name, training.learning_rate, benchmark.measure_steps"
    assert f"ignored, since no stage trains a model: {idle}" in without
    assert "data.batch_size" not in without
    assert "without effect" not in said("collective", "training")
    assert "ignored, since a soak is measured by time: benchmark.measure_steps" in said("soak")


def test_steps_that_rise_are_found_and_steady_ones_are_not(tmp_path: Path) -> None:
    times = [STEP_S * (1 + 0.6 * step / 100) for step in range(100)]
    found = concluded(tmp_path, lambda case: done(case, times_s=times if case.kind == "training" else None))
    assert outcome(found, "step-time drift, training").status == "FAIL"


def test_drift_accuses_nobody_who_wanders() -> None:
    """Of autocorrelated, stalled and quantised series none may be called slower by 20 %; ramps always are."""
    rng, size = np.random.default_rng(7), 120
    false, found = 0, 0
    for _ in range(40):
        shocks, wander = rng.normal(size=size), [0.0]
        for shock in shocks:
            wander.append(0.9 * wander[-1] + 0.436 * shock)
        noisy = np.exp(0.1 * np.array(wander[1:]))
        stalls = np.where(rng.random(size) < 0.02, 10.0, 1.0)
        for series in (noisy, noisy * stalls, np.round(noisy, 1)):
            drift = drift_of(series.tolist())
            assert drift is not None
            false += drift[1].low > 0.2
        ramp = drift_of((np.exp(0.03 * shocks) * np.linspace(1, 1.7, size)).tolist())
        assert ramp is not None
        found += ramp[1].low > 0.2
    assert (false <= 1, found >= 39) == (True, True), (false, found)


def test_efficiency_by_contract(tmp_path: Path) -> None:
    slow_together = lambda case: done(case, step_s=STEP_S if case.placement.num_ranks == 1 else 1.2 * STEP_S)  # noqa: E731
    scaling = {**TRAINING, "title": "scaling", "measure": "scaling efficiency"}
    contract = {"efficiency": {"8": 0.95}, "rules": [], "aspects": [scaling]}
    found = concluded(tmp_path / "slow", slow_together, validate=contract)
    judged = outcome(found, "scaling efficiency of up to 8 devices")
    assert judged.status == "FAIL"
    assert judged.measured_value == pytest.approx(1 / 1.2)
    good = concluded(tmp_path / "good", validate=contract)
    assert good.result.verdict == "READY"
    more = concluded(tmp_path / "more", validate={**contract, "efficiency": {"1": 0.9}})
    assert outcome(more, "scaling efficiency").status == "SKIP"


@pytest.mark.promise("S3.14", "S3.22")
def test_the_json_of_s3_has_its_keys_and_no_others(tmp_path: Path) -> None:
    config = recipe()
    run = written(tmp_path, walk(config), config)
    found = conclude(run)
    told = json.loads((run.root / "validation_result.json").read_text())
    assert told == {
        "model": "medium",
        "world_size": 2,
        "batch_size_per_gpu": 8,
        "global_batch_size": 16,
        "avg_step_time_ms": pytest.approx(10.0),
        "throughput_samples_per_second": pytest.approx(1600.0),
        "nccl_overhead_ms": None,
        "gpu_utilization_pct": None,
        "backend": None,
    }
    assert "nccl_overhead_ms is null: " in words_of(found)


def test_other_rules_judge_again_and_leave_the_run_alone(tmp_path: Path) -> None:
    config = recipe()
    run = written(tmp_path, walk(config), config)
    assert conclude(run).result.verdict == "READY"
    before = {path: path.read_bytes() for path in run.root.rglob("*") if path.is_file()}
    stricter = {**FLOOR, "expect": {"at_least": 1e6, "unit": "samples/s"}}
    text = json.dumps({"rules": [stricter]})
    again = conclude_otherwise(run, {"file_rules": text, "file_source": "stricter.yaml"})
    assert (again.result.verdict, again.result.exit_code) == ("NOT-READY", ExitCode.FAILED)
    assert outcome(again, "training is fast").source == "stricter.yaml:1"
    assert {path: path.read_bytes() for path in run.root.rglob("*") if path.is_file()} == before
    assert conclude_otherwise(run, {}).result == conclude(run).result

"""A fleet's own figures: pooled with their spread, kept as JSON, and refused where the stack is another."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import click.testing
import pytest

from fleet_by_hand import baseline, gpu, host_facts, hosts, measured
from gpuproof.base.errors import ExitCode, RecordError, UsageError
from gpuproof.campaign.conclude import conclude
from gpuproof.cli.main import cli
from gpuproof.records.codec import from_json, to_json
from gpuproof.records.collected import CaseRecords
from gpuproof.records.result import Measure, Result
from gpuproof.records.run import Environment
from gpuproof.statistics.prediction import past_of_fleet, repeatability_of, spread_of
from gpuproof.store.baselines import baseline_path, read_baseline, run_values
from gpuproof.store.run import RunDirectory
from gpuproof.verdict.baseline import (
    BaselineEntry,
    RunValues,
    differing_keys,
    record_baseline,
    stack_of,
    stack_of_run,
)
from gpuproof.verdict.facts import FleetFacts
from records_by_hand import STEP_OPTIONS, case, one_rank, setup, write_run

VALUES = (7.00e14, 7.05e14, 6.95e14, 7.02e14)


def measures(*values: float, spread: float | None = None) -> list[Measure]:
    return [measured(gpu("a", index), value, spread=spread) for index, value in enumerate(values)]


def figures(run_id: str, *values: float, **other: Any) -> RunValues:
    stack = stack_of({"a": host_facts("a", gpus=4, **other)})
    return RunValues(run_id=run_id, measures=measures(*values, spread=0.01), stack=stack)


def test_a_validation_takes_a_baseline_by_its_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    file = baseline_path("fleet", Path("baselines"))
    file.parent.mkdir()
    runs = [figures("one", *VALUES), figures("two", *VALUES)]
    recorded = record_baseline("fleet", runs, recorded="2026-11-26", gpuproof_version="0.1.0")
    file.write_text(json.dumps(to_json(recorded)), encoding="utf-8")
    words = ["validate", "--baseline", "fleet", "--recipe", "quick", "--allow-cpu", "--dry-run"]
    planned = click.testing.CliRunner().invoke(cli, words, catch_exceptions=False)
    assert planned.exit_code == ExitCode.DONE, planned.output


def test_a_rate_of_the_host_is_suspect_in_a_baseline(tmp_path: Path) -> None:
    """Of the run itself it is VALID, and limited by the host."""
    waiting = one_rank(clock="device_event", times_s=[0.005] * 100, wall_s=1.0)
    run = write_run(tmp_path, [waiting.records()], run_id="waiting")
    assert conclude(run).result.validity == "VALID"
    assert run_values(run).validity == "SUSPECT"


def test_runs_are_pooled_subject_by_subject_with_their_intervals() -> None:
    again = [value + 1e12 for value in VALUES]

    kept = record_baseline(
        "pod", [figures("r1", *VALUES), figures("r2", *again)], recorded="2026-11-22", gpuproof_version="0"
    )

    (entry,) = kept.entries
    assert [(figure.run_id, figure.subject) for figure in entry.figures[:1]] == [("r1", gpu("a", 0))]
    assert entry.figures[0].low == pytest.approx(6.93e14)
    spread = entry.spread()
    assert spread is not None
    assert spread.num_subjects == 4
    assert spread.centre == pytest.approx(7.01e14)
    assert kept.stack["driver"] == "nvidia 570.86"


def test_the_spread_is_that_of_a_single_figure() -> None:
    """By hand: means 9, 10, 11 scatter by 1; figures 1 off their mean add half of their variance, 2."""
    spread = spread_of([[8.0, 10.0], [9.0, 11.0], [10.0, 12.0]])

    assert spread is not None
    assert spread.centre == 10
    assert spread.deviation == pytest.approx((1 + 0.5 * 2) ** 0.5)
    assert spread.degrees == pytest.approx(4 / (1 / 2 + 1 / 3))


def test_a_healthy_figure_is_under_the_limit_as_often_as_was_said() -> None:
    import numpy as np

    rng = np.random.default_rng(1)
    under = 0
    for _ in range(2000):
        *known, new = rng.normal(100, 1, 9)
        spread = spread_of([[value] for value in known])
        assert spread is not None
        under += new < spread.centre - past_of_fleet(spread, day=0.0).reach(0.05)
    assert under <= 100


@pytest.mark.parametrize(
    ("other", "keys"),
    [
        ({"driver": "580.1"}, ["driver"]),
        ({"torch": "2.8.0", "nccl": "2.26"}, ["torch", "nccl"]),
        ({"name": "NVIDIA H200"}, ["gpu"]),
        ({"static": {"power_limit_w": 500.0}}, ["power_limit_w"]),
    ],
)
def test_runs_of_unlike_stacks_are_refused_by_their_keys(other: dict[str, object], keys: list[str]) -> None:
    runs = [figures("r1", *VALUES), figures("r2", *VALUES, **other)]

    with pytest.raises(UsageError) as caught:
        record_baseline("pod", runs, recorded="2026-11-22", gpuproof_version="0")
    assert all(key in str(caught.value) for key in keys)


def test_what_was_not_measured_is_in_no_baseline() -> None:
    bad = [*measures(7e14), measured(gpu("a", 1), None), measured(gpu("a", 2), 1.0, validity="INVALID")]
    stack = stack_of(hosts("a"))

    kept = record_baseline(
        "pod",
        [RunValues(run_id="r", measures=bad, stack=stack)],
        recorded="2026-11-22",
        gpuproof_version="0",
    )
    assert [figure.subject for figure in kept.entries[0].figures] == [gpu("a", 0)]
    with pytest.raises(UsageError, match="measured nothing"):
        baseline(FleetFacts(measures=bad[1:], hosts=hosts("a")))


def test_a_day_is_one_session_and_its_effect_is_pooled_with_the_default() -> None:
    """By hand: days 2 apart scatter by 2 (variance), 0.25 of it by runs; 10 parts are the assumed 1 %."""
    known = repeatability_of([{"mon": [98.5, 99.5], "tue": [100.5, 101.5]}], day=0.01)

    assert known is not None
    assert known.degrees == 2
    assert known.within == pytest.approx(0.5**0.5)
    assert known.day == pytest.approx(((10 * 1 + 1 * (2 - 0.25)) / 11) ** 0.5)
    assert repeatability_of([{"mon": [99.0]}, {"tue": [101.0]}], day=0.01) is None


def test_days_with_one_run_each_tell_of_days_and_runs_together() -> None:
    known = repeatability_of([{"mon": [99.0], "tue": [101.0]}], day=0.01)

    assert known is not None
    assert (known.degrees, known.day) == (1, 1.0)
    assert known.within == pytest.approx(2**0.5)


def test_invalid_runs_are_refused_and_suspect_ones_are_marked() -> None:
    suspect = replace(figures("r2", *VALUES), validity="SUSPECT")
    kept = record_baseline(
        "pod", [figures("r1", *VALUES), suspect], recorded="2026-11-22", gpuproof_version="0"
    )
    assert kept.suspect == ("r2",)
    with pytest.raises(UsageError, match="INVALID"):
        record_baseline("pod", [replace(suspect, validity="INVALID")], recorded="", gpuproof_version="0")


def test_a_baseline_of_the_first_schema_is_still_read(tmp_path: Path) -> None:
    kept = to_json(baseline(FleetFacts(measures=measures(*VALUES), hosts=hosts("a"))))
    for key in ("suspect", "day_effect"):
        kept.pop(key)
    for figure in kept["entries"][0]["figures"]:
        figure.pop("day")
    path = baseline_path("pod", tmp_path)
    path.write_text(json.dumps({**kept, "schema_version": 1}))

    (days,) = {tuple(days) for days in read_baseline(path).entries[0].sessions().values()}
    assert days == ("",)


# The command


def write_result(folder: Path, run_id: str, *values: float, **other: Any) -> RunDirectory:
    """Write a run that ended with these figures of the GPUs of host a."""
    told = Environment(host="a", facts=host_facts("a", gpus=4, **other))
    run = write_run(folder, [replace(one_rank(), extra=[told]).records()], run_id=run_id)
    result = Result(
        suite="recipe",
        run_id=run_id,
        gpuproof_version="0",
        validity="VALID",
        verdict="VALID",
        headline="",
        exit_code=0,
        num_launches=1,
        num_planned=1,
        conditions={},
        doubts=(),
        failures=(),
        measures=tuple(measures(*values)),
    )
    run.write_json("result.json", result)
    return run


def call(*words: object) -> click.testing.Result:
    return click.testing.CliRunner().invoke(cli, [str(word) for word in words])


@pytest.mark.promise("S3.18")
def test_a_baseline_is_recorded_shown_and_used(tmp_path: Path) -> None:
    first = write_result(tmp_path, "r1", *VALUES)
    second = write_result(tmp_path, "r2", *(value * 1.001 for value in VALUES))
    kept = tmp_path / "kept"
    words = ("pod", first.root, second.root, "--directory", kept)

    recorded = call("baseline", "record", *words)
    assert recorded.exit_code == 0
    assert "8 values of 1 measures, from 2 runs on 1 day" in recorded.output
    assert re.search(r"least precise is throughput .*: a loss of \d", recorded.output)
    assert isinstance(call("baseline", "record", *words).exception, UsageError)
    assert call("baseline", "record", *words, "--replace").exit_code == 0

    shown = call("baseline", "show", "pod", "--directory", kept)
    assert "nvidia 570.86" in shown.output
    assert "throughput (workload=gemm" in shown.output

    used = call("baseline", "use", "pod", first.root, "--directory", kept, "--json")
    assert (used.exit_code, len(json.loads(used.stdout))) == (ExitCode.DONE, 4)


@pytest.mark.parametrize(
    ("factor", "other", "code"),
    [
        (1.0, {}, ExitCode.DONE),
        (0.8, {}, ExitCode.FAILED),
        (1.0, {"driver": "580.1"}, ExitCode.INCONCLUSIVE),
    ],
)
def test_a_run_is_held_against_a_baseline_of_its_own_stack(
    tmp_path: Path, factor: float, other: dict[str, object], code: ExitCode
) -> None:
    kept, run = (
        write_result(tmp_path, "r1", *VALUES),
        write_result(tmp_path, "r2", *(factor * value for value in VALUES), **other),
    )
    assert call("baseline", "record", "pod", kept.root, "--directory", tmp_path).exit_code == 0

    used = call("baseline", "use", "pod", run.root, "--directory", tmp_path, "--share", "0.95")

    assert used.exit_code == code
    assert ("580.1 against nvidia 570.86" in " ".join(used.output.split())) == bool(other)


def test_weights_of_models_that_infer_are_part_of_a_stack() -> None:
    """A baseline of before says nothing of weights: they were in fp32."""

    def inferring(weights: str | None) -> CaseRecords:
        built = replace(setup(), options=replace(STEP_OPTIONS, weights=weights))
        return replace(one_rank(), case=case(kind="inference"), setups=[built]).records()

    old = stack_of(hosts("a"))
    assert stack_of_run(hosts("a"), [inferring(None)]) == old
    assert stack_of_run(hosts("a"), [inferring("float32")]) == old
    new = stack_of_run(hosts("a"), [inferring("bfloat16"), one_rank().records()])
    assert differing_keys(new, old) == ["weights: bfloat16 against float32"]
    assert differing_keys(new, new) == []


def test_a_baseline_of_a_newer_schema_or_none_is_refused(tmp_path: Path) -> None:
    path = baseline_path("pod", tmp_path)
    with pytest.raises(UsageError, match="this baseline does not exist"):
        read_baseline(path)
    path.write_text('{"schema_version": 99}')
    with pytest.raises(RecordError, match="schema version 99"):
        read_baseline(path)


def test_an_entry_without_values_is_refused_by_name() -> None:
    entry = {"name": "throughput", "labels": {}, "kind": "gpu", "unit": "FLOP/s", "figures": []}
    with pytest.raises(RecordError, match="throughput has no values"):
        from_json(BaselineEntry, entry)


RULES = """\
rules:
  - name: floor
    each: gpu
    measure: {name: throughput, labels: {workload: gemm}}
    expect: {at_least: 6.9e+14, unit: FLOP/s}
"""


@pytest.mark.parametrize(("value", "code"), [(7e14, ExitCode.DONE), (5e14, ExitCode.FAILED)])
def test_rules_are_checked_and_judge_a_run(tmp_path: Path, value: float, code: ExitCode) -> None:
    file = tmp_path / "rules.yaml"
    file.write_text(RULES)
    run = write_result(tmp_path, "r", value, value, value, value)

    assert call("rules", "check", file).exit_code == ExitCode.DONE
    assert call("rules", "check", file, "--run", run.root).exit_code == code
    file.write_text(RULES.replace("6.9e+14", "0"))
    assert isinstance(call("rules", "check", file).exception, UsageError)


def test_a_rule_that_matches_nothing_of_a_run_is_inconclusive(tmp_path: Path) -> None:
    file = tmp_path / "rules.yaml"
    file.write_text(RULES.replace("gemm", "gems"))
    run = write_result(tmp_path, "r", *VALUES)

    assert call("rules", "check", file, "--run", run.root).exit_code == ExitCode.INCONCLUSIVE


def test_thresholds_of_others_are_imported_with_their_faults(tmp_path: Path) -> None:
    file = tmp_path / "t.csv"
    file.write_text("name,quantity,value,unit,board\nx,matrix multiply,0,FLOP/s,MI450X\n")

    found = call("rules", "import", file, "--from", "table", "--json")

    assert found.exit_code == ExitCode.FAILED
    assert json.loads(found.stdout)["faults"][0]["fault"] == "vacuous"
    assert "ecc" in call("rules", "list").output

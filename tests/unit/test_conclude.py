"""From a run on disk to its exit code and its derived files, without torch."""

from __future__ import annotations

import csv
import json
import shutil
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from concluding import are_figures_measures, commands_of, detail_of, figures_of, lines_of, notes_of
from gpuproof.base.errors import ExitCode
from gpuproof.campaign.conclude import Concluded, conclude, conclude_unwritten
from gpuproof.records.collected import CaseRecords
from gpuproof.records.run import Environment, FailureCause, ProfileTrace
from gpuproof.store.run import RunDirectory
from gpuproof.suites.recipe.conclude import RecipeDetail
from gpuproof.suites.results import epochs_csv
from records_by_hand import (
    CHANNELS_LAST,
    Story,
    case,
    environment,
    failure,
    one_rank,
    setup,
    start,
    steady_times,
    window,
    write_run,
)

EPOCH_COLUMNS = (
    *("epoch", "throughput_samples_per_s", "epoch_time_s", "total_steps", "measured_steps"),
    *("measured_samples", "mean_step_ms", "p50_step_ms", "p95_step_ms"),
)


def concluded(
    tmp_path: Path, launches: Sequence[CaseRecords], *, repeats: int | None = None, **sections: Any
) -> tuple[RunDirectory, Concluded]:
    run = write_run(tmp_path, launches, run={"repeats": repeats or max(1, len(launches))}, **sections)
    return run, conclude(run)


def ended_by(*causes: FailureCause) -> CaseRecords:
    failures = [failure(cause, rank=rank) for rank, cause in enumerate(causes)]
    return CaseRecords(case=case(replicate=9), records=(start(), *failures))


@pytest.mark.parametrize(
    ("launches", "expected"),
    [
        ([one_rank().records()], ExitCode.DONE),
        ([one_rank(wall_s=1.03).records()], ExitCode.DONE),  # a gap of 3 %: SUSPECT
        ([one_rank(items=1).records()], ExitCode.INCONCLUSIVE),  # INVALID
        ([ended_by("exception")], ExitCode.FAILED),
        ([ended_by("out_of_memory")], ExitCode.FAILED),
        ([ended_by("lost_rank")], ExitCode.FAILED),
        ([ended_by("environment")], ExitCode.UNFIT_ENVIRONMENT),
        ([ended_by("disk_full")], ExitCode.UNFIT_ENVIRONMENT),
        ([ended_by("timeout")], ExitCode.TIMEOUT),
        ([ended_by("interrupted")], ExitCode.INTERRUPTED),
        ([one_rank().records(), ended_by("timeout")], ExitCode.TIMEOUT),
        ([one_rank().records(), ended_by("hang")], ExitCode.FAILED),
        ([CaseRecords(case=case(), records=(start(),))], ExitCode.INCONCLUSIVE),  # killed without a message
        ([], ExitCode.INCONCLUSIVE),
    ],
)
def test_exit_codes(launches: list[CaseRecords], expected: ExitCode, tmp_path: Path) -> None:
    assert concluded(tmp_path, launches)[1].result.exit_code == expected


def test_a_launch_that_is_missing_is_not_done(tmp_path: Path) -> None:
    run, conclusion = concluded(tmp_path, [one_rank().records()], repeats=2)
    assert conclusion.result.exit_code == ExitCode.INCONCLUSIVE
    assert commands_of(conclusion) == (f"gpuproof run --resume {run.root}", f"gpuproof report {run.root}")


def test_what_would_fail_again_is_retried_only_when_asked(tmp_path: Path) -> None:
    conclusion = concluded(tmp_path, [ended_by("exception")])[1]
    assert commands_of(conclusion)[0].endswith(" --retry-failed")


def test_epochs_fill_the_window_and_agree_with_its_throughput(tmp_path: Path) -> None:
    # 100 steps of 10 samples, epochs of 400: 40 + 40 + 20 steps. The steps sum to 0.97 s of a window of
    # 1 s, so that each has 0.3 ms of the time between them.
    story = one_rank(times_s=steady_times(100, 0.0097), wall_s=1.0, clock="device_event")
    run, _ = concluded(tmp_path, [story.records()])
    rows = [json.loads(line) for line in (run.root / "metrics_epoch.jsonl").read_text().splitlines()]
    assert [row["epoch"] for row in rows] == [1, 2, 3]
    assert [row["measured_steps"] for row in rows] == [40, 40, 20]
    assert [row["measured_samples"] for row in rows] == [400, 400, 200]
    assert [row["epoch_time_s"] for row in rows] == [pytest.approx(t) for t in (0.4, 0.4, 0.2)]
    assert [row["throughput_samples_per_s"] for row in rows] == [pytest.approx(1000)] * 3
    assert [row["p50_step_ms"] for row in rows] == [pytest.approx(9.7)] * 3
    assert rows[2]["p95_step_ms"] is None  # needs 59 steps


@pytest.mark.promise("S1.10", "S1.27")
def test_the_summary_has_a_row_an_epoch_where_asked(tmp_path: Path) -> None:
    launches = [one_rank(times_s=steady_times(100, 0.01), replicate=number).records() for number in (0, 1)]
    run = write_run(tmp_path, launches, run={"repeats": 2, "summary_csv": "epochs"})
    conclude(run)
    with (run.root / "summary.csv").open() as file:
        header, *rows = csv.reader(file)
    assert header == [*EPOCH_COLUMNS, "case", "replicate"]
    named = [dict(zip(header, row, strict=True)) for row in rows]
    assert [(row["replicate"], row["epoch"]) for row in named] == [
        (replicate, epoch) for replicate in "01" for epoch in "123"
    ]
    assert [row["total_steps"] for row in named] == ["40", "40", "20"] * 2
    assert [float(row["epoch_time_s"]) for row in named] == [pytest.approx(t) for t in (0.4, 0.4, 0.2) * 2]


@pytest.mark.promise("F1.6")
def test_rows_of_epochs_have_the_columns_of_their_header() -> None:
    line = '{"case": "main", "replicate": 0, "epoch": 1, "mean_step_ms": 2.5, "total_steps": 8}\n'
    assert epochs_csv(line) == "epoch,mean_step_ms,total_steps,case,replicate\n1,2.5,8,main,0\n"
    assert epochs_csv("") == ""


def test_without_step_times_the_window_is_one_row(tmp_path: Path) -> None:
    run, _ = concluded(tmp_path, [Story(times_s=()).records()])
    (row,) = [json.loads(line) for line in (run.root / "metrics_epoch.jsonl").read_text().splitlines()]
    assert (row["measured_steps"], row["epoch_time_s"], row["p50_step_ms"]) == (100, 1.0, None)


def test_summary_json_of_two_ranks(tmp_path: Path) -> None:
    records = Story(windows=[window(0), window(1, wall_s=1.01)], times_s=steady_times(100, 0.01)).records()
    run, _ = concluded(tmp_path, [replace(records, records=(environment(), *records.records))])
    summary = json.loads((run.root / "run_summary.json").read_text())
    expected = {"world_size": 2, "batch_size": 10, "global_batch_size": 20, "effective_batch_size": 20}
    expected |= {"total_steps": 100, "total_samples": 2000, "num_launches": 1, "num_planned": 1}
    assert {key: summary[key] for key in expected} == expected
    assert summary["throughput_samples_per_s"] == pytest.approx(2000 / 1.01)
    assert summary["mean_step_ms"] == pytest.approx(10.1)
    assert summary["total_wall_clock_s"] == 12.0  # from 40 s to 52 s on the host's clock
    assert summary["env"] == {"node1": {"torch": "2.6.0", "os": "Linux"}}
    assert summary["p99_step_ms"] is None
    assert summary["percentiles_missing"] == ["p99 needs at least 299 values (100 measured)"]


def test_nothing_measured_is_null_in_every_file(tmp_path: Path) -> None:
    run, conclusion = concluded(tmp_path, [ended_by("exception")])
    summary = json.loads((run.root / "run_summary.json").read_text())
    for key in ("world_size", "throughput_samples_per_s", "mean_step_ms", "p50_step_ms", "validity", "env"):
        assert summary[key] is None, key
    assert summary["total_wall_clock_s"] is None
    assert summary["throughput_interval"] == {"missing": "no launches"}
    assert (run.root / "summary.csv").read_text() == ""
    assert (run.root / "metrics_epoch.jsonl").read_text() == ""
    assert conclusion.result.measures == ()


def test_csv_header_and_rows_have_the_same_columns(tmp_path: Path) -> None:
    run, _ = concluded(tmp_path, [one_rank(replicate=i).records() for i in range(2)])
    with (run.root / "summary.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert [row["replicate"] for row in rows] == ["0", "1"]
    assert [(row["measured_steps"], row["mean_step_ms"], row["peak_allocated_bytes"]) for row in rows] == [
        ("100", "10.0", "")
    ] * 2
    assert all(None not in row for row in rows)


def test_a_key_without_effect_is_told_only_to_whom_set_it(tmp_path: Path) -> None:
    unasked = replace(CHANNELS_LAST, key="training.cudnn_benchmark")
    story = Story(setups=[setup(not_applied=(CHANNELS_LAST, unasked))])
    conclusion = concluded(tmp_path, [story.records()])[1]
    assert detail_of(RecipeDetail, conclusion).common.not_applied == (CHANNELS_LAST,)
    told = [f"{CHANNELS_LAST.key}: {CHANNELS_LAST.reason}"]
    assert lines_of(conclusion, "Ignored settings") == told


def test_the_trace_of_the_first_launch_lies_beside_the_reports(tmp_path: Path) -> None:
    records = one_rank().records()
    traced = replace(
        records, records=(*records.records, ProfileTrace(rank=0, steps=5, file="trace_rank0.json"))
    )
    run = write_run(tmp_path, [traced])
    lost = conclude(run)
    assert any("trace_rank0.json was written but is gone" in note for note in notes_of(lost))
    (run.case_folder(records.case) / "trace_rank0.json").write_text("{}")
    found = conclude(run)
    assert (run.root / "trace_rank0.json").read_text() == "{}"
    assert not any("trace" in note for note in notes_of(found))


def test_environment_and_trace_are_those_of_any_launch_that_has_them(tmp_path: Path) -> None:
    lost = CaseRecords(case=case(replicate=0), records=(start(), failure("lost_rank")))
    told = (
        Environment(host="node1", facts={"cpu": "x"}),
        ProfileTrace(rank=0, steps=1, file="trace_rank0.json"),
    )
    others = [one_rank(replicate=index).records() for index in (1, 2)]
    run = write_run(tmp_path, [lost, *(replace(one, records=(*one.records, *told)) for one in others)])
    (run.case_folder(others[1].case) / "trace_rank0.json").write_text('{"traceEvents": []}')
    conclusion = conclude(run)
    assert json.loads((run.root / "environment.json").read_text()) == {"node1": {"cpu": "x"}}
    assert (run.root / "trace_rank0.json").is_file()
    assert not any("is gone" in note for note in notes_of(conclusion))
    profile = detail_of(RecipeDetail, conclusion).profile
    assert profile is not None
    # of launch 2; that of launch 3 holds no work
    assert profile["missing"] == "trace_rank0.json no longer exists"


def test_a_torn_journal_is_salvaged_and_said(tmp_path: Path) -> None:
    run = write_run(tmp_path, [one_rank().records()])
    journal = run.case_folder(case()) / "rank-0.jsonl"
    journal.write_text(journal.read_text() + '{"kind":"ste')
    conclusion = conclude(run)
    assert conclusion.result.exit_code == ExitCode.DONE
    assert any(
        "rank-0.jsonl: the last line is truncated (12 bytes skipped)" in n for n in notes_of(conclusion)
    )
    cut = journal.read_text().splitlines()[:-2]  # the torn line, and the result before it
    journal.write_text("\n".join(cut) + '\n{"kind":"result","v":1,"ra')
    assert conclude(run).result.exit_code == ExitCode.INCONCLUSIVE


def test_a_run_whose_records_are_gone_keeps_its_result_and_shows_its_measures(tmp_path: Path) -> None:
    steps_s = (0.0100, 0.0101, 0.0102)
    launches = [one_rank(times_s=steady_times(100, x), replicate=i).records() for i, x in enumerate(steps_s)]
    run, first = concluded(tmp_path, launches)
    stored = (run.root / "result.json").read_bytes()
    shutil.rmtree(run.root / "cases")
    again = conclude(run)
    assert again.result == first.result
    assert (run.root / "result.json").read_bytes() == stored
    assert are_figures_measures(again)
    assert "throughput" in {figure.name for figure in figures_of(again)}
    assert notes_of(again)[0].startswith("the records of this run are gone: these are the measures")
    assert conclude_unwritten(run).page == again.page


def test_a_run_that_never_had_records_is_concluded_to_nothing(tmp_path: Path) -> None:
    run, first = concluded(tmp_path, [])
    assert conclude(run).result == first.result
    assert first.result.verdict == "NOTHING MEASURED"

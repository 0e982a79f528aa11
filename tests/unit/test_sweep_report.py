"""A sweep on disk to its report, its files and its exit code, without torch."""

from __future__ import annotations

import csv
import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from concluding import commands_of, detail_of, notes_of, table_of, text_of
from gpuproof.base.errors import ExitCode
from gpuproof.campaign.conclude import Concluded, conclude
from gpuproof.launches.point_measures import PointMeasures
from gpuproof.records.collected import CaseRecords
from gpuproof.records.result import Measure
from gpuproof.records.run import FailureCause
from gpuproof.store.run import RunDirectory
from gpuproof.suites.points.results import PointsDetail, read_values
from gpuproof.suites.sections import MEANING
from points_by_hand import at, failed, ladder
from records_by_hand import one_rank, steady_times, write_run

PRECISIONS = {"training.precision": ["fp32", "bf16", "amp"]}


def three(point: str, *steps_s: float) -> list[CaseRecords]:
    """Launches of 100 steps of 10 samples."""
    return [
        at(point, one_rank(times_s=steady_times(100, step_s), replicate=i).records())
        for i, step_s in enumerate(steps_s)
    ]


def concluded(
    tmp_path: Path, launches: Sequence[CaseRecords], *, repeats: int = 1, **sections: Any
) -> tuple[RunDirectory, Concluded]:
    sections = sections or {"matrix": PRECISIONS}
    run = write_run(tmp_path, launches, run={"repeats": repeats}, **sections)
    return run, conclude(run)


def points_of(conclusion: Concluded) -> tuple[PointMeasures, ...]:
    return read_values(conclusion.result)


def point_of(conclusion: Concluded, name: str) -> PointMeasures:
    return next(found for found in points_of(conclusion) if found.case_id == name)


def headlines(conclusion: Concluded) -> tuple[Measure, ...]:
    """Return the measures of the whole, which stand above those of the points."""
    return conclusion.result.measures[: detail_of(PointsDetail, conclusion).num_headlines]


def outcome(conclusion: Concluded, point: str) -> str:
    """Say how a point ended, as the table of points does."""
    place = [found.case_id for found in points_of(conclusion)].index(point)
    return table_of(conclusion, "Points")[place]["outcome"].text


def test_points_of_three_launches_are_compared_with_the_best(tmp_path: Path) -> None:
    launches = [
        *three("precision=fp32", 0.0100, 0.0101, 0.0102),
        *three("precision=bf16", 0.0050, 0.00505, 0.0051),
        *three("precision=amp", 0.0050, 0.0051, 0.0052),
    ]
    run, conclusion = concluded(tmp_path, launches, repeats=3)
    assert conclusion.result.exit_code == ExitCode.DONE
    best = point_of(conclusion, "precision=bf16")
    # 3,000 samples in 1.515 s, 3.03 s and 1.53 s.
    assert best.rate_value == pytest.approx(3000 / 1.515)
    assert best.assignment == {"training.precision": "bf16"}
    assert outcome(conclusion, "precision=bf16") == "best"
    assert outcome(conclusion, "precision=fp32") == "-50.0%; slower at 95% for all pairs together"
    assert outcome(conclusion, "precision=amp").startswith("-1.0%; no difference shown (one of ")
    assert [row["precision"].text for row in table_of(conclusion, "Points")] == ["fp32", "bf16", "amp"]
    (measure,) = headlines(conclusion)
    assert (measure.name, measure.case) == ("best throughput", "precision=bf16")
    assert (conclusion.result.conditions["model"], conclusion.result.conditions["batch_size"]) == (
        "resnet18",
        10,
    )
    assert conclusion.result.conditions["precision"] is None  # points differ in it
    assert measure.detail.startswith("at precision=bf16; 95% interval ")
    assert conclusion.result.num_launches == conclusion.result.num_planned == 9

    summary = json.loads((run.root / "run_summary.json").read_text())
    assert summary["best"] == "precision=bf16"
    assert [point["case_id"] for point in summary["points"]] == [p.case_id for p in points_of(conclusion)]
    # Three pairs share the 5 %.
    assert summary["points"][0]["against_best"]["confidence"] == pytest.approx(1 - 0.05 / 3)
    assert summary["points"][0]["precision"] == "fp32"
    with (run.root / "summary.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert [found["training.precision"] for found in rows] == ["fp32", "bf16", "amp"]
    assert float(rows[0]["mean_step_ms"]) == pytest.approx(10.1)
    epochs = [json.loads(line) for line in (run.root / "metrics_epoch.jsonl").read_text().splitlines()]
    assert {epoch["case"] for epoch in epochs} == {p.case_id for p in points_of(conclusion)}


def test_a_sweep_has_a_row_an_epoch_where_asked(tmp_path: Path) -> None:
    launches = [*three("precision=fp32", 0.01), *three("precision=bf16", 0.005)]
    asked = {"repeats": 1, "summary_csv": "epochs"}
    run = write_run(tmp_path, launches, run=asked, matrix={"training.precision": ["fp32", "bf16"]})
    conclude(run)
    epochs = [json.loads(line) for line in (run.root / "metrics_epoch.jsonl").read_text().splitlines()]
    with (run.root / "summary.csv").open() as file:
        rows = list(csv.DictReader(file))
    found = [(row["case"], row["replicate"], row["epoch"]) for row in rows]
    assert found == [(row["case"], str(row["replicate"]), str(row["epoch"])) for row in epochs]


def test_one_launch_a_point_compares_nothing(tmp_path: Path) -> None:
    launches = [*three("precision=fp32", 0.01), *three("precision=bf16", 0.02), *three("precision=amp", 0.04)]
    _, conclusion = concluded(tmp_path, launches)
    assert outcome(conclusion, "precision=bf16") == "-50.0%; cannot tell"
    assert any("points were not compared: each needs 3 launches" in note for note in notes_of(conclusion))


def test_forked_launches_compare_nothing_however_many(tmp_path: Path) -> None:
    launches = [
        at(point, one_rank(times_s=steady_times(100, step_s), replicate=i).records(), forked=True)
        for point, step_s in (("precision=fp32", 0.01), ("precision=bf16", 0.02), ("precision=amp", 0.04))
        for i in range(4)
    ]
    _, conclusion = concluded(tmp_path, launches, repeats=4)
    assert outcome(conclusion, "precision=bf16") == "-50.0%; cannot tell"
    rate = point_of(conclusion, "precision=bf16").rate
    assert rate is not None
    assert rate.interval is None
    assert any("forked from one process" in note for note in notes_of(conclusion))


@pytest.mark.parametrize(
    ("cause", "exit_code"),
    [
        ("out_of_memory", ExitCode.FAILED),
        ("environment", ExitCode.FAILED),
        ("timeout", ExitCode.FAILED),
        ("interrupted", ExitCode.INTERRUPTED),
        ("disk_full", ExitCode.UNFIT_ENVIRONMENT),
    ],
)
def test_a_failed_point_fails_the_sweep_and_takes_nothing_from_the_others(
    cause: FailureCause, exit_code: ExitCode, tmp_path: Path
) -> None:
    launches = [
        *three("precision=fp32", 0.01),
        failed("precision=bf16", cause),
        *three("precision=amp", 0.02),
    ]
    _, conclusion = concluded(tmp_path, launches)
    assert conclusion.result.exit_code == exit_code
    assert outcome(conclusion, "precision=fp32") == "best"
    assert outcome(conclusion, "precision=bf16") == f"{cause.replace('_', ' ')}: told of {cause}"
    (said,) = conclusion.result.failures
    assert said.message == f"at precision=bf16: told of {cause}"
    assert commands_of(conclusion)[0].startswith("gpuproof run --resume")


def test_a_machine_that_no_point_can_run_on_is_unfit(tmp_path: Path) -> None:
    launches = [failed(f"precision={name}", "environment") for name in ("fp32", "bf16", "amp")]
    _, conclusion = concluded(tmp_path, launches)
    assert conclusion.result.exit_code == ExitCode.UNFIT_ENVIRONMENT
    assert headlines(conclusion) == ()
    assert conclusion.result.headline == "0 of 3 points"


def test_a_sweep_that_was_cut_short_is_inconclusive(tmp_path: Path) -> None:
    _, conclusion = concluded(tmp_path, three("precision=fp32", 0.01))
    assert conclusion.result.exit_code == ExitCode.INCONCLUSIVE
    assert (conclusion.result.num_launches, conclusion.result.num_planned) == (1, 3)
    assert outcome(conclusion, "precision=amp") == "not launched"


def test_points_that_count_different_things_have_no_best(tmp_path: Path) -> None:
    tokens, *_ = three("name=decoder", 0.01)
    counted = tuple(
        replace(record, item="tokens") if hasattr(record, "item") else record for record in tokens.records
    )
    matrix = {"model.name": ["resnet18", "decoder"]}
    launches = [*three("name=resnet18", 0.01), replace(tokens, records=counted)]
    _, conclusion = concluded(tmp_path, launches, matrix=matrix)
    assert headlines(conclusion) == ()
    assert any("count different things (samples, tokens)" in note for note in notes_of(conclusion))
    assert conclusion.result.headline == "2 of 2 points"
    assert text_of(conclusion).splitlines()[:2] == [f"VALID: {MEANING['VALID']}", "2 of 2 points"]


def test_a_search_says_what_fits_and_where_it_stops_paying(tmp_path: Path) -> None:
    run, conclusion = concluded(tmp_path, ladder(), search={"kind": "batch_size"})
    assert conclusion.result.exit_code == ExitCode.DONE
    best, largest, knee = headlines(conclusion)
    # 1,600, 2,133, 2,207 and 2,182 samples/s: 32 has 96.7 % of the best.
    assert best.value == pytest.approx(64 / 0.029)
    assert (largest.name, largest.text) == ("largest that fits", "batch 96")
    assert largest.detail == "112 ran out of memory"
    assert (knee.text, knee.value) == ("batch 32", 32)
    assert [point.case_id for point in points_of(conclusion)] == [
        f"batch_size={batch}" for batch in (16, 32, 64, 96, 112, 128)
    ]
    assert outcome(conclusion, "batch_size=128") == "out of memory, as expected"
    assert conclusion.result.failures == ()
    summary = json.loads((run.root / "run_summary.json").read_text())
    assert (summary["largest_batch_that_fits"], summary["smallest_batch_out_of_memory"]) == (96, 112)


def test_a_search_that_broke_off_says_so(tmp_path: Path) -> None:
    launches = [*ladder()[:2], failed("batch_size=64", "hang", batch=64)]
    _, conclusion = concluded(tmp_path, launches, search={"kind": "batch_size"})
    assert conclusion.result.exit_code == ExitCode.FAILED
    largest = headlines(conclusion)[1]
    assert (largest.name, largest.detail) == (
        "largest that was tried",
        "none of the batch sizes that were tried ran out of memory",
    )

"""Collectives on real ranks over gloo: every operation with right results, and one that is corrupted."""

from __future__ import annotations

import csv
import json
from pathlib import Path
from statistics import fmean
from typing import get_args

import pytest

from gpuproof.launches.collectives import bus_factor
from gpuproof.records.work.collective import CollectiveTrial, Operation
from running import clean_environment, gpuproof, only_case, run_directory

QUIETLY = (
    *("--distributed.device=cpu", "--distributed.threads_per_rank=1", "--monitoring.enabled=false"),
    "--verbose",  # the whole page
)
CORRUPTING = Path(__file__).parents[1] / "fakes" / "corrupting_collective"
RANKS, ITERATIONS = 3, 10


def test_every_operation_gives_right_results_and_the_same_figures_everywhere(tmp_path: Path) -> None:
    operations = get_args(Operation)
    result = gpuproof(
        *("run", "collectives", f"--nproc={RANKS}", *QUIETLY, "--run.run_id=all"),
        *("-b", "4", "-e", "16K", "-f", "64", "-n", str(ITERATIONS), "-w", "1", "-z", "1"),
        f"--collective.operations=[{', '.join(operations)}]",
        "--distributed.communication_profile=no_p2p",
        cwd=tmp_path,
    )
    assert result.returncode == 0, result.stdout + result.stderr
    run = run_directory(tmp_path, "all", "collectives")
    trials = only_case(run).of(CollectiveTrial)
    assert {(t.rank, t.operation, t.asked_bytes) for t in trials} == {
        (rank, operation, size)
        for rank in range(RANKS)
        for operation in operations
        for size in (4, 256, 16384)
    }
    assert sum(trial.num_wrong for trial in trials) == 0
    assert all(len(trial.durations_s) in (0, ITERATIONS) for trial in trials)
    compared = {(t.operation, t.asked_bytes) for t in trials if t.num_checked}
    assert {size for _, size in compared} == {4, 256, 16384}
    assert {operation for operation, _ in compared} == set(operations)
    with (run.root / "collectives.csv").open() as file:
        rows = list(csv.DictReader(file))
    measures = json.loads((run.root / "result.json").read_text())["measures"]
    for row in rows:
        of_row = [
            t for t in trials if t.operation == row["operation"] and t.size_bytes == int(row["size_bytes"])
        ]
        time_s = fmean(fmean(trial.durations_s) for trial in of_row)
        factor = bus_factor(of_row[0].operation, RANKS)
        assert factor is not None
        bus = factor * of_row[0].size_bytes / time_s
        assert float(row["bus_bytes_per_s"]) == pytest.approx(bus)
        (measure,) = [
            m
            for m in measures
            if m["labels"].get("size_bytes") == of_row[0].size_bytes
            and m["labels"]["operation"] == row["operation"]
            and m["labels"].get("quantity") == "bus bandwidth"
            and m["statistic"] == "mean"
        ]
        assert measure["value"] == pytest.approx(bus)
    # 4 bytes are one element: operations that give each rank a part leave that size out, and say so
    assert "all_gather: 4 bytes are less than one element for each of 3 ranks" in result.stdout
    ignored = "distributed.communication_profile: its settings are for NCCL, and ranks use gloo"
    assert ignored in " ".join(result.stdout.split())


@pytest.mark.parametrize(
    ("only", "wrong"),
    [("", 16), ("9", 1)],  # all of 5 that warm up, 10 timed and one more; or only one that is timed
)
def test_a_result_that_is_corrupted_on_one_rank_fails_the_run(only: str, wrong: int, tmp_path: Path) -> None:
    result = gpuproof(
        *("run", "collectives", "--nproc=2", *QUIETLY, "--run.run_id=bad"),
        *("-b", "64K", "-e", "64K", "-n", "10", "-w", "5"),
        cwd=tmp_path,
        environment=clean_environment(PYTHONPATH=str(CORRUPTING), CORRUPTED_SUM=only),
    )
    assert result.returncode == 3, result.stdout + result.stderr
    said = " ".join(result.stdout.split())
    assert f"{wrong} of 524,288 elements of all_reduce of 64.0 KiB are wrong" in said
    assert "seen on rank 1" in said


def test_one_rank_is_refused_before_anything_is_started(tmp_path: Path) -> None:
    result = gpuproof("run", "collectives", cwd=tmp_path)
    assert result.returncode == 2
    assert "a collective over one rank transfers nothing" in result.stderr
    assert not (tmp_path / "results").exists()

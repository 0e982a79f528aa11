"""Several ranks: totals are totals, however the ranks were started."""

from __future__ import annotations

import json
import re
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import psutil
import pytest

from gpuproof.base.errors import ExitCode
from gpuproof.records.breakdown import OwnCompute
from gpuproof.records.collected import CaseRecords
from gpuproof.records.journal import decode, encode
from gpuproof.records.run import Setup, Start, Window
from ports import free_ports
from running import (
    MEASURED,
    TIMEOUT_S,
    TINY,
    clean_environment,
    gpuproof,
    gpuproof_command,
    only_case,
    run_directory,
)
from waiting import eventually


def free_port() -> str:
    return str(free_ports())


def assert_totals_are_totals(folder: Path, run_id: str, *, ranks: int) -> CaseRecords:
    """Hold the reported throughput against the raw windows: all samples over the longest, ratio 1."""
    run = run_directory(folder, run_id)
    records = only_case(run)
    windows = records.of(Window)
    assert sorted(window.rank for window in windows) == list(range(ranks))
    assert len({window.num_steps for window in windows}) == 1
    samples = sum(window.items for window in windows)
    longest_s = max(window.wall_s for window in windows)
    summary = json.loads((run.root / "run_summary.json").read_text())
    assert summary["throughput_samples_per_s"] / (samples / longest_s) == pytest.approx(1.0)
    assert summary["total_samples"] == samples
    assert summary["world_size"] == ranks
    batch = summary["effective_batch_size"]
    assert summary["throughput_samples_per_s"] * summary["mean_step_ms"] / 1e3 == pytest.approx(batch)
    return records


@pytest.mark.parametrize("ranks", [1, 2, pytest.param(4, marks=pytest.mark.long)])
@pytest.mark.promise("S1.1", "S1.3", "S1.21", "F1.8", "S3.10")
def test_throughput_is_all_samples_over_the_longest_window(ranks: int, tmp_path: Path) -> None:
    words = (*TINY, "--nproc", str(ranks), "--run.run_id=n", "--distributed.threads_per_rank=null", "-v")
    result = gpuproof("run", "quick", *words, cwd=tmp_path)
    assert result.returncode in MEASURED, result.stdout + result.stderr
    records = assert_totals_are_totals(tmp_path, "n", ranks=ranks)
    assert all(window.items == 20 * 8 for window in records.of(Window))
    assert {setup.threads for setup in records.of(Setup)} == {max(1, usable_cpus() // ranks)}
    assert {setup.backend for setup in records.of(Setup)} == {"gloo" if ranks > 1 else None}
    assert ("not representative" in result.stdout) == (ranks > 1)


def usable_cpus() -> int:
    import os

    return len(os.sched_getaffinity(0))


def test_ranks_stop_a_window_by_seconds_after_the_same_step(tmp_path: Path) -> None:
    result = gpuproof(
        *("run", "quick", *TINY, "--nproc=2", "--benchmark.measure_by=time", "--benchmark.measure_seconds=1"),
        "--profiling.enabled=true",
        *("--distributed.gradient_accumulation_steps=2", "--run.run_id=s"),
        cwd=tmp_path,
    )
    assert result.returncode == 0, result.stdout + result.stderr
    records = assert_totals_are_totals(tmp_path, "s", ranks=2)
    assert all(setup.items_per_step == 16 for setup in records.of(Setup))
    summary = json.loads((run_directory(tmp_path, "s").root / "run_summary.json").read_text())
    assert 0 < summary["comm_exposed_ms"] <= summary["comm_kernel_ms"]
    assert summary["allreduce_standalone_ms"] is None
    assert set(summary["communication_missing"]) == {"allreduce_standalone_ms"}


def under_torchrun(folder: Path, *words: str) -> subprocess.CompletedProcess[str]:
    """Run `gpuproof WORDS` as two ranks of a launcher of the user's."""
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node=2"]
    return subprocess.run(
        [*torchrun, f"--master-port={free_port()}", *gpuproof_command(*words)[1:]],
        cwd=folder,
        env=clean_environment(),
        capture_output=True,
        text=True,
        timeout=TIMEOUT_S,
    )


def start_rank(
    rank: int, command: list[str], folder: Path, *, port: str, of: int = 2
) -> subprocess.Popen[str]:
    """Start one of several ranks with the variables set by hand."""
    return start_process(command, folder, RANK=str(rank), WORLD_SIZE=str(of), MASTER_PORT=port)


@contextmanager
def two_ranks(command: list[str], folder: Path) -> Iterator[list[subprocess.Popen[str]]]:
    """Start two ranks; whatever happens, none is left."""
    port = free_port()
    ranks = [start_rank(rank, command, folder, port=port) for rank in (0, 1)]
    try:
        yield ranks
    finally:
        for process in ranks:
            process.kill()


def start_process(command: list[str], folder: Path, **variables: str) -> subprocess.Popen[str]:
    """Start one process of a launch on this machine, with what a launcher would set."""
    folder.mkdir(exist_ok=True)
    return subprocess.Popen(
        command,
        cwd=folder,
        env=clean_environment(MASTER_ADDR="127.0.0.1", **variables),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def validating(*, iterations: int, stages: str = "collective") -> list[str]:
    """Return the words of a short validation of two ranks."""
    sizes = f"{{operations: [all_reduce], min_bytes: 8K, max_bytes: 8K, iterations: {iterations}}}"
    return [
        *("validate", "--recipe=quick", "--allow-cpu", "--device=cpu", "--runs=2", "--run.run_id=v"),
        *(f"--validate.stages=[{stages}]", f"--validate.collective={sizes}"),
    ]


@pytest.mark.promise("S1.3")
def test_under_a_torchrun_of_the_users(tmp_path: Path) -> None:
    result = under_torchrun(tmp_path, "run", "quick", *TINY, "--run.run_id=t")
    assert result.returncode == 0, result.stdout + result.stderr
    assert_totals_are_totals(tmp_path, "t", ranks=2)
    assert result.stdout.count("medium training on synthetic") == 1


def test_a_validation_under_a_torchrun_of_the_users(tmp_path: Path) -> None:
    """The ranks stay for launch after launch; what takes some of them is left out, and passes nothing."""
    result = under_torchrun(tmp_path, *validating(iterations=3, stages="links,collective"))
    found = json.loads((tmp_path / "results/validate-quick/v/result.json").read_text())
    assert (found["verdict"], found["num_launches"]) == ("INCONCLUSIVE", 2), result.stderr
    measured = {each["name"]: each["outcome"] for each in found["outcomes"]}
    assert measured["collective-within was measured"]["status"] == "PASS"
    assert measured["links was measured"]["status"] == "SKIP"
    assert "1 of the 2 ranks" in measured["links was measured"]["reason"]
    assert "exitcode  : 4" in result.stderr  # rank 0's, and no rank's before


def test_a_rank_that_waits_says_for_what_and_ends_without_a_traceback(tmp_path: Path) -> None:
    command = gpuproof_command("run", "quick", *TINY)
    with start_rank(1, command, tmp_path, port=free_port()) as waiting:
        try:
            told = next(line for line in waiting.stderr or () if line.startswith("gpuproof: "))
            waiting.send_signal(signal.SIGINT)
            _, rest = waiting.communicate(timeout=TIMEOUT_S)
        finally:
            waiting.kill()
    assert "rank 1 of 2 is waiting for rank 0 at 127.0.0.1:" in told
    assert waiting.returncode == ExitCode.INTERRUPTED, rest
    assert "Traceback" not in rest


OPEN_MPI = "OMPI_COMM_WORLD_RANK OMPI_COMM_WORLD_SIZE OMPI_COMM_WORLD_LOCAL_RANK OMPI_COMM_WORLD_LOCAL_SIZE"
PMI = "PMI_RANK PMI_SIZE MPI_LOCALRANKID MPI_LOCALNRANKS"


@pytest.mark.parametrize("names", [OPEN_MPI, pytest.param(PMI, marks=pytest.mark.long)])
def test_a_validation_of_processes_that_mpi_started(names: str, tmp_path: Path) -> None:
    port, command = free_port(), gpuproof_command(*validating(iterations=3))
    ranks = []
    for rank in ("0", "1"):
        variables = dict(zip(names.split(), (rank, "2", rank, "2"), strict=True))
        ranks.append(start_process(command, tmp_path, MASTER_PORT=port, **variables))
    outputs = [process.communicate(timeout=TIMEOUT_S) for process in ranks]
    found, told = what_became_of_it(tmp_path)
    assert (told["status"], found["num_launches"]) == ("PASS", 2), outputs
    assert_ended(ranks, outputs, code=ExitCode.INCONCLUSIVE)


def assert_ended(
    ranks: Sequence[subprocess.Popen[str]], outputs: Sequence[tuple[str, str]], *, code: int
) -> None:
    """Rank 0 ends with `code`, and rank 1 well, unless it did not hear in time that it is over."""
    assert ranks[0].returncode == code, outputs
    assert ranks[1].returncode == 0 or re.search(r"ranks? 1\b.* did not learn", outputs[0][1]), outputs


def what_became_of_it(folder: Path) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return the result of a short validation, and what it says of its collective."""
    result = json.loads((folder / "results/validate-quick/v/result.json").read_text())
    (told,) = [x["outcome"] for x in result["outcomes"] if x["name"] == "collective-within was measured"]
    return result, told


@pytest.mark.parametrize(
    "number",
    # Over hosts, `test_the_rank_that_is_stopped_or_killed_is_named` stops one in every run of the tests.
    [signal.SIGKILL, pytest.param(signal.SIGSTOP, marks=pytest.mark.long)],
)
def test_a_rank_of_the_users_launcher_that_is_lost_is_named_and_its_place_is_taken_again(
    number: signal.Signals, tmp_path: Path
) -> None:
    """It is the process of one launch that is lost, not the rank that starts one for each launch.

    Who sees it first says which of the two reasons there is: rank 0, which gloo does not always tell that its
    peer was killed, or who follows rank 0 and ends what stays stopped.
    """
    command = gpuproof_command(*validating(iterations=10_000), "--distributed.hang_timeout_s=8")
    reasons = {
        f"rank 1 on {socket.gethostname()} reported nothing": ExitCode.FAILED,
        "rank 1 ended without an error message": ExitCode.INCONCLUSIVE,
    }
    launches = tmp_path / "results/validate-quick/v/cases/collective-within"

    def measuring() -> bool:
        return '"measure"' in (launches / "0" / "rank-1.jsonl").read_text()

    with two_ranks(command, tmp_path) as ranks:
        eventually("a rank that measures", measuring)
        (own,) = (x for x in psutil.Process(ranks[1].pid).children() if "join" in x.cmdline())
        own.send_signal(number)
        outputs = [process.communicate(timeout=TIMEOUT_S) for process in ranks]
    found, told = what_became_of_it(tmp_path)
    assert told["status"] == "ERROR", outputs
    code = ranks[0].returncode
    assert code in [code for reason, code in reasons.items() if reason in told["reason"]], outputs
    assert found["num_launches"] == 1
    verdict = "NOT-READY" if code == ExitCode.FAILED else "INCONCLUSIVE"
    assert found["verdict"] == verdict, outputs
    assert_ended(ranks, outputs, code=code)
    assert not own.is_running()


COMES_WITHIN_S = 20
"""For the one rank that comes, and has nothing to do any more but to say so."""


def test_a_rank_that_never_comes_is_named_and_nobody_waits_for_it_for_ever(tmp_path: Path) -> None:
    command = gpuproof_command(*validating(iterations=3), f"--distributed.timeout_s={COMES_WITHIN_S}")
    ranks = list[subprocess.Popen[str]]()
    port = free_port()
    try:
        ranks.append(start_rank(1, command, tmp_path, port=port, of=3))
        assert any("is waiting for rank 0" in line for line in ranks[0].stderr or ())
        ranks.insert(0, start_rank(0, command, tmp_path, port=port, of=3))
        outputs = [process.communicate(timeout=TIMEOUT_S) for process in ranks]
    finally:
        for process in ranks:
            process.kill()
    found, told = what_became_of_it(tmp_path)
    assert (told["status"], found["verdict"]) == ("ERROR", "INCONCLUSIVE"), outputs
    assert f"rank 2 did not reach MASTER_ADDR within {COMES_WITHIN_S} s" in told["reason"]
    why = outputs[0][0].split("\nWhy\n")[1].split()
    assert "rank 2 did not reach" in " ".join(why[:20]), "the cause stands first"
    assert_ended(ranks, outputs, code=ExitCode.UNFIT_ENVIRONMENT)
    assert re.search(r"ranks? (1, )?2 did not learn within 30 s that the run is over", outputs[0][1])


@pytest.mark.promise("S1.20", "S3.11")
def test_with_the_variables_set_by_hand_and_nothing_shared(tmp_path: Path) -> None:
    port = free_port()
    folders = [tmp_path / "rank 0", tmp_path / "rank 1"]
    command = gpuproof_command("run", "quick", *TINY, "--run.run_id=h")
    # A rank that is shown nothing at rank 0's path, as on a host of its own.
    hide = f"mount -t tmpfs none '{folders[0]}' && cd '{folders[1]}' && exec \"$@\""
    command_of_rank_1 = ["unshare", "--mount", "--map-root-user", "sh", "-c", hide, "sh", *command]
    processes = [
        start_rank(rank, words, folders[rank], port=port)
        for rank, words in enumerate([command, command_of_rank_1])
    ]
    outputs = [process.communicate(timeout=TIMEOUT_S) for process in processes]
    assert [process.returncode for process in processes] == [0, 0], outputs
    records = assert_totals_are_totals(folders[0], "h", ranks=2)
    assert {start.rank for start in records.of(Start)} == {0, 1}
    assert "stores its records in" in outputs[1][1]


@pytest.mark.parametrize(
    ("variables", "words", "message"),
    [
        ({"WORLD_SIZE": "2"}, [], "WORLD_SIZE=2 is set but RANK is not"),
        ({"WORLD_SIZE": "two", "RANK": "0"}, [], "WORLD_SIZE='two' is not an integer"),
        ({"WORLD_SIZE": "2", "RANK": "0"}, ["--run.repeats=3"], "run.repeats"),
        ({"WORLD_SIZE": "2", "RANK": "1"}, ["--nproc=2"], "distributed.nproc"),
        ({"WORLD_SIZE": "2", "RANK": "0"}, ["--distributed.world_size=4"], "distributed.world_size"),
    ],
)
def test_a_launch_that_contradicts_the_config_is_refused(
    variables: dict[str, str], words: list[str], message: str, tmp_path: Path
) -> None:
    result = gpuproof("run", "quick", *TINY, *words, cwd=tmp_path, environment=clean_environment(**variables))
    assert result.returncode == 2
    assert message in result.stderr
    assert "Traceback" not in result.stderr
    assert not (tmp_path / "results").exists()


LAGGING = """
import os, time
from torch import nn

class Lagging(nn.Module):
    def __init__(self, *, num_classes):
        super().__init__()
        self.layers = nn.Sequential(nn.Flatten(), nn.BatchNorm1d(192), nn.Linear(192, num_classes))
        self.pause_s = 0.05 if os.environ["RANK"] == "1" else 0.01

    def forward(self, images):
        time.sleep(self.pause_s)
        return self.layers(images)
"""


def make_steady(journal: Path, step_s: float) -> None:
    """Set the steps that a rank took by itself: what noise lies over real ones is the machine's."""
    records = [decode(line) for line in journal.read_text().splitlines()]
    for number, record in enumerate(records):
        if isinstance(record, OwnCompute):
            bursts_s = tuple((step_s,) * len(burst) for burst in record.bursts_s)
            records[number] = replace(record, bursts_s=bursts_s)
    journal.write_text("".join(encode(record) + "\n" for record in records))


def test_the_rank_that_the_other_waits_for_is_named(tmp_path: Path) -> None:
    (tmp_path / "lagging.py").write_text(LAGGING)
    asked = ["--model.name=python:lagging:Lagging", "--model.num_classes=10", "--data.image_size=8"]
    result = gpuproof(
        *("run", "quick", *TINY, *asked, "--nproc", "2", "--benchmark.measure_steps=10", "--run.run_id=l"),
        cwd=tmp_path,
        environment=clean_environment(PYTHONPATH=str(tmp_path)),
    )
    run = run_directory(tmp_path, "l")
    own = {each.rank: each.bursts_s for each in only_case(run).of(OwnCompute)}
    assert {rank: len(bursts_s) for rank, bursts_s in own.items()} == {0: 5, 1: 5}, result.stderr
    assert min(map(min, own[0])) >= 0.01
    assert min(map(min, own[1])) >= 0.05
    for rank, step_s in ((0, 0.01), (1, 0.05)):
        make_steady(run.root / f"cases/main/0/rank-{rank}.jsonl", step_s)
    reported = gpuproof("report", str(run.root), cwd=tmp_path)
    concluded = run.read_result()
    assert concluded is not None
    (reason,) = [doubt.reason for doubt in concluded.doubts if doubt.code == "unequal-ranks"]
    assert reason.startswith("rank 1 on ")
    assert "slower than the other rank" in reason
    assert reason in " ".join(reported.stdout.split())

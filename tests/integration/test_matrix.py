"""A matrix as a person starts it: cases side by side, ended at their time, and taken up again."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from gpuproof.base.errors import ExitCode
from gpuproof.records.case import DeviceTaken
from gpuproof.records.collected import CaseRecords
from gpuproof.records.readings import Mark
from gpuproof.records.work.command import CommandEnded, CommandMetrics, ProcessTree
from gpuproof.store.run import RunDirectory
from gpuproof.worker.rank.watchdog import process_lives
from running import TIMEOUT_S, clean_environment, gpuproof, gpuproof_command
from simulating import needs_simulator, simulated
from waiting import eventually

PROGRAM = Path(__file__).parents[1] / "fakes" / "trains.py"
ARGV = [
    sys.executable,
    str(PROGRAM),
    "--optimizer",
    "{optimizer}",
    "--seed",
    "{seed}",
    "--out",
    "{output_dir}",
]
SEEDS = "matrix:\n  optimizer: [sgd, adam]\n  seed: [1, 2, 3]\n"


def written(folder: Path, matrix: str, *more: str) -> str:
    """Write a matrix of the program, with more words of its command."""
    command = {"argv": [*ARGV, *more], "metrics": "training_metrics.json", "time_limit_s": 600}
    path = folder / "m.yaml"
    path.write_text(f"command: {json.dumps(command)}\n{matrix}")
    return str(path)


def only_run(folder: Path) -> RunDirectory:
    (path,) = (folder / "results" / "matrix").iterdir()
    return RunDirectory.open(path)


def by_name(run: RunDirectory) -> dict[str, CaseRecords]:
    return {records.case.case_id: records for records in run.cases()}


@pytest.mark.promise("S4.11", "S4.14", "F4.11")
def test_cases_side_by_side_on_devices_that_each_has_to_itself(tmp_path: Path) -> None:
    """Eight devices that do not exist, six cases: each on one of its own, read and reported."""
    matrix = written(tmp_path, SEEDS + 'cases:\n  name: "{optimizer}_{seed}"\n  parallel: 6\n', "--sampled")
    environment = clean_environment(GPUPROOF_FAKE_DEVICES="8")
    done = gpuproof("matrix", matrix, "--output-dir", "out", cwd=tmp_path, environment=environment)
    assert done.returncode == 0, done.stderr
    assert "optimizer=adam has the highest test_accuracy" in done.stdout
    run = only_run(tmp_path)
    cases = by_name(run)
    taken = {name: found for name, records in cases.items() for found in records.of(DeviceTaken)}
    assert set(taken) == {f"{optimizer}_{seed}" for optimizer in ("sgd", "adam") for seed in (1, 2, 3)}
    assert {found.cases_per_device for found in taken.values()} == {1}
    assert all(found.beside == 0 for found in taken.values())
    (printed,) = run.root.glob("test_matrix_results_*/adam_1/output.log")
    assert printed.samefile(run.case_folder(cases["adam_1"].case) / "output.log")  # one file, two names
    tree = tmp_path / "out"
    names = {path.name for path in (tree / "adam_1").iterdir()}
    assert {"output.log", "error.txt", "training_metrics.json"} <= names
    (stats,) = (tree / "adam_1").glob("gpu_stats_adam_1_*[0-9].json")
    rows = json.loads(stats.read_text())
    assert {row["gpu_name"] for row in rows} == {"Fake device"}
    assert rows[-1]["training_metadata"]["optimizer"] == "adam"
    assert {path.name for path in (tree / "graphs").iterdir()} == {
        "gpu_memory_timeline.png",
        "training_memory_comparison.png",
        "comparison.png",
    }
    results = {row["test_id"]: row for row in json.loads((tree / "all_results.json").read_text())}
    assert results["adam_2"]["success"]
    assert results["adam_2"]["test_accuracy"] == pytest.approx(0.902)
    assert [mark.metadata["epoch"] for mark in cases["sgd_1"].of(Mark)] == [1]


@pytest.mark.parametrize("words", [("m.yaml",), ("--config-dir", "files")])
def test_where_the_files_go_is_tried_before_any_case_runs(words: tuple[str, ...], tmp_path: Path) -> None:
    """A folder that cannot be made; or the second of two matrices' folders that holds something."""
    (tmp_path / "files").mkdir()
    for name in ("files/a.yaml", "files/b.yaml", "m.yaml"):
        (tmp_path / name).write_text(json.dumps({"command": ["true"]}))
    (tmp_path / "out" / "b.yaml").mkdir(parents=True)
    (tmp_path / "out" / "b.yaml" / "mine.txt").touch()
    out = "out" if "files" in words else "out/b.yaml/mine.txt/below"
    done = gpuproof("matrix", *words, "--output-dir", out, cwd=tmp_path)
    assert (done.returncode, not (tmp_path / "results").exists()) == (2, True), done.stderr
    assert "is not empty" in done.stderr or "cannot be written: Not a directory" in done.stderr


@pytest.mark.promise("R4.7")
def test_a_case_that_fails_and_one_that_hangs_keep_their_data_and_can_be_run_again(tmp_path: Path) -> None:
    matrix = "matrix:\n  ends: [well, badly, never]\n"
    argv = [sys.executable, str(PROGRAM), "--ends", "{ends}"]
    command = {"argv": argv, "metrics": "training_metrics.json", "time_limit_s": 30}
    (tmp_path / "m.yaml").write_text(f"command: {json.dumps(command)}\n{matrix}")
    done = gpuproof("matrix", "m.yaml", cwd=tmp_path)
    assert done.returncode == 3, done.stderr
    run = only_run(tmp_path)
    cases = by_name(run)
    (ended,) = cases["ends=badly"].of(CommandEnded)
    assert (ended.returncode, ended.ended_by) == (7, "itself")
    failure = cases["ends=badly"].primary_failure
    assert failure is not None
    assert (failure.cause, "status 7: out of luck" in failure.message) == ("exit_status", True)
    hung = cases["ends=never"]
    assert hung.primary_failure is not None
    assert hung.primary_failure.cause == "timeout"
    assert hung.of(CommandMetrics)[0].values["test_accuracy"] == pytest.approx(0.8)
    assert len(hung.of(ProcessTree)[-1].pids) <= 2
    child = run.case_folder(hung.case) / "files" / "child.txt"
    assert not process_lives(int(child.read_text()))
    assert "status 7" in done.stdout
    again = gpuproof("matrix", "--rerun-dir", str(run.root), "--filter", "ends=badly", cwd=tmp_path)
    assert again.returncode == 3
    aside = sorted(path.name for path in (run.root / "cases" / "ends=badly").iterdir())
    assert aside == ["0", "0.attempt-1"]
    assert [path.name for path in (run.root / "cases" / "ends=well").iterdir()] == ["0"]
    settled = gpuproof("matrix", "--continue-dir", str(run.root), cwd=tmp_path)
    assert settled.returncode == 3
    assert "launch 1/" not in settled.stderr


BESIDE = """
import beside, os, pathlib, time
open("m.json", "w").write('{"loss": 0.5}')
journal = pathlib.Path(os.environ["GPUPROOF_OUTPUT_DIR"]).parent / "rank-0.jsonl"
while "process_tree" not in journal.read_text():
    time.sleep(0.05)
"""


def test_equal_failures_are_told_once_and_end_the_matrix_until_they_are_mended(tmp_path: Path) -> None:
    (tmp_path / "program.py").write_text("import sys\nsys.exit(f'{sys.executable} {sys.argv[1]}')\n")
    command = json.dumps(["{python}", "program.py", "never", "{seed}"])
    (tmp_path / "m.yaml").write_text(f"command: {command}\nmatrix: {{seed: [1, 2, 3, 4, 5]}}\n")
    environment = clean_environment(PATH="/usr/bin:/bin")
    done = gpuproof("matrix", "m.yaml", cwd=tmp_path, environment=environment)
    assert done.returncode == ExitCode.FAILED, done.stderr
    page = " ".join(done.stdout.split())
    assert page.count("rank 0 on") == 1
    assert "and in 2 more of 3 launches: the command ended with status 1" in page
    assert f"{sys.executable} never" in page
    assert "2 launches were not started, since the first 3 failed the same way" in page
    run = only_run(tmp_path)
    assert len(run.cases()) == 3
    (tmp_path / "program.py").write_text("")
    again = ("matrix", "--continue-dir", str(run.root), "--retry-failed")
    mended = gpuproof(*again, cwd=tmp_path, environment=environment)
    assert mended.returncode == 0, mended.stderr
    assert "not begun" not in mended.stdout


def test_a_command_alone_is_a_run_of_its_kind(tmp_path: Path) -> None:
    """Without a GPU, and with the script's own folder to import from, as it has without us."""
    (tmp_path / "beside.py").write_text("NAME = 'beside'\n")
    (tmp_path / "script.py").write_text(BESIDE)
    command = {"argv": [sys.executable, "script.py"], "metrics": "m.json", "collect": ["m.json"]}
    (tmp_path / "m.yaml").write_text(json.dumps({"kind": "command", "command": command}))
    done = gpuproof("run", "m.yaml", "--json", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    result = json.loads(done.stdout)
    (case,) = result["detail"]["cases"]
    assert case["metrics"] == {"loss": 0.5}
    assert case["memory"]["missing"] == "no GPU was recorded during the case"
    assert case["resident"]["peak_bytes"] > 2**20
    missing = gpuproof("run", "m.yaml", "--command.argv=[no-such-program]", cwd=tmp_path)
    assert missing.returncode == 2
    assert "command.argv: there is no program no-such-program" in missing.stderr
    assert len(list((tmp_path / "results" / "benchmark").iterdir())) == 1


SIGNALS_SEEN = """
import os, signal, time
def say(number, _frame):
    os.write(1, b"%d " % number)
for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
    signal.signal(number, say)
os.write(1, b"%d " % os.getpid())
while True:
    time.sleep(60)
"""


def test_ctrl_c_reaches_a_case_as_one_signal_of_ours_and_leaves_nothing(tmp_path: Path) -> None:
    """A terminal's signal goes to our whole process group, which cases are not of: we end them ourselves."""
    command = {"argv": [sys.executable, "-c", SIGNALS_SEEN]}
    (tmp_path / "m.yaml").write_text(json.dumps({"kind": "command", "command": command}))
    process = subprocess.Popen(
        gpuproof_command("matrix", "m.yaml"), cwd=tmp_path, process_group=0, stderr=subprocess.DEVNULL
    )
    found = eventually("its output", lambda: [p for p in tmp_path.rglob("output.log") if p.stat().st_size])
    os.killpg(process.pid, signal.SIGINT)
    assert process.wait(timeout=TIMEOUT_S) == ExitCode.INTERRUPTED
    pid, *seen = map(int, found[0].read_text().split())
    assert seen in ([], [signal.SIGTERM])  # none where it was killed before it could say so
    assert not process_lives(pid)


def test_a_secret_reaches_the_command_and_no_file(tmp_path: Path) -> None:
    (tmp_path / "s.py").write_text("import os; assert os.environ['MY_API_KEY'] == 'hunter2-0123'\n")
    command = {"argv": [sys.executable, "s.py"], "env": {"MY_API_KEY": None}}
    (tmp_path / "m.yaml").write_text(json.dumps({"kind": "command", "command": command}))
    words, given = ("run", "m.yaml", "--run.run_id=s"), clean_environment(MY_API_KEY="hunter2-0123")
    done = gpuproof(*words, cwd=tmp_path, environment=given)
    assert done.returncode == 0, done.stderr
    kept = [path for path in (tmp_path / "results").rglob("*") if path.is_file()]
    assert kept
    assert [path for path in kept if b"hunter2" in path.read_bytes()] == []
    again = gpuproof("run", "--resume", "results/benchmark/s", cwd=tmp_path)
    assert again.returncode == 2
    assert "the variable MY_API_KEY is not set" in again.stderr


@needs_simulator
def test_workloads_take_simulated_devices_in_turn(tmp_path: Path) -> None:
    (tmp_path / "m.yaml").write_text(
        "model: {name: medium}\ndata: {name: synthetic, batch_size: 4}\ntraining: {precision: fp32}\n"
        "benchmark: {warmup_steps: 1, measure_steps: 30, count_flops: false}\n"
        "distributed: {device: simgpu}\nmatrix:\n  training.optimizer: [SGD, AdamW]\n"
    )
    done = gpuproof("matrix", "m.yaml", "--parallel", "2", cwd=tmp_path, environment=simulated(devices=8))
    assert done.returncode == 0, done.stderr
    assert "SIMULATED" in done.stdout
    cases = by_name(only_run(tmp_path))
    used = [setup.device.uuid for records in cases.values() for setup in records.setups]
    taken = [found.uuid for records in cases.values() for found in records.of(DeviceTaken)]
    assert sorted(map(str, used)) == sorted(map(str, taken))

"""The load suite by the real command, all twelve tests on the CPU: a fault, an interruption, a kill."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import psutil
import pytest

from gpuproof.base.errors import ExitCode
from gpuproof.records.run import Start
from gpuproof.store.run import RunDirectory
from gpuproof.suites.load.plan import TESTS
from integration.conftest import FAULTY, SOURCE, CommandLine, Fingerprint, fingerprint
from running import MEASURED, clean_environment, gpuproof
from waiting import eventually

BROKEN = FAULTY.parent / "broken_resnet"
BROKEN_TEST = "inference_resnet_bs16"
PLANTED = {"PYTHONPATH": os.pathsep.join(map(str, (SOURCE, FAULTY, BROKEN)))}
TINY = ("--quick", "--num-batches", "2", "--device", "cpu", "--output", "results.json")


def only_run(command_line: CommandLine) -> RunDirectory:
    (root,) = (command_line.folder / "results" / "load").iterdir()
    return RunDirectory.open(root)


def results(command_line: CommandLine) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((command_line.folder / "results.json").read_text())
    return found


def statuses(run: RunDirectory) -> dict[str, str]:
    return {records.case.case_id: records.status for records in run.cases()}


def finished(run: RunDirectory) -> dict[str, Fingerprint]:
    """Fingerprint what is done, test by test."""
    names = [name for name, status in statuses(run).items() if status == "done"]
    return {name: fingerprint(run.root / "cases" / name) for name in names}


def interrupted_in_the_third(command_line: CommandLine) -> RunDirectory:
    process = command_line.start("load", *TINY, **PLANTED)
    runs = command_line.folder / "results" / "load"
    eventually("the third test", lambda: list(runs.glob("*/cases/train_simple_cnn_bs64/0/rank-0.jsonl")))
    process.send_signal(signal.SIGINT)
    ended = command_line.finish(process)
    assert ended.returncode == 130, ended.stderr
    assert "resume with: gpuproof load --resume" in ended.stderr
    return only_run(command_line)


def killed_in_the_fifth(command_line: CommandLine, run: RunDirectory) -> None:
    process = command_line.start("load", "--resume", str(run.root), "-o", "results.json", **PLANTED)
    eventually("the fifth test", (run.root / "cases/train_resnet_bs16/0/rank-0.jsonl").exists)
    process.kill()
    command_line.finish(process)
    # They notice at their own time, and have last words, which would be in the way of the next.
    eventually("its ranks' end", lambda: not living(run.root))


def living(root: Path) -> list[int]:
    """Return the processes that have this folder in their command."""
    processes = psutil.process_iter(["cmdline", "status"])
    return [
        process.pid
        for process in processes
        if str(root) in " ".join(process.info["cmdline"] or ())
        and process.info["status"] != psutil.STATUS_ZOMBIE
    ]


@pytest.mark.promise("S0.4", "S0.8", "S0.9", "S0.10", "S0.11", "S0.12", "S0.13", "S0.35", "F0.12", "F0.13")
def test_a_fault_an_interruption_and_a_kill_take_nothing_from_the_other_tests(
    command_line: CommandLine,
) -> None:
    run = interrupted_in_the_third(command_line)
    kept, done = results(command_line), finished(run)
    assert len(done) >= 2
    assert kept["test_summary"]["successful_tests"] == len(done)
    assert "inference_resnet_bs32" in kept["test_summary"]["not_run_tests"]

    killed_in_the_fifth(command_line, run)
    done |= {name: found for name, found in finished(run).items() if name != "train_resnet_bs16"}
    log = ("--log-file", "load.log")
    ended = command_line.run("load", "--resume", str(run.root), "-o", "results.json", *log, **PLANTED)
    assert ended.returncode == 3, ended.stderr
    assert "Traceback" not in ended.stderr
    assert {name: found for name, found in finished(run).items() if name in done} == done
    assert_all_but_the_broken_one(results(command_line))
    assert "failed: exception" in " ".join(ended.stdout.split())
    assert "DEBUG" in (command_line.folder / "load.log").read_text()
    assert {start.start for records in run.cases() for start in records.of(Start)} == {"fork"}

    done = finished(run)
    retry = ("load", "--resume", str(run.root), "--retry-failed", "-o", "results.json", "--json")
    again = command_line.run(*retry)
    assert again.returncode in MEASURED, again.stderr
    assert json.loads(again.stdout)["failures"] == []
    assert {name: found for name, found in finished(run).items() if name != BROKEN_TEST} == done
    assert results(command_line)["test_summary"]["successful_tests"] == 12


def assert_all_but_the_broken_one(found: dict[str, Any]) -> None:
    assert [each["test_name"] for each in found["results"]] == [test.name for test in TESTS]
    assert found["test_summary"]["failed_tests"] == 1
    (wrong,) = (each for each in found["results"] if not each["success"])
    assert wrong["test_name"] == BROKEN_TEST
    assert "ValueError: no room for 16 images" in wrong["error_message"]
    assert wrong["throughput_samples_per_second"] is None
    for each in found["results"]:
        if each["success"]:
            assert each["iterations"] == 2
            assert each["throughput_samples_per_second"] > 0
            assert each["missing"]["peak_gpu_memory_mb"] == "the test ran on the CPU"


@pytest.mark.promise("S0.2")
def test_the_script_of_a_checkout_is_the_same_command(tmp_path: Path) -> None:
    script = Path(__file__).parents[2] / "gpu_loadtest.py"
    shown = subprocess.run(
        [sys.executable, str(script), "--help"],
        cwd=tmp_path,
        env=clean_environment(),
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert shown.returncode == 0, shown.stderr
    assert "Run the twelve tests of the load suite" in shown.stdout


def test_a_python_without_the_libraries_is_told_what_it_lacks(tmp_path: Path) -> None:
    bare = tmp_path / "bare" / "bin" / "python"
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", tmp_path / "bare"], check=True)
    root = Path(__file__).parents[2]
    script = shutil.copy(root / "gpu_loadtest.py", tmp_path)
    environment = {**clean_environment(), "PYTHONPATH": str(root / "src")}
    for words, lacking in (([script], "gpuproof is not installed, with what"), (["-m", "gpuproof"], "click")):
        ended = subprocess.run([bare, *words], env=environment, cwd=tmp_path, capture_output=True, text=True)
        assert (ended.returncode, ended.stdout) == (ExitCode.UNFIT_ENVIRONMENT, "")
        assert lacking in ended.stderr
        assert "Traceback" not in ended.stderr


@pytest.mark.promise("S0.2")
def test_the_script_copied_by_itself_says_the_line_that_installs_what_it_needs(tmp_path: Path) -> None:
    script = shutil.copy(Path(__file__).parents[2] / "gpu_loadtest.py", tmp_path)
    bare = tmp_path / "bare" / "bin" / "python"
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", tmp_path / "bare"], check=True)

    def said() -> str:
        ended = subprocess.run([bare, script], env=clean_environment(), capture_output=True, text=True)
        assert (ended.returncode, ended.stdout) == (ExitCode.UNFIT_ENVIRONMENT, "")
        return ended.stderr

    assert f"install it once: {bare} -m pip install '/PATH/TO/gpuproof[torch]'" in said()
    assert "gpuproof load --deployment-file FILE" in said()
    wheel = tmp_path / "gpuproof-0.2.0-py3-none-any.whl"
    wheel.touch()
    assert f"Install it once: {bare} -m pip install '{wheel}[torch]'" in said()


@pytest.mark.promise("S0.18", "S0.19")
def test_a_device_that_is_not_there_is_one_error_with_the_flag_that_mends_it(tmp_path: Path) -> None:
    done = gpuproof("load", "--quick", "--device=cuda", cwd=tmp_path)
    assert done.returncode == ExitCode.UNFIT_ENVIRONMENT, done.stderr
    said = " ".join(done.stdout.split())
    assert said.count("no CUDA device") == 2  # the reason of the verdict, and what failed
    assert "give `gpuproof load` --device cpu" in said
    assert len(list((tmp_path / "results" / "load").glob("*/cases/*"))) == 1
    (written,) = tmp_path.glob("gpu_loadtest_results_*.json")
    assert re.fullmatch(r"gpu_loadtest_results_\d{10}\.json", written.name)
    assert json.loads(written.read_text())["test_summary"]["failed_tests"] == 1

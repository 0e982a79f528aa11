"""A run that is killed again and again is finished by --resume, and no launch that was done runs twice."""

from __future__ import annotations

import random
import shutil
import signal
import subprocess
import time
from collections import Counter
from contextlib import suppress
from pathlib import Path

import psutil
import pytest

from gpuproof.records.run import RankResult, Steps
from gpuproof.store.run import RunDirectory
from integration.conftest import CommandLine, Fingerprint, Run, fingerprint
from running import MEASURED
from waiting import PATIENCE_S

NUM_KILLS, MOST_KILLS = 12, 100
REPEATS = 3
SEED = 20_261_120


def tiny_run(command_line: CommandLine, name: str) -> Run:
    return Run(command_line=command_line, run_id=f"{name}_{time.monotonic_ns()}")


def test_resuming_a_finished_run_launches_nothing(a_run: Run) -> None:
    first = a_run.run("medium", steps=20)
    assert first.returncode in MEASURED, first.stderr
    before = fingerprint(a_run.root / "cases")
    for words in ((), ("--retry-failed",)):
        again = a_run.resume(*words)
        assert again.returncode == first.returncode, again.stderr
        assert "launch " not in again.stderr
        assert again.stdout.partition("Files")[0] == first.stdout.partition("Files")[0] != ""
    assert fingerprint(a_run.root / "cases") == before


def test_a_folder_without_a_run_is_named_as_what_it_is(a_run: Run) -> None:
    (a_run.root / "cases").mkdir(parents=True)  # what a kill in the first moment leaves
    refused = a_run.run("medium", steps=20)
    assert refused.returncode == 2
    assert "already exists, and is not a run. Remove it" in refused.stderr
    assert a_run.resume().returncode == 2


@pytest.mark.parametrize("controller_only", [True, False])
def test_a_command_that_is_killed_while_steps_run_is_finished_by_resume(
    a_run: Run, *, controller_only: bool
) -> None:
    process = a_run.start("faulty", f"--run.repeats={REPEATS}", steps=20, step_s=0.02)
    a_run.record(Steps, replicate=1)
    kill(process, controller_only=controller_only)
    assert process.wait(PATIENCE_S) == -signal.SIGKILL
    done = unchanged_and_newly_done(a_run, {})
    assert len(done) >= 1
    resumed = a_run.resume()
    assert resumed.returncode in MEASURED, resumed.stderr
    unchanged_and_newly_done(a_run, done)
    check_finished(a_run)


@pytest.mark.long
def test_killed_at_many_random_moments(command_line: CommandLine) -> None:
    chance = random.Random(SEED)
    began_s = time.monotonic()
    assert tiny_run(command_line, "whole").run("faulty", steps=20, step_s=0.02).returncode in MEASURED
    launch_s = time.monotonic() - began_s  # so that moments spread over a launch, however busy the machine

    num_kills = 0
    runs: list[Run] = []
    while num_kills < NUM_KILLS or not any(run.attempts() for run in runs):  # until a kill hit a launch
        runs.append(run := tiny_run(command_line, f"killed{len(runs)}"))
        done: dict[Path, Fingerprint] = {}
        while True:
            process = start_or_resume(run)
            moment_s = chance.uniform(0, 1.5 * launch_s) if num_kills < MOST_KILLS else None
            if not killed(process, run, moment_s, controller_only=num_kills % 2 == 0):
                break
            num_kills += 1
            done |= unchanged_and_newly_done(run, done)
        assert process.returncode in MEASURED, process.communicate()
        unchanged_and_newly_done(run, done)
        check_finished(run)


def start_or_resume(run: Run) -> subprocess.Popen[str]:
    if (run.root / "run.json").exists():
        return run.command_line.start("run", "--resume", str(run.root))
    shutil.rmtree(run.root, ignore_errors=True)  # as the message for such a folder says
    return run.start("faulty", f"--run.repeats={REPEATS}", steps=20, step_s=0.02)


def killed(
    process: subprocess.Popen[str], run: Run, moment_s: float | None, *, controller_only: bool
) -> bool:
    """Kill the command after `moment_s`, alone or with all that it started; False if it ended before."""
    try:
        run.command_line.finish(process, timeout_s=moment_s)
    except subprocess.TimeoutExpired:
        kill(process, controller_only=controller_only)
        return True
    return False


def kill(process: subprocess.Popen[str], *, controller_only: bool) -> None:
    """Kill a command, alone or with all that it started."""
    victims = [] if controller_only else psutil.Process(process.pid).children(recursive=True)
    process.kill()
    for victim in victims:
        with suppress(psutil.NoSuchProcess):
            victim.kill()


def unchanged_and_newly_done(run: Run, done: dict[Path, Fingerprint]) -> dict[Path, Fingerprint]:
    """Read every journal there is; return the files of all launches done, of which none has changed."""
    if not (run.root / "run.json").exists():
        return {}
    folders = [
        run.folder(records.case.replicate)
        for records in RunDirectory.open(run.root).cases()
        if records.status == "done"
    ]
    now = {folder: of_ranks(folder) for folder in folders}
    assert {folder: now.get(folder) for folder in done} == done
    return now


def of_ranks(folder: Path) -> Fingerprint:
    """Return what the ranks of a launch left; its sampler may outlive them, and a command that was killed."""
    return {name: at for name, at in fingerprint(folder).items() if not name.startswith("monitor-")}


def check_finished(run: Run) -> None:
    """Exactly the launches asked for are done, and no attempt that was moved aside had been."""
    assert run.statuses() == ["done"] * REPEATS
    assert [records.case.replicate for records in RunDirectory.open(run.root).cases()] == list(range(REPEATS))
    assert Counter(attempt.status for attempt in run.attempts()).keys() <= {"unfinished"}
    assert not any(attempt.of(RankResult) for attempt in run.attempts())
    assert not list(run.root.rglob(".*.part"))
    assert not list(run.root.rglob(".reserve-*"))
    assert run.all_gone()

"""Cases forked from a process with torch: the same results and last words as by exec, nothing left behind."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psutil
import pytest

import preloaded
from gpuproof.campaign.campaign import create_run, run_campaign
from gpuproof.config.load import load_config
from gpuproof.launchers.base import HostError
from gpuproof.launchers.local.site import LocalLauncher
from gpuproof.processes.fork import LOST, ForkServer
from gpuproof.records.case import Case
from gpuproof.records.collected import CaseRecords
from gpuproof.records.journal import read_journal
from gpuproof.records.readings import RecordingEnd
from gpuproof.records.run import Failure, RankResult, Setup, Start, Steps
from gpuproof.store.names import read_config
from gpuproof.store.run import RunDirectory, read_case
from integration.conftest import FAULTY, SOURCE, TINY, Run
from launching import wait_until
from planning import next_cases
from running import MEASURED
from waiting import PATIENCE_S, eventually

LONG = 10_000
"""Steps of 20 ms that no test waits for."""


@dataclass(kw_only=True)
class Watcher:
    """A campaign's progress; at the first steps of the first launch it does something."""

    at_steps: Any = None
    go: Path | None = None
    """Made once a launch has ended: until then steps are held, so that what is done amid them is in time."""
    ended: list[str] = field(default_factory=list)
    folder: Path | None = None

    def says(self, line: str) -> None:
        """Hear of it."""

    def case_begins(
        self, case: Case, *, hosts: Sequence[str], position: int, total: int, more: bool = False
    ) -> None:
        """Hear of it."""

    def case_advances(self, case: Case, records: Sequence[Any]) -> None:
        """Do the thing once."""
        if self.at_steps is not None and any(isinstance(record, Steps) for record in records):
            act, self.at_steps = self.at_steps, None
            act()

    def case_ends(self, records: CaseRecords) -> None:
        """Remember how it ended, and let later launches go on."""
        if self.go is not None:
            self.go.touch()
        self.ended.append(records.status)

    def host_failed(self, error: HostError) -> None:
        """Hear of it."""


@pytest.fixture(scope="module")
def launcher() -> Iterator[LocalLauncher]:
    """One launcher for all tests, so that torch is imported as seldom as in a sweep."""
    environment = {**os.environ, "PYTHONPATH": f"{SOURCE}{os.pathsep}{FAULTY}"}
    launcher = LocalLauncher(environment=environment)
    preloaded.server()  # started at the first need of it, which may come amid these tests
    before = set(children())
    yield launcher
    launcher.close()
    assert eventually("the end of the servers", lambda: set(children()) <= before)


def children() -> list[int]:
    return [child.pid for child in psutil.Process().children(recursive=True) if lives(child.pid)]


def lives(pid: int) -> bool:
    try:
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


@pytest.fixture
def faulty(monkeypatch: pytest.MonkeyPatch) -> None:
    """The faulty workloads on the control side too."""
    monkeypatch.syspath_prepend(str(FAULTY))


def forked_run(
    folder: Path, *overrides: str, model: str = "faulty", steps: int = 20, **options: object
) -> RunDirectory:
    words = [
        *TINY,
        f"--model.name={model}",
        "--run.start=fork",
        f"--run.save_dir='{folder}'",
        "--run.repeats=1",
        f"--benchmark.measure_steps={steps}",
        "--distributed.threads_per_rank=1",
        *(f"--model.options.{name}={value}" for name, value in options.items()),
        *overrides,
    ]
    loaded = load_config("quick", words)
    return create_run(loaded.config, origins=loaded.origins, source=loaded.source)


def case_of(run: RunDirectory, replicate: int = 0) -> CaseRecords:
    return read_case(run.root / "cases" / "main" / str(replicate))


def server_of(run: RunDirectory) -> psutil.Process:
    (start,) = case_of(run).of(Start)
    parent = psutil.Process(start.pid).parent()
    assert parent is not None
    assert "serve-cases" in parent.cmdline()
    return parent


def processes_of(run: RunDirectory) -> list[int]:
    """Name the living processes whose records are in the run."""
    return [start.pid for records in run.cases() for start in records.of(Start) if lives(start.pid)]


def test_a_forked_case_computes_what_a_fresh_process_computes(
    launcher: LocalLauncher, tmp_path: Path
) -> None:
    words = ("--run.repeats=2", "--data.batch_size=256", "--distributed.threads_per_rank=2")
    forked = forked_run(tmp_path / "forked", *words, model="medium")
    fresh = forked_run(tmp_path / "fresh", *words, "--run.start=exec", "--run.repeats=1", model="medium")
    for run in (forked, fresh):
        assert run_campaign(run, launcher=launcher, progress=Watcher()).result.exit_code in MEASURED
    cases = [case_of(forked, 0), case_of(forked, 1), case_of(fresh)]
    assert [records.of(Start)[0].start for records in cases] == ["fork", "fork", "exec"]
    assert {records.of(Setup)[0].threads for records in cases} == {2}
    (loss,) = {records.of(RankResult)[0].last_loss for records in cases}
    assert loss is not None
    for replicate in (0, 1):
        folder = forked.root / "cases" / "main" / str(replicate)
        assert (folder / "stderr-0.txt").read_text() == ""
        assert (folder / "launcher-output.txt").read_text() == ""
        assert (folder / "launch.txt").read_text().startswith("# forked by: ")
        (recording,) = folder.glob("monitor-*.jsonl")
        assert isinstance(read_journal(recording).records[-1], RecordingEnd)


def test_each_failure_is_its_own_cases_and_the_others_go_on(
    launcher: LocalLauncher, faulty: None, tmp_path: Path
) -> None:
    unless = f"'{tmp_path / 'struck'}'"
    run = forked_run(tmp_path, "--run.repeats=3", fault="raise", unless_file=unless)
    watcher = Watcher()
    assert run_campaign(run, launcher=launcher, progress=watcher).result.exit_code == 3
    assert watcher.ended == ["failed", "done", "done"]
    (failure,) = case_of(run).of(Failure)
    assert failure.message == "ValueError: the model broke in step 3"
    assert "ValueError" in (run.root / "cases/main/0/stderr-0.txt").read_text()
    concluded = run_campaign(run, launcher=launcher, progress=watcher, retry_failed=True)
    assert concluded.result.exit_code in MEASURED
    assert "no interval: launches forked from one process" in concluded.result.measures[0].detail


def test_a_killed_case_is_lost_and_the_server_goes_on(
    launcher: LocalLauncher, faulty: None, tmp_path: Path
) -> None:
    go = tmp_path / "go"
    run = forked_run(tmp_path, "--run.repeats=2", until_file=f"'{go}'")
    watcher = Watcher(at_steps=lambda: os.kill(case_of(run).of(Start)[0].pid, signal.SIGKILL), go=go)
    assert run_campaign(run, launcher=launcher, progress=watcher).result.exit_code == 3
    assert watcher.ended == ["unfinished", "done"]
    (failure,) = case_of(run).of(Failure)
    assert (failure.cause, "ended without an error message by SIGKILL" in failure.message) == (
        "lost_rank",
        True,
    )
    assert run_campaign(run, launcher=launcher, progress=watcher).result.exit_code in MEASURED
    assert watcher.ended[2:] == ["done"]


def test_a_case_notices_that_its_server_was_killed_and_the_next_gets_another(
    launcher: LocalLauncher, faulty: None, tmp_path: Path
) -> None:
    go = tmp_path / "go"
    run = forked_run(tmp_path, "--run.repeats=2", until_file=f"'{go}'")
    killed: list[int] = []

    def kill_the_server() -> None:
        killed.append(server_of(run).pid)
        os.kill(killed[0], signal.SIGKILL)

    watcher = Watcher(at_steps=kill_the_server, go=go)
    run_campaign(run, launcher=launcher, progress=watcher)
    assert watcher.ended == ["unfinished", "done"]
    (failure,) = case_of(run).of(Failure)
    assert failure.message == f"the process that started this one (process {killed[0]}) is gone"
    assert processes_of(run) == []
    assert not lives(killed[0])


def test_a_case_over_its_time_is_ended_with_last_words(
    launcher: LocalLauncher, faulty: None, tmp_path: Path
) -> None:
    warm = forked_run(tmp_path / "warm")
    assert run_campaign(warm, launcher=launcher, progress=Watcher()).result.exit_code in MEASURED
    run = forked_run(tmp_path, "--run.time_limit_s=15", steps=LONG, step_s=0.02)
    assert run_campaign(run, launcher=launcher, progress=Watcher()).result.exit_code == 124
    own, launch = sorted(case_of(run).of(Failure), key=lambda failure: failure.rank is None)
    assert (own.cause, own.rank, launch.cause) == ("interrupted", 0, "timeout")
    assert own.stacks
    assert processes_of(run) == []


def test_a_case_that_hangs_in_native_code_is_ended(
    launcher: LocalLauncher, faulty: None, tmp_path: Path
) -> None:
    run = forked_run(tmp_path, "--distributed.hang_timeout_s=15", fault="hold_lock")
    assert run_campaign(run, launcher=launcher, progress=Watcher()).result.exit_code == 3
    assert case_of(run).of(Failure)[0].cause == "lost_rank"
    assert "_go_wrong" in (run.root / "cases/main/0/stderr-0.txt").read_text()
    assert processes_of(run) == []


def test_a_server_that_answers_no_more_is_ended_with_its_case(
    launcher: LocalLauncher, faulty: None, tmp_path: Path
) -> None:
    run = forked_run(tmp_path, steps=LONG, step_s=0.02)
    (case,) = next_cases(read_config(run))
    launched = launcher.start(case, [""], run.begin_case(case))
    eventually("steps", lambda: case_of(run).of(Steps))
    server = server_of(run)
    server.suspend()
    launched.end(1.0)
    wait_until(launcher, "the end", lambda: launched.is_over)
    assert launched.status is not None
    eventually("its end and its server's", lambda: not processes_of(run) and not lives(server.pid))


def test_a_server_that_ends_at_once_leaves_nobody_waiting(tmp_path: Path) -> None:
    output = tmp_path / "output.txt"
    server = ForkServer([sys.executable, "-c", "raise SystemExit('no')"], environment={}, output=output)
    early = server.fork(["run"], output=output)
    eventually("its end", lambda: not server.is_alive)
    assert early.wait(PATIENCE_S) == LOST
    assert server.fork(["run"], output=output).wait(PATIENCE_S) == LOST
    assert "no" in output.read_text()
    server.close(PATIENCE_S)


def test_a_server_that_is_killed_while_it_tells_of_a_child_leaves_nobody_waiting(tmp_path: Path) -> None:
    output = tmp_path / "output.txt"
    cut_off = (
        "import os, sys; fd = int(sys.argv[-1].partition('=')[2]); os.read(fd, 4096); os.write(fd, b'{')"
    )
    server = ForkServer([sys.executable, "-c", cut_off], environment={}, output=output)
    assert server.fork(["run"], output=output).wait(PATIENCE_S) == LOST
    assert server.fork(["run"], output=output).wait(PATIENCE_S) == LOST
    server.close(PATIENCE_S)


NO_CUDA = """
import os, sys, threading, torch
def refuse(*_, **__): raise AssertionError("CUDA was called")
for name in ("is_available", "device_count", "init", "_lazy_init", "current_device", "get_device_properties"):
    setattr(torch.cuda, name, refuse)
from gpuproof.worker.commands import serve_cases
serve_cases.preload()
known = set(sys.modules)
assert threading.active_count() == 1, threading.enumerate()
assert not torch.cuda.is_initialized()
import torch.nn as nn
model = nn.Linear(8, 8)
step = torch.optim.SGD(model.parameters(), lr=0.1)
model(torch.randn(4, 8)).sum().backward()
step.step()
print(len(set(sys.modules) - known))
"""


def test_the_server_calls_no_cuda_and_imports_all_that_a_first_step_needs() -> None:
    words = [sys.executable, "-c", NO_CUDA]
    answer = subprocess.run(
        words, env={**os.environ, "PYTHONPATH": str(SOURCE)}, capture_output=True, text=True
    )
    assert answer.returncode == 0, answer.stderr
    assert int(answer.stdout) < 20, "without the preload, some 800 modules"


@pytest.mark.parametrize("how", ["SIGTERM", "SIGKILL"])
def test_nothing_is_left_of_a_campaign_that_is_ended(a_run: Run, how: str) -> None:
    process = a_run.start("faulty", "--run.start=fork", "--run.repeats=2", steps=20, until_file="go")
    a_run.record(Steps)
    process.send_signal(signal.Signals[how])
    assert a_run.all_gone()
    ended = a_run.command_line.finish(process)
    assert ended.returncode == (130 if how == "SIGTERM" else -9)
    assert a_run.record(Failure).cause == "interrupted"
    if how == "SIGTERM":
        assert "resume with" in ended.stderr

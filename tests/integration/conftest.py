"""The real command line, run as a user runs it: a process in a folder with an awkward name."""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

import psutil
import pytest

from gpuproof.records.collected import CaseRecords
from gpuproof.records.journal import read_journal
from gpuproof.store.run import RunDirectory, read_case
from waiting import PATIENCE_S, eventually

TESTS = Path(__file__).resolve().parents[1]
SOURCE = TESTS.parent / "src"
FAULTY = TESTS / "fakes" / "faulty"
TINY = (
    "--data.name=synthetic",
    "--data.batch_size=4",
    "--benchmark.warmup_steps=1",
    "--benchmark.measure_by=steps",
    "--run.experiment_name=tests",
    "--run.commit_hash=null",
    "--distributed.device=cpu",
)
T = TypeVar("T")

collect_ignore = ["simulate_alone.py", "simulate_ranks.py", "train_in_parallel.py"]
"""Programs that tests start: importing them would take the device into the tests' own process."""


@dataclass(kw_only=True)
class CommandLine:
    """`python -m gpuproof …` in one folder, with one environment."""

    folder: Path
    environment: Mapping[str, str]
    started: list[subprocess.Popen[str]] = field(default_factory=list)

    def start(self, *words: str, **environment: str) -> subprocess.Popen[str]:
        """Start a command as a shell would, in a process group of its own."""
        process = subprocess.Popen(
            [sys.executable, "-m", "gpuproof", *words],
            cwd=self.folder,
            env={**self.environment, **environment},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )
        self.started.append(process)
        return process

    def run(self, *words: str, **environment: str) -> subprocess.CompletedProcess[str]:
        """Run a command to its end."""
        return self.finish(self.start(*words, **environment))

    def finish(
        self, process: subprocess.Popen[str], *, timeout_s: float | None = None
    ) -> subprocess.CompletedProcess[str]:
        """Wait for a command that was started."""
        output, errors = process.communicate(timeout=PATIENCE_S if timeout_s is None else timeout_s)
        return subprocess.CompletedProcess(process.args, process.returncode, output, errors)

    def path(self, run_id: str) -> Path:
        """Return where a run of `tiny` lies."""
        return self.folder / "results" / "tests" / run_id


@dataclass(frozen=True, kw_only=True)
class Run:
    """One run under test: its command, its files, its processes."""

    command_line: CommandLine
    run_id: str

    @property
    def root(self) -> Path:
        """The run directory."""
        return self.command_line.path(self.run_id)

    def words(self, model: str, *overrides: str, steps: int, **options: object) -> list[str]:
        """Return the words of a tiny run of `model` with these options of its own."""
        chosen = [f"--model.options.{name}={value}" for name, value in options.items()]
        length = f"--benchmark.measure_steps={steps}"
        named = [f"--model.name={model}", f"--run.run_id={self.run_id}", "--run.repeats=1"]
        return ["run", "quick", *TINY, *named, length, *chosen, *overrides]

    def start(self, model: str, *overrides: str, steps: int, **options: object) -> subprocess.Popen[str]:
        """Start a tiny run."""
        return self.command_line.start(*self.words(model, *overrides, steps=steps, **options))

    def run(
        self, model: str, *overrides: str, steps: int, **options: object
    ) -> subprocess.CompletedProcess[str]:
        """Run a tiny run to its end."""
        return self.command_line.finish(self.start(model, *overrides, steps=steps, **options))

    def resume(self, *words: str) -> subprocess.CompletedProcess[str]:
        """Resume it, and wait."""
        return self.command_line.run("run", "--resume", str(self.root), *words)

    def report(self) -> str:
        """Return the report's text on one line, so that where it is wrapped does not matter."""
        return " ".join(self.command_line.run("report", str(self.root)).stdout.split())

    def folder(self, replicate: int = 0) -> Path:
        """Return the folder of a launch."""
        return self.root / "cases" / "main" / str(replicate)

    def case(self, replicate: int = 0) -> CaseRecords:
        """Read what a launch left."""
        return read_case(self.folder(replicate))

    def attempts(self) -> list[CaseRecords]:
        """Read every attempt that was moved aside; all of its journals must be readable."""
        return [read_case(spec.parent) for spec in sorted(self.root.glob("cases/main/*.attempt-*/spec.json"))]

    def statuses(self) -> list[str]:
        """Return how each launch stands, in order."""
        return [records.status for records in RunDirectory.open(self.root).cases()]

    def record(self, kind: type[T], *, rank: int = 0, replicate: int = 0) -> T:
        """Wait until a rank has written a record of this kind."""

        def found() -> list[Any]:
            path = self.folder(replicate) / f"rank-{rank}.jsonl"
            records = read_journal(path).records if path.exists() else ()
            return [record for record in records if isinstance(record, kind)]

        answer: T = eventually(f"a {kind.__name__} record of rank {rank}", found)[0]
        return answer

    def processes(self) -> list[psutil.Process]:
        """Return every living process that was started for this run."""
        found = []
        for process in psutil.process_iter(["cmdline", "status"]):
            words = " ".join(process.info["cmdline"] or ())
            if self.run_id in words and process.info["status"] != psutil.STATUS_ZOMBIE:
                found.append(process)
        return found

    def all_gone(self) -> bool:
        """Wait until none of its processes lives."""
        return eventually("the end of every process", lambda: not self.processes())


Fingerprint = dict[str, tuple[str, int]]


def fingerprint(folder: Path) -> Fingerprint:
    """Return content and time of change of every file under `folder`."""
    return {
        str(path.relative_to(folder)): (
            hashlib.sha256(path.read_bytes()).hexdigest(),
            path.stat().st_mtime_ns,
        )
        for path in sorted(folder.rglob("*"))
        if path.is_file()
    }


@pytest.fixture
def weird_tmp_path(tmp_path: Path) -> Path:
    """A folder whose name breaks whatever does not quote."""
    folder = tmp_path / 'it\'s a "wëird" $HOME päth; 空'
    folder.mkdir()
    return folder


@pytest.fixture
def command_line(weird_tmp_path: Path) -> Iterator[CommandLine]:
    """The command line in the weird folder, with the faulty workloads installed beside gpuproof."""
    launch = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")
    inherited = {name: value for name, value in os.environ.items() if name not in launch}
    line = CommandLine(
        folder=weird_tmp_path,
        environment={**inherited, "PYTHONPATH": f"{SOURCE}{os.pathsep}{FAULTY}"},
    )
    yield line
    for process in line.started:
        if process.poll() is None:
            process.kill()
        process.communicate()


@pytest.fixture
def a_run(command_line: CommandLine) -> Iterator[Run]:
    """A run of a name that no other process of this machine has in its command."""
    run = Run(command_line=command_line, run_id=f"t{os.getpid()}_{time.monotonic_ns()}")
    yield run
    for process in run.processes():
        with suppress(psutil.NoSuchProcess):
            process.kill()

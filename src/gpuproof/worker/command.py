"""A user's command as a case: started, tracked with its children, stopped at its time limit.

Its output goes to output.log and error.txt in the launch's folder. At its time limit, the command is stopped
along with all processes it started. Everything it has written by then is always kept: files and its own
results. Files that existed before the command started do not count as written by it.
"""

from __future__ import annotations

import os
import resource
import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from time import monotonic

from gpuproof.base.errors import EnvironmentUnfitError
from gpuproof.monitor.marks import MarkReader
from gpuproof.monitor.watch import marks_pipe
from gpuproof.processes.group import adopt_orphans, descendants, end_tree, highest_resident_bytes
from gpuproof.processes.start import exit_status, signal_name, starting
from gpuproof.records.readings import Mark
from gpuproof.records.work.command import (
    ERROR_LOG,
    FILES,
    MAX_BYTES,
    OUTPUT_DIR,
    OUTPUT_LOG,
    OUTPUT_VARIABLE,
    PYTHON,
    CollectedFiles,
    CommandEnded,
    CommandMetrics,
    CommandSpec,
    CommandStarted,
    ProcessTree,
    read_metrics,
)
from gpuproof.worker.rank.failure import CommandFailedError
from gpuproof.worker.rank.recorder import Recorder

FIRST_POLL_S, LONGEST_POLL_S = 0.05, 0.5
"""Shortest and longest interval between readings of the process tree. The interval grows, because each
reading takes a few milliseconds of CPU time."""
RECORD_EVERY_S = 1.0
CHANGE = 0.05
"""If a tree's memory has changed by more than this fraction, it is recorded immediately."""
GRACE_S = 10.0
"""Time that a command gets to exit on its own once it has reached its time limit."""
NOT_ITS_OWN = ("PYTHONSAFEPATH", "TORCH_ELASTIC_SHUTDOWN_TIMEOUT")
"""Variables set only for workers. If the first is set, a script would not find the modules next to it."""
CLOCK_STEP_S = 0.02
"""Maximum lag of a file system's clock behind ours."""


@dataclass(kw_only=True)
class Followed:
    """A running command, with the state of its process tree between two records."""

    recorder: Recorder
    process: subprocess.Popen[bytes]
    begin_s: float
    marks: MarkReader | None
    peak_bytes: int = 0
    written_bytes: int = 0
    written_s: float = field(default=float("-inf"))

    def look(self, *, is_last: bool = False) -> None:
        """Read the tree and the marks; write a record every second or so, and whenever memory changes."""
        now_s = monotonic()
        tree = descendants(os.getpid())
        resident = sum(state.resident_bytes for state in tree)
        highest = max((highest_resident_bytes(state.pid) for state in tree), default=0)
        self.peak_bytes = max(self.peak_bytes, resident, highest)
        for published_s, metadata in self.marks.take(now_s) if self.marks is not None else ():
            self.recorder.write(Mark(monotonic_s=published_s, metadata=metadata))
        self.recorder.heartbeat.beat()
        has_changed = abs(resident - self.written_bytes) > CHANGE * self.written_bytes
        is_due = is_last or has_changed or now_s - self.written_s >= RECORD_EVERY_S
        if (tree or self.peak_bytes) and is_due:
            self.recorder.write(
                ProcessTree(
                    rank=self.recorder.rank,
                    monotonic_s=now_s,
                    pids=tuple(state.pid for state in tree),
                    resident_bytes=resident,
                    peak_resident_bytes=self.peak_bytes,
                )
            )
            self.peak_bytes, self.written_s, self.written_bytes = 0, now_s, resident


def run_command_case(
    spec: CommandSpec, *, recorder: Recorder, folder: Path, device_variables: Mapping[str, str]
) -> None:
    """Run the command until it exits; the last record is the result.

    Raises:
        CommandNotStartedError: the program or the working folder does not exist.
        CommandFailedError: its exit status was not 0, or it was stopped at its time limit.
    """
    places = Places(
        output=(folder / FILES).resolve(), working=Path(spec.cwd or ".").resolve(), since_s=time.time()
    )
    places.output.mkdir(parents=True, exist_ok=True)
    adopt_orphans()
    try:
        with (
            recorder.phase("command", expected_s=None),
            _started(spec, recorder, folder=folder, places=places, more=device_variables) as followed,
        ):
            ended = _follow(followed, spec.time_limit_s)
        recorder.write(ended)
    finally:
        recorder.write(collect(spec.collect, places, rank=recorder.rank))
        if spec.metrics is not None:
            recorder.write(read_metrics_file(spec.metrics, places, rank=recorder.rank))
    _refuse_bad_end(ended, spec, folder)
    recorder.finish()


@contextmanager
def _started(
    spec: CommandSpec, recorder: Recorder, *, folder: Path, places: Places, more: Mapping[str, str]
) -> Iterator[Followed]:
    """Start the command; whatever happens inside the block, none of its processes survives it."""
    argv = [_with_folder(word, places) for word in spec.argv]
    with ExitStack() as stack:
        pipe = stack.enter_context(marks_pipe())
        environment = _environment(spec, places, {**(pipe.environment if pipe else {}), **more})
        logs = [stack.enter_context((folder / name).open("wb")) for name in (OUTPUT_LOG, ERROR_LOG)]
        with starting(argv[0] if places.working.is_dir() else str(places.working)):
            process = subprocess.Popen(
                argv,
                cwd=places.working,
                env=environment,
                stdin=subprocess.DEVNULL,
                stdout=logs[0],
                stderr=logs[1],
                pass_fds=[pipe.descriptor] if pipe else [],
            )
        begin_s = monotonic()
        recorder.write(
            CommandStarted(
                rank=recorder.rank,
                host=socket.gethostname(),
                pid=process.pid,
                argv=tuple(argv),
                cwd=str(places.working),
                monotonic_s=begin_s,
                unix_s=time.time(),
            )
        )
        reader = None if pipe is None else MarkReader(pipe.descriptor)
        try:
            yield Followed(recorder=recorder, process=process, begin_s=begin_s, marks=reader)
        finally:
            end_tree(_listed, grace_s=0.0, beat=recorder.heartbeat.beat)


def _environment(spec: CommandSpec, places: Places, more: Mapping[str, str]) -> dict[str, str]:
    """Return the command's environment: ours without the worker variables, plus the command's own."""
    return {
        **{name: value for name, value in os.environ.items() if name not in NOT_ITS_OWN},
        **more,
        **{name: _inherited(name) if v is None else _with_folder(v, places) for name, v in spec.env.items()},
        OUTPUT_VARIABLE: str(places.output),
    }


def _inherited(name: str) -> str:
    if not os.environ.get(name):
        raise EnvironmentUnfitError(
            f"the environment variable {name} is not set on this host",
            place=f"command.env.{name}",
            next_step="Set it where the command runs; runs never store its value",
        )
    return os.environ[name]


def _with_folder(text: str, places: Places) -> str:
    text = text.replace(f"{{{OUTPUT_DIR}}}", str(places.output))
    return text.replace(f"{{{PYTHON}}}", sys.executable)


def _listed() -> list[int]:
    return [state.pid for state in descendants(os.getpid())]


def _follow(followed: Followed, limit_s: float | None) -> CommandEnded:
    """Wait until the command exits, or stop it at its limit; then stop the processes it left behind."""
    process = followed.process
    deadline_s = followed.begin_s + (float("inf") if limit_s is None else limit_s)
    while process.poll() is None and monotonic() < deadline_s:
        followed.look()
        with suppress(subprocess.TimeoutExpired):
            now_s = monotonic()
            poll_s = min(LONGEST_POLL_S, FIRST_POLL_S + 0.1 * (now_s - followed.begin_s))
            process.wait(max(0.0, min(poll_s, deadline_s - now_s)))
    in_time = process.poll() is not None
    end_s = monotonic()
    followed.look(is_last=True)
    left = end_tree(lambda: _running(process), grace_s=GRACE_S, beat=followed.look)
    status = process.wait()
    followed.look(is_last=True)
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return CommandEnded(
        rank=followed.recorder.rank,
        returncode=status,
        ended_by="itself" if in_time else "time_limit",
        wall_s=end_s - followed.begin_s,
        cpu_s=used.ru_utime + used.ru_stime,
        begin_monotonic_s=followed.begin_s,
        end_monotonic_s=end_s,
        left_behind=left if in_time else 0,
    )


def _running(process: subprocess.Popen[bytes]) -> list[int]:
    """List the tree, after reaping the command itself if it has exited."""
    process.poll()
    return _listed()


def _refuse_bad_end(ended: CommandEnded, spec: CommandSpec, folder: Path) -> None:
    if ended.ended_by == "time_limit":
        assert spec.time_limit_s is not None
        raise CommandFailedError(
            f"the command was stopped at its time limit of {spec.time_limit_s:g} s; its data is kept",
            failure_cause="timeout",
            next_step="Raise command.time_limit_s, or check output.log for what it is waiting for",
        )
    if ended.returncode:
        name = signal_name(ended.returncode)
        how = f"ended by {name}" if name else f"ended with status {exit_status(ended.returncode)}"
        raise CommandFailedError(
            f"the command {how}{_last_words(folder / ERROR_LOG)}",
            failure_cause="exit_status",
            next_step=f"See {folder / ERROR_LOG}",
        )


def _last_words(log: Path) -> str:
    """Return the last line of the command's standard error."""
    with log.open("rb") as file:
        file.seek(max(0, log.stat().st_size - 4096))
        lines = [line.strip() for line in file.read().decode(errors="replace").splitlines() if line.strip()]
    return f": {lines[-1][:300]}" if lines else ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Places:
    """Folders where a command's files may be."""

    output: Path
    """The launch's own folder."""
    working: Path
    since_s: float
    """When the launch started, in seconds since the epoch."""

    def find(self, pattern: str) -> Iterator[Path]:
        """Yield matching files from the first folder that has any, but only files this launch wrote."""
        for place in (self.output, self.working):
            paths = [path for path in sorted(place.glob(pattern)) if path.is_file()]
            fresh = [path for path in paths if path.stat().st_mtime >= self.since_s - CLOCK_STEP_S]
            if fresh:
                yield from fresh
                return

    def is_stale(self, pattern: str) -> bool:
        """Return whether there are matching files older than the launch."""
        return any(path.is_file() for path in self.working.glob(pattern))


def collect(patterns: Sequence[str], places: Places, *, rank: int) -> CollectedFiles:
    """Copy matching files from the working folder to the launch's own; keep those already there."""
    files: list[str] = []
    missing: list[str] = []
    for pattern in patterns:
        paths = list(places.find(pattern))
        if not paths:
            missing.append(f"{pattern} (older than the launch)" if places.is_stale(pattern) else pattern)
        files += [_stored(path, places) for path in paths]
    return CollectedFiles(rank=rank, files=tuple(files), missing=tuple(missing))


def _stored(path: Path, places: Places) -> str:
    """Return a file's name in the launch's own folder, copying it there if necessary."""
    if path.is_relative_to(places.output):
        return str(path.relative_to(places.output))
    name = path.relative_to(places.working)
    (places.output / name).parent.mkdir(parents=True, exist_ok=True)
    shutil.copyfile(path, places.output / name)
    return str(name)


def read_metrics_file(name: str, places: Places, *, rank: int) -> CommandMetrics:
    """Read the results written by the command; if there are none, record the reason."""
    path = next(places.find(name), None)
    if path is None:
        old = "only one from before this launch" if places.is_stale(name) else "none was written"
        return _without(name, f"no {name}: {old}", rank=rank)
    try:
        if path.stat().st_size > MAX_BYTES:
            return _without(name, f"{path}: larger than {MAX_BYTES >> 20} MiB", rank=rank)
        metrics = read_metrics(path.read_text(encoding="utf-8", errors="replace"), name=path.name)
    except (OSError, ValueError) as error:
        return _without(name, f"{path}: {error}", rank=rank)
    return CommandMetrics(
        rank=rank, file=str(path), values=metrics.values, series=metrics.series, missing=None
    )


def _without(name: str, reason: str, *, rank: int) -> CommandMetrics:
    return CommandMetrics(rank=rank, file=name, values={}, series={}, missing=reason)

"""Where do live readings come from? From our own sampler process, or a recording in progress.

Output: the records one by one, as they arrive, and None whenever no record is available yet, so that a reader
can be stopped. If a sampler cannot start, the stream ends with the sampler's own error message.
"""

from __future__ import annotations

import os
import select
import subprocess
import sys
import time
from collections.abc import Generator, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any, Final, Literal

from gpuproof.base.errors import EnvironmentUnfitError, ExitCode, GpuproofError, RecordError, UsageError
from gpuproof.processes.start import our_command, safe_environment
from gpuproof.records.journal import decode
from gpuproof.records.readings import RecordingEnd

SAMPLER_MODULE: Final = "gpuproof.worker.commands.sample"
POLL_S: Final = 0.2
ProcessFacts = Literal["ids", "owners", "details"]
"""Level of detail that the sampler reports about processes on a GPU; the node side reads this."""
Records = Generator[Any, None, None]
"""Records as they arrive, or None if none is available; closing it also stops its sampler."""

_STANDARD_INPUT: Final = 0
_CHUNK_BYTES: Final = 1 << 16
_MAX_LINES: Final = 500
"""Lines per batch, so that a long recording does not block its reader."""


def sampler_command(*, interval_s: float, devices: str | None, processes: ProcessFacts) -> list[str]:
    """Return the command line of a sampler that writes to standard output and exits when we do."""
    words = sampler_words(interval_s=interval_s, devices=devices, processes=processes)
    return [*our_command(SAMPLER_MODULE), "--out=-", f"--parent-pid={os.getpid()}", *words]


def sampler_words(*, interval_s: float, devices: str | None, processes: ProcessFacts) -> list[str]:
    """Return the options that set what a sampler reads and how often, wherever it runs."""
    words = [
        f"--interval={interval_s}",
        f"--slow-interval={max(2.0, interval_s)}",
        f"--processes={processes}",
    ]
    return words if devices is None else [*words, f"--devices={devices}"]


def sampled(command: list[str]) -> Records:
    """Start a sampler and return its records; the sampler stops when the iterator is closed.

    Raises:
        UsageError: the sampler rejected its options.
        EnvironmentUnfitError: the sampler cannot start, or exited without writing a last record.
    """
    process = subprocess.Popen(
        command,
        env=safe_environment(),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        stdin=subprocess.DEVNULL,
    )
    assert process.stdout is not None
    ended = False
    try:
        for record in _read_records(process.stdout.fileno()):
            ended = ended or isinstance(record, RecordingEnd)
            yield record
        if not ended:
            raise _sampler_error(process)
    finally:
        process.terminate()
        process.communicate()


def _sampler_error(process: subprocess.Popen[bytes]) -> GpuproofError:
    """Convert the sampler's message to an error; rejected options remain a usage error."""
    _, errors = process.communicate()
    message = errors.decode(errors="replace").strip().removeprefix("gpuproof: ")
    kind = UsageError if process.returncode == ExitCode.USAGE else EnvironmentUnfitError
    return kind(message or f"the sampler exited with code {process.returncode}")


def _read_records(descriptor: int) -> Records:
    """Split pipe output into records; wait at most one poll interval for more."""
    rest = b""
    while True:
        ready, _, _ = select.select([descriptor], [], [], POLL_S)
        if not ready:
            yield None
            continue
        chunk = os.read(descriptor, _CHUNK_BYTES)
        if not chunk:
            return
        *lines, rest = (rest + chunk).split(b"\n")
        yield from _decoded(lines)
        yield None


def followed(path: Path, *, is_output: bool = False, poll_s: float = POLL_S) -> Records:
    """Read a recording from its start, then follow the growing file until its last record.

    A command's output (`is_output`) may begin with other lines.

    Raises:
        RecordError: the file cannot be opened, or its first lines are no records.
    """
    try:
        file = path.open("rb")
    except OSError as error:
        raise RecordError(error.strerror or str(error), place=str(path)) from error
    with file:
        rest, is_recording = b"", is_output
        while True:
            chunk = file.read(_CHUNK_BYTES)
            *lines, rest = (rest + chunk).split(b"\n")
            for record in _decoded(lines):
                is_recording = True
                yield record
                if isinstance(record, RecordingEnd):
                    return
            if lines and not is_recording:
                raise RecordError("not a recording: its first lines are no records", place=str(path))
            if not chunk:
                yield None
                time.sleep(poll_s)


def piped(descriptor: int | None = None) -> Records:
    """Read records from standard input: `ssh NODE python gpuproof-node.pyz sample | … monitor live -`."""
    return _read_records(sys.stdin.fileno() if descriptor is None else descriptor)


def keys_from_terminal() -> int:
    """Make the terminal our standard input; return a descriptor for the pipe that was there before.

    A view reads keys from standard input, so records piped there would be read as keys.

    Raises:
        UsageError: standard input is the terminal, so no records can arrive, or there is no terminal.
    """
    place, pipe = (
        "monitor live -",
        "Pipe a sampler into it: ssh NODE python3 gpuproof-node.pyz sample | gpuproof monitor live -",
    )
    if os.isatty(_STANDARD_INPUT):
        raise UsageError("reads from a pipe, but standard input is the keyboard", place=place, next_step=pipe)
    try:
        terminal = os.open(os.ctermid(), os.O_RDWR)
    except OSError as error:
        cause = f"has no terminal to read keys from ({error.strerror})"
        raise UsageError(cause, place=place, next_step="Over SSH, request one: ssh -t") from error
    piped = os.dup(_STANDARD_INPUT)
    os.dup2(terminal, _STANDARD_INPUT)
    os.close(terminal)
    return piped


def batches(records: Records) -> Generator[list[Any], None, None]:
    """Batch the available records, so that a view is redrawn only once; close the source at the end."""
    batch: list[Any] = []
    with closing(records):
        for record in records:
            if record is not None:
                batch.append(record)
            if record is None or len(batch) >= _MAX_LINES:
                yield batch
                batch = []
        yield batch


def _decoded(lines: list[bytes]) -> Iterator[Any]:
    """Decode lines; skip anything that is not one of our records, as in `load_recording`."""
    for line in lines:
        if not line.strip():
            continue
        try:
            record = decode(line)
        except RecordError:
            continue
        if record is not None:
            yield record

"""Where do live readings come from? A sampler process of our own, or a recording that is being written.

Out: the records one by one, as they come, and None whenever there is nothing for now, so that a reader
can be stopped. A sampler that cannot start ends the stream with its own error message.
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
"""What the sampler tells of a process on a GPU; it is the node side that reads it."""
Records = Generator[Any, None, None]
"""Records as they come, None when there is nothing for now; closing it ends the sampler behind it."""

_STANDARD_INPUT: Final = 0
_CHUNK_BYTES: Final = 1 << 16
_MAX_LINES: Final = 500
"""Lines of one batch, so that a long recording does not hold up the one who reads it."""


def sampler_command(*, interval_s: float, devices: str | None, processes: ProcessFacts) -> list[str]:
    """Return the command line of a sampler that writes to standard output and ends with us."""
    words = sampler_words(interval_s=interval_s, devices=devices, processes=processes)
    return [*our_command(SAMPLER_MODULE), "--out=-", f"--parent-pid={os.getpid()}", *words]


def sampler_words(*, interval_s: float, devices: str | None, processes: ProcessFacts) -> list[str]:
    """Give the options that say what a sampler reads, and how often, wherever it runs."""
    words = [
        f"--interval={interval_s}",
        f"--slow-interval={max(2.0, interval_s)}",
        f"--processes={processes}",
    ]
    return words if devices is None else [*words, f"--devices={devices}"]


def sampled(command: list[str]) -> Records:
    """Start a sampler and give its records; the sampler ends when the iterator is closed.

    Raises:
        UsageError: the sampler refused its options.
        EnvironmentUnfitError: it cannot start, or ended by itself without a last record.
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
    """Make an error of the sampler's message; a mistake in its options stays the user's."""
    _, errors = process.communicate()
    message = errors.decode(errors="replace").strip().removeprefix("gpuproof: ")
    kind = UsageError if process.returncode == ExitCode.USAGE else EnvironmentUnfitError
    return kind(message or f"the sampler ended with code {process.returncode}")


def _read_records(descriptor: int) -> Records:
    """Split what a pipe gives into records, waiting no longer than a poll for more."""
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


def followed(path: Path, *, poll_s: float = POLL_S) -> Records:
    """Read a recording from its beginning, and go on as it grows, until its last record.

    Raises:
        RecordError: the file cannot be opened.
    """
    try:
        file = path.open("rb")
    except OSError as error:
        raise RecordError(error.strerror or str(error), place=str(path)) from error
    with file:
        rest = b""
        while True:
            chunk = file.read(_CHUNK_BYTES)
            *lines, rest = (rest + chunk).split(b"\n")
            for record in _decoded(lines):
                yield record
                if isinstance(record, RecordingEnd):
                    return
            if not chunk:
                yield None
                time.sleep(poll_s)


def piped(descriptor: int | None = None) -> Records:
    """Read records from standard input: `ssh NODE python gpuproof-node.pyz sample | … monitor live -`."""
    return _read_records(sys.stdin.fileno() if descriptor is None else descriptor)


def keys_from_terminal() -> int:
    """Make the terminal our standard input, and return a descriptor of the pipe that it was.

    A view reads its keys from standard input: with a pipe of records there it would take these for keys.

    Raises:
        UsageError: standard input is the terminal, so that no record can come, or there is no terminal.
    """
    place, pipe = (
        "monitor live -",
        "Pipe a sampler into it: ssh NODE python3 gpuproof-node.pyz sample | gpuproof monitor live -",
    )
    if os.isatty(_STANDARD_INPUT):
        raise UsageError(
            "reads records from a pipe, and standard input is the keyboard", place=place, next_step=pipe
        )
    try:
        terminal = os.open(os.ctermid(), os.O_RDWR)
    except OSError as error:
        cause = f"has no terminal to read keys from ({error.strerror})"
        raise UsageError(cause, place=place, next_step="Over SSH ask for one: ssh -t") from error
    piped = os.dup(_STANDARD_INPUT)
    os.dup2(terminal, _STANDARD_INPUT)
    os.close(terminal)
    return piped


def batches(records: Records) -> Generator[list[Any], None, None]:
    """Group records that are there at once, so that a view is drawn once for all; close them at the end."""
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
    """Decode lines; one that is no record of ours is passed over, as `load_recording` does."""
    for line in lines:
        if not line.strip():
            continue
        try:
            record = decode(line)
        except RecordError:
            continue
        if record is not None:
            yield record

"""How does a process begin, and what does the number that it ended with mean?

In: an argument list. Out: a process in a session of its own, or an error that names what could not be
started. A status is what `subprocess` calls a return code: minus the signal that ended the process. Another
process of this same gpuproof is started from the same files or archive: the working directory, where a user's
`random.py` or another gpuproof may lie, is never imported from. Standard library only: both halves use this.
"""

from __future__ import annotations

import errno
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

import gpuproof
from gpuproof.base.errors import EnvironmentUnfitError

SAFE_PATH = {"PYTHONSAFEPATH": "1"}
"""What lies in the user's working directory, a random.py say, is not imported by Python 3.11 and newer; older
ones run the node side as one file, and begin with that."""
ENDING_SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGQUIT)
"""What asks a process to end: a launcher, Ctrl-C, a terminal that closes, Ctrl-\\."""
NOT_EXECUTABLE = 126
NOT_FOUND = 127
"""What shells answer for a command that is no program, or is not there."""
_BOOT = (
    "import sys; sys.path[0] = sys.argv.pop(1); name = sys.argv.pop(1); "
    "from importlib import import_module; sys.exit(import_module(name).main(sys.argv[1:]))"
)


def safe_environment(base: Mapping[str, str] | None = None) -> dict[str, str]:
    """Return the environment of every process of our own: `base`, by default ours, and a safe path."""
    return {**(os.environ if base is None else base), **SAFE_PATH}


class CommandNotStartedError(EnvironmentUnfitError):
    """A command could not be started; `status` is what a shell would answer."""

    def __init__(self, command: str, error: OSError) -> None:
        is_missing = isinstance(error, FileNotFoundError)
        self.status = NOT_FOUND if is_missing else NOT_EXECUTABLE
        cause = "command not found" if is_missing else f"cannot be started: {error.strerror or error}"
        super().__init__(cause, place=command)


def missing_program(command: str, environment: Mapping[str, str]) -> CommandNotStartedError | None:
    """Say before a command is started that there is no such program, or that it may not be executed."""
    if shutil.which(command, path=environment.get("PATH")) is not None:
        return None
    number = errno.EACCES if Path(command).exists() else errno.ENOENT
    return CommandNotStartedError(command, OSError(number, os.strerror(number)))


@contextmanager
def starting(command: str) -> Iterator[None]:
    """Name the command that the system refuses to start.

    Raises:
        CommandNotStartedError: instead of any OSError.
    """
    try:
        yield
    except OSError as error:
        raise CommandNotStartedError(command, error) from error


def start_process(
    command: Sequence[str],
    *,
    environment: Mapping[str, str] | None = None,
    output: Path | None = None,
    pass_fds: Sequence[int] = (),
) -> subprocess.Popen[bytes]:
    """Start a process that reads nothing, in a session of its own: a Ctrl-C is for us, who pass it on.

    What it prints is appended to `output`; without one, its standard output goes nowhere and its standard
    error where ours does. `environment` is ours where it is None; the path is made safe.

    Raises:
        CommandNotStartedError: there is no such program, or it may not be executed.
        OSError: `output` cannot be written to.
    """
    with (output or Path(os.devnull)).open("ab") as file, starting(command[0]):
        return subprocess.Popen(
            list(command),
            stdin=subprocess.DEVNULL,
            stdout=file,
            stderr=None if output is None else subprocess.STDOUT,
            env=safe_environment(environment),
            pass_fds=tuple(pass_fds),
            start_new_session=True,
        )


def exit_status(returncode: int) -> int:
    """Turn a return code into the exit status that a shell reports: 128 + n after signal n.

    >>> exit_status(3), exit_status(-9)
    (3, 137)
    """
    return 128 - returncode if returncode < 0 else returncode


def signal_name(returncode: int) -> str | None:
    """Name the signal that ended a process, None for one that ended by itself.

    >>> signal_name(-9), signal_name(-60), signal_name(1)
    ('SIGKILL', 'signal 60', None)
    """
    if returncode >= 0:
        return None
    try:
        return signal.Signals(-returncode).name
    except ValueError:  # most real-time signals have no name
        return f"signal {-returncode}"


def our_command(module: str) -> list[str]:
    """Return the start of a command line that runs `module`'s `main`; its arguments come after it."""
    root = Path(gpuproof.__file__).resolve().parents[1]
    return [sys.executable, "-c", _BOOT, str(root), module]

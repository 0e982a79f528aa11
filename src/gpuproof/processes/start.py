"""How is a process started, and what does its exit status mean?

Input: an argument list. Output: a process in its own session, or an error that says which command could not
be started. The status is the same as a `subprocess` return code: negative for the signal that terminated the
process. Other gpuproof processes are started from the same files or archive as this one: nothing is ever
imported from the working directory, which may contain a user's `random.py` or another gpuproof. Both sides
use this module, so it needs only the standard library.
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
"""Keeps Python 3.11 and newer from importing files in the user's working directory, e.g. a random.py; older
versions run the node side as one file that starts with this code."""
ENDING_SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGQUIT)
"""Signals that ask a process to stop: from a launcher, Ctrl-C, a closing terminal, or Ctrl-\\."""
NOT_EXECUTABLE = 126
NOT_FOUND = 127
"""The status that shells return for a command that is not executable or does not exist."""
_BOOT = (
    "import sys; sys.path[0] = sys.argv.pop(1); name = sys.argv.pop(1); "
    "from importlib import import_module; sys.exit(import_module(name).main(sys.argv[1:]))"
)


def safe_environment(base: Mapping[str, str] | None = None) -> dict[str, str]:
    """Return the environment for our own processes: `base`, or else ours, with a safe import path."""
    return {**(os.environ if base is None else base), **SAFE_PATH}


class CommandNotStartedError(EnvironmentUnfitError):
    """A command could not be started; `status` is the exit status that a shell would return."""

    def __init__(self, command: str, error: OSError) -> None:
        is_missing = isinstance(error, FileNotFoundError)
        self.status = NOT_FOUND if is_missing else NOT_EXECUTABLE
        cause = "command not found" if is_missing else f"cannot be started: {error.strerror or error}"
        super().__init__(cause, place=command)


def missing_program(command: str, environment: Mapping[str, str]) -> CommandNotStartedError | None:
    """Raise, before a command is started, if the program does not exist or is not executable."""
    if shutil.which(command, path=environment.get("PATH")) is not None:
        return None
    number = errno.EACCES if Path(command).exists() else errno.ENOENT
    return CommandNotStartedError(command, OSError(number, os.strerror(number)))


@contextmanager
def starting(command: str) -> Iterator[None]:
    """Name the command in the error if the system fails to start it.

    Raises:
        CommandNotStartedError: raised in place of any OSError.
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
    """Start a process without input, in its own session: only we receive Ctrl-C, and we pass it on.

    Its output is appended to `output`; without `output`, standard output is discarded and standard error goes
    to ours. If `environment` is None, our own is used; in either case, the path is made safe.

    Raises:
        CommandNotStartedError: the program does not exist or is not executable.
        OSError: `output` cannot be written.
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
    """Convert a return code to a shell's exit status: 128 + n if signal n ended the process.

    >>> exit_status(3), exit_status(-9)
    (3, 137)
    """
    return 128 - returncode if returncode < 0 else returncode


def signal_name(returncode: int) -> str | None:
    """Return the name of the signal that terminated a process; None if it exited by itself.

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
    """Return the start of a command line that runs `main` in `module`; its arguments follow."""
    root = Path(gpuproof.__file__).resolve().parents[1]
    return [sys.executable, "-c", _BOOT, str(root), module]

"""Run a command as if it had been started directly: same terminal, signals and exit code.

Input: an argument list. Output: its exit code, or the negated signal that terminated it. The command stays in
this process group, so that the terminal's own signals (Ctrl-C, Ctrl-Z, window size) reach it directly and
exactly once. A signal that another process sends to us is forwarded, unless it was sent to the whole group.
Both halves of gpuproof use this module, so it uses only the standard library. Linux only.
"""

from __future__ import annotations

import os
import signal
import subprocess
import time
from collections.abc import Collection, Mapping, Sequence
from contextlib import closing
from pathlib import Path

from gpuproof.processes.group import end_with_parent
from gpuproof.processes.start import starting

_HANDED_ON = (
    signal.SIGTERM,
    signal.SIGINT,
    signal.SIGHUP,
    signal.SIGQUIT,
    signal.SIGUSR1,
    signal.SIGUSR2,
)
_SENDING_S = 0.02
"""Timeout far longer than the system needs to deliver a signal to every process of a group."""
_MOST_DESCRIPTORS = 1 << 16


def run_in_foreground(
    command: Sequence[str],
    *,
    env: Mapping[str, str] | None = None,
    pass_fds: Sequence[int] = (),
) -> int:
    """Run a command to completion, forwarding signals; return its exit code, negative for a signal.

    Call this in the main thread.

    Raises:
        CommandNotStartedError: the program does not exist or is not executable.
    """
    watched = {*_HANDED_ON, signal.SIGCHLD}
    before = signal.pthread_sigmask(signal.SIG_BLOCK, watched)
    try:
        with closing(_GroupWitness()) as witness:
            process = _start(command, env=env, pass_fds=pass_fds, mask=before)
            return _wait(process, watched, witness)
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


class _GroupWitness:
    """A process in our group that blocks all signals: one also pending here was sent to the group.

    A received signal does not reveal whether it targeted one process or the group. If it targeted the group,
    the command has already received it.
    """

    def __init__(self) -> None:
        self._pid = self._fork()
        self._to_group: set[int] = set()

    def has_seen(self, number: int) -> bool:
        """Return whether the group was sent this signal; each signal is reported once."""
        time.sleep(_SENDING_S)
        signal.sigtimedwait({number}, 0)  # `timeout` signals us first, then the whole group
        waiting = self._waiting()
        if waiting:  # pending signals stay pending, so the next signal needs a new witness process
            self.close()
            self._pid = self._fork()
        self._to_group |= waiting
        was_seen = number in self._to_group
        self._to_group.discard(number)
        return was_seen

    def close(self) -> None:
        """Stop the witness process."""
        os.kill(self._pid, signal.SIGKILL)
        os.waitpid(self._pid, 0)

    def _waiting(self) -> set[int]:
        """Return the process's pending signals (`ShdPnd` of proc(5)); empty if they cannot be read."""
        try:
            mask = int(Path(f"/proc/{self._pid}/status").read_text().partition("ShdPnd:")[2].split()[0], 16)
        except (OSError, IndexError):
            return set()
        return {number for number in map(int, _HANDED_ON) if mask >> (number - 1) & 1}

    @staticmethod
    def _fork() -> int:
        ours = os.getpid()
        pid = os.fork()
        if pid == 0:  # only SIGKILL stops it: sent by us, or by the system once we have exited
            try:
                signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())
                os.closerange(0, _MOST_DESCRIPTORS)
                end_with_parent(ours)
                while True:
                    signal.sigwait({signal.SIGCONT})
            finally:
                os._exit(0)
        return pid


def _start(
    command: Sequence[str],
    *,
    env: Mapping[str, str] | None,
    pass_fds: Sequence[int],
    mask: Collection[int],
) -> subprocess.Popen[bytes]:
    def restore_mask() -> None:
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)

    with starting(command[0]):
        return subprocess.Popen(
            list(command),
            env=env,
            pass_fds=tuple(pass_fds),
            preexec_fn=restore_mask,  # noqa: PLW1509  # one thread only, and a blocked mask would be inherited
        )


def _wait(process: subprocess.Popen[bytes], watched: set[signal.Signals], witness: _GroupWitness) -> int:
    while (returncode := process.poll()) is None:
        arrived = signal.sigwaitinfo(watched)
        if arrived.si_signo == signal.SIGCHLD:
            continue
        is_of_group = witness.has_seen(arrived.si_signo)
        # Not from the terminal (si_code: SI_KERNEL is 128): the command receives the terminal's signals
        # directly.
        if arrived.si_code <= 0 and not is_of_group:
            process.send_signal(arrived.si_signo)
    return returncode

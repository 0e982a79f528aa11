"""How is a command run as if nothing stood around it? Its terminal, its signals, its exit code.

In: an argument list. Out: its exit code, or minus the signal that ended it. The command stays in this
process group, so that the terminal's own signals (Ctrl-C, Ctrl-Z, window size) reach it directly and
once; a signal that some process sent to us is handed on, unless it was sent to the whole group. Both
halves of gpuproof use this, so it is the standard library alone. Linux only.
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
"""Far longer than the system takes to send a signal to each process of a group, in one go."""
_MOST_DESCRIPTORS = 1 << 16


def run_in_foreground(
    command: Sequence[str],
    *,
    env: Mapping[str, str] | None = None,
    pass_fds: Sequence[int] = (),
) -> int:
    """Run a command to its end, handing on signals; return its exit code, negative for a signal.

    Called in the main thread.

    Raises:
        CommandNotStartedError: there is no such program, or it may not be executed.
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
    """A process of our group that takes no signal: one that waits for it too was sent to the whole group.

    Who sent a signal does not say to whom; the command has its own already where all of us were meant.
    """

    def __init__(self) -> None:
        self._pid = self._fork()
        self._to_group: set[int] = set()

    def has_seen(self, number: int) -> bool:
        """Say whether the group was sent this signal, once for each time."""
        time.sleep(_SENDING_S)
        signal.sigtimedwait({number}, 0)  # `timeout` sends to us, then to all
        waiting = self._waiting()
        if waiting:  # what waits there stays, so that another witness is needed for the next
            self.close()
            self._pid = self._fork()
        self._to_group |= waiting
        was_seen = number in self._to_group
        self._to_group.discard(number)
        return was_seen

    def close(self) -> None:
        """End it."""
        os.kill(self._pid, signal.SIGKILL)
        os.waitpid(self._pid, 0)

    def _waiting(self) -> set[int]:
        """Return the signals that the system keeps for it (`ShdPnd` of proc(5)); none if it is silent."""
        try:
            mask = int(Path(f"/proc/{self._pid}/status").read_text().partition("ShdPnd:")[2].split()[0], 16)
        except (OSError, IndexError):
            return set()
        return {number for number in map(int, _HANDED_ON) if mask >> (number - 1) & 1}

    @staticmethod
    def _fork() -> int:
        ours = os.getpid()
        pid = os.fork()
        if pid == 0:  # SIGKILL alone ends it: ours, or the system's when we are gone
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
        # Not from the terminal (si_code: SI_KERNEL is 128), whose signals the command got by itself.
        if arrived.si_code <= 0 and not is_of_group:
            process.send_signal(arrived.si_signo)
    return returncode

"""How is a command run as if nothing stood around it? Its terminal, its signals, its exit code.

In: an argument list. Out: its exit code, or minus the signal that ended it. The command stays in this
process group, so that the terminal's own signals (Ctrl-C, Ctrl-Z, window size) reach it directly and
once; a signal that some process sent to us is handed on. Both halves of gpuproof use this, so it is
the standard library alone. Linux only.
"""

from __future__ import annotations

import signal
import subprocess
from collections.abc import Collection, Mapping, Sequence

from gpuproof.processes.start import starting

_HANDED_ON = (
    signal.SIGTERM,
    signal.SIGINT,
    signal.SIGHUP,
    signal.SIGQUIT,
    signal.SIGUSR1,
    signal.SIGUSR2,
)


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
        process = _start(command, env=env, pass_fds=pass_fds, mask=before)
        return _wait(process, watched)
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


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


def _wait(process: subprocess.Popen[bytes], watched: set[signal.Signals]) -> int:
    while (returncode := process.poll()) is None:
        arrived = signal.sigwaitinfo(watched)
        if arrived.si_signo != signal.SIGCHLD and _was_sent_by_a_process(arrived):
            process.send_signal(arrived.si_signo)
    return returncode


def _was_sent_by_a_process(arrived: signal.struct_siginfo) -> bool:
    """Tell `kill` from the terminal, whose signals the command got by itself (si_code: SI_KERNEL is 128)."""
    return arrived.si_code <= 0

"""A rank of the user's own launcher in a run of many launches; it joins each until the run ends.

Each launch runs in a separate process, as on rank 0, while this process keeps running, because a launcher
treats the exit of one of its ranks as the end of all of them. So rank 0 reports a failed launch, and this
process continues with the next launch. A stopped process (SIGSTOP) cannot exit on its own, so this process
kills it; otherwise this rank would be left behind.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Sequence
from time import monotonic, sleep

from gpuproof.processes.start import safe_environment
from gpuproof.worker.commands.attach import OVER

POLL_S = 0.2
STOPPED_S = 10.0
"""A process stopped for this long has invalidated its launch, because the other ranks are waiting for it."""


def follow(arguments: Sequence[str]) -> int:
    """`python -m gpuproof.worker follow`: join one launch after another, with the options of `join`."""
    launch = 0
    while True:
        answer, status = _joined(arguments, launch)
        if answer == OVER:
            return 0
        if not answer:  # rank 0 did not respond; the process that tried to join has reported it
            return status
        launch = int(answer) + 1


def _joined(arguments: Sequence[str], launch: int) -> tuple[str, int]:
    """Join one launch; return rank 0's message about it (empty if none) and the exit status."""
    read_end, write_end = os.pipe()
    options = [f"--launch={launch}", f"--tell={write_end}", f"--parent-pid={os.getpid()}"]
    words = [sys.executable, "-m", "gpuproof.worker", "join", *options, *arguments]
    with os.fdopen(read_end, "rb", buffering=0) as reader:
        try:
            process = subprocess.Popen(words, env=safe_environment(), pass_fds=(write_end,))
        finally:
            os.close(write_end)
        status = _waited_for(process)
        os.set_blocking(reader.fileno(), False)  # leftover processes of the rank may keep the other end open
        return (reader.read() or b"").decode(), status


def _waited_for(process: subprocess.Popen[bytes]) -> int:
    """Wait until a launch's process exits, killing it if it stays stopped; return the exit status."""
    stopped_since_s: float | None = None
    while (status := process.poll()) is None:
        seen = os.waitid(os.P_PID, process.pid, os.WSTOPPED | os.WNOHANG | os.WNOWAIT)
        stopped_since_s = None if seen is None else stopped_since_s or monotonic()
        if stopped_since_s is not None and monotonic() - stopped_since_s > STOPPED_S:
            sys.stderr.write(f"gpuproof: this launch was stopped for {STOPPED_S:.0f} s and is being killed\n")
            process.kill()
            return process.wait()
        sleep(POLL_S)
    return status

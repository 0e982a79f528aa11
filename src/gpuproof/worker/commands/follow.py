"""A rank of a launcher not ours in a run of many launches: it joins one after the other until that is over.

Each launch has a process of its own, as rank 0's has, and this one stays: a launcher takes the end of one of
its ranks for the end of all. So a launch that fails is rank 0's to tell, and this goes on with the next.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Sequence

from gpuproof.processes.start import safe_environment
from gpuproof.worker.commands.attach import OVER


def follow(arguments: Sequence[str]) -> int:
    """`python -m gpuproof.worker follow`: join launch after launch; takes the options of `join`."""
    launch = 0
    while True:
        said, status = _joined(arguments, launch)
        if said == OVER:
            return 0
        if not said:  # rank 0 did not come: the joined process has said so
            return status
        launch = int(said) + 1


def _joined(arguments: Sequence[str], launch: int) -> tuple[str, int]:
    """Join one launch; return what rank 0 said of it, empty where it said nothing, and the exit status."""
    told, tell = os.pipe()
    own = [f"--launch={launch}", f"--tell={tell}", f"--parent-pid={os.getpid()}"]
    words = [sys.executable, "-m", "gpuproof.worker", "join", *own, *arguments]
    with os.fdopen(told, "rb", buffering=0) as reader:
        try:
            process = subprocess.Popen(words, env=safe_environment(), pass_fds=(tell,))
        finally:
            os.close(tell)
        status = process.wait()
        os.set_blocking(reader.fileno(), False)  # what the rank started, and left, may hold the other end
        return (reader.read() or b"").decode(), status

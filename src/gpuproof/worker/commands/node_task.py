"""The only task on a node under a scheduler; it starts the node's ranks and their samplers.

The input is command lines in which `$NAME` is a placeholder for a value that only the node knows (`$$` is a
dollar sign). The output is an exit status.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator, Mapping, Sequence
from queue import SimpleQueue
from string import Template

from gpuproof.processes.group import start_group
from gpuproof.processes.start import ENDING_SIGNALS, exit_status

GRACE_S = 9.0
"""Time allowed for final output: longer than torch's agent allows its ranks, and less than the 30 s that a
scheduler allows."""


def run_commands(commands: Sequence[Sequence[str]], values: Mapping[str, str]) -> int:
    """Start ranks with the first command and samplers with the others; return the ranks' exit status.

    This function returns when the ranks exit or when it is asked to stop.

    Raises:
        EnvironmentUnfitError: a command cannot be started.
    """
    started = [[Template(word).substitute(values) for word in command] for command in commands]
    news: SimpleQueue[int | None] = SimpleQueue()
    for number in ENDING_SIGNALS:
        signal.signal(number, lambda *_: news.put(None))
    # The ranks' standard output is not used: each rank has its own files and, if necessary, standard error.
    group = start_group(started, environment=os.environ, output=None, on_exit=news.put)
    news.get()
    group.end(GRACE_S)
    status = group.wait(0.0)
    return 1 if status is None else exit_status(status)


def parted(words: Sequence[str]) -> Iterator[list[str]]:
    """Yield the arguments between each `--` and the next.

    >>> list(parted(["--folder=/x", "--", "python", "-m", "a", "--", "b"]))
    [['--folder=/x'], ['python', '-m', 'a'], ['b']]
    """
    part: list[str] = []
    for word in words:
        if word == "--":
            yield part
            part = []
        else:
            part.append(word)
    yield part

"""The only task on a node under a scheduler; it starts the node's ranks and their sampler.

The input is command lines in which `$NAME` stands for something that only the node knows (`$$` is a dollar
sign). The output is a status.
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
"""Time for final output: longer than torch's agent gives its ranks, and less than the 30 s that a scheduler
gives."""


def run_commands(commands: Sequence[Sequence[str]], values: Mapping[str, str]) -> int:
    """Start ranks with the first command and samplers with the others; return the ranks' exit status.

    It waits for the ranks, or until it is asked to stop.

    Raises:
        EnvironmentUnfitError: a command cannot be started.
    """
    started = [[Template(word).substitute(values) for word in command] for command in commands]
    news: SimpleQueue[int | None] = SimpleQueue()
    for number in ENDING_SIGNALS:
        signal.signal(number, lambda *_: news.put(None))
    # The ranks' standard output is not used: each has its own files and, if necessary, standard error.
    group = start_group(started, environment=os.environ, output=None, on_exit=news.put)
    news.get()
    group.end(GRACE_S)
    status = group.wait(0.0)
    return 1 if status is None else exit_status(status)


def parted(words: Sequence[str]) -> Iterator[list[str]]:
    """Yield the words between each `--` and the next.

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

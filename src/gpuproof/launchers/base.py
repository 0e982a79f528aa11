"""What every launcher offers: start a case, wait for it, end it.

A launcher starts node-side processes and brings their files into the case's folder. It judges nothing:
what happened is in the records.
"""

from __future__ import annotations

from pathlib import Path
from typing import Protocol

from gpuproof.records.case import Case

LAUNCHER_OUTPUT = "launcher-output.txt"
"""What the started processes printed before each rank had a file of its own."""


class Launched(Protocol):
    """The processes of one case."""

    command: str
    """What was started, as a person could type it."""

    def wait(self, timeout_s: float) -> int | None:
        """Wait at most `timeout_s`, without polling; return the exit status once all has ended, else None."""

    def end(self, grace_s: float) -> None:
        """Ask all processes to end, wait `grace_s` for their last words, then kill what is left."""


class Launcher(Protocol):
    """Starts cases."""

    def start(self, case: Case, folder: Path) -> Launched:
        """Start the case's ranks, writing into `folder`, which holds its spec.json.

        Raises:
            EnvironmentUnfitError: the processes cannot be started here.
        """


def interval_words(case: Case) -> list[str]:
    """Return the options that say how often a case's sampler reads devices, and the host."""
    words = [f"--interval={case.monitor_interval_s:g}"]
    host_s = case.monitor_host_interval_s
    return words if host_s is None else [*words, f"--host-interval={host_s:g}"]


def fork_server_words(case: Case, run: str) -> list[str]:
    """Return the words of the server that the launches of a run, with as many threads, are forked from."""
    threads = case.parallel.threads_per_rank
    return ["serve-cases", run, *([] if threads is None else [f"--threads={threads}"])]


def wants_fork(case: Case) -> bool:
    """Say whether a case is to be forked, and can be: several ranks are started by torch's agent."""
    return case.start == "fork" and case.placement.num_ranks == 1

"""A launch on another host: its files here as they grow there, its end, and what to say when it is lost.

The event loop tells it what happens; the thread of a campaign waits for it. What a host may write here is a
plain file of the launch's own folder, and never one of those that are ours.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from pathlib import Path

from gpuproof.launchers.ssh.hosts import Stage
from gpuproof.records.journal import Journal
from gpuproof.records.run import Failure, FailureCause

LOST = 255
"""The status of a launch whose end nobody heard: what ssh itself returns when a connection breaks."""
OURS = frozenset({"spec.json", "launch.txt", "launcher.jsonl"})
LONGEST_NAME = 200


class RemoteLaunch:
    """One host's part of a launch."""

    def __init__(self, host: str, folder: Path, *, rename: Callable[[str], str] = str) -> None:
        """Follow a launch whose files go to `folder`, under the names that `rename` gives them."""
        self.host = host
        self.news = threading.Event()
        """Set when whoever waits should look: the ranks have ended, or the fleet is interrupted."""
        self.exited = threading.Event()
        self.ended = threading.Event()
        self.status: int | None = None
        self._folder = folder
        self._rename = rename

    def file_grew(self, name: str, offset: int, content: bytes) -> None:
        """Write what came; a file that was cut back there is cut back here.

        Raises:
            ValueError: the name is none that a launch may write.
            OSError: it cannot be written.
        """
        if not _is_allowed(name):
            raise ValueError(f"a file of the name {name[:LONGEST_NAME]!r}")
        path = self._folder / self._rename(name)
        with path.open("r+b" if path.exists() else "w+b") as file:
            file.truncate(offset)
            file.seek(offset)
            file.write(content)

    def has_exited(self, status: int) -> None:
        """Hear that the ranks have ended."""
        self.status = status
        self.exited.set()
        self.news.set()

    def has_ended(self) -> None:
        """Hear that everything has come."""
        self.exited.set()
        self.ended.set()
        self.news.set()

    def is_lost(self, cause: str) -> None:
        """Write down that the host was lost; what came before is kept."""
        if self.ended.is_set():
            return
        if self.status is None:
            self.status = LOST
            write_failure(self._folder, self.host, cause, stage="download", kind="lost_rank")
        self.has_ended()


def write_failure(folder: Path, host: str, cause: str, *, stage: Stage, kind: FailureCause) -> None:
    """Add the launcher's own account of a failure to a launch."""
    journal = Journal(folder / "launcher.jsonl")
    journal.append_last_words(
        Failure(
            rank=None,
            host=host,
            phase=stage,
            cause=kind,
            message=cause,
            unix_s=time.time(),
            next_step="What came before is kept; finish the run with --resume once the host is back",
        )
    )
    journal.close()


def _is_allowed(name: str) -> bool:
    plain = name.isprintable() and not set(name) & set("/\\") and len(name) <= LONGEST_NAME
    return plain and not name.startswith(".") and name not in OURS

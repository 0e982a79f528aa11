"""A launch on other hosts: its files as they grow, its end, and messages if a host is lost.

The event loop reports what happens; the caller that started the launch checks its status after each report. A
host may only write plain files in the launch's own local folder, and never one of our own files.
"""

from __future__ import annotations

import asyncio
import traceback
from collections.abc import Callable, Coroutine, Sequence
from pathlib import Path
from typing import Any, Protocol
from urllib.parse import quote

from gpuproof.launchers.base import HostError
from gpuproof.launchers.failures import launch_failure
from gpuproof.launchers.ssh.channel import AgentChannel
from gpuproof.records.case import Placed
from gpuproof.store import layout
from gpuproof.store.run import append_record

LOST = 255
"""Status of a launch that did not report its end: the same status that ssh itself returns when a connection
breaks."""
OURS = frozenset({layout.SPEC, layout.PLACED, layout.LAUNCH_TEXT, layout.LAUNCHER_JOURNAL})
LONGEST_NAME = 200
LARGEST_FILE_BYTES = 2**33
MOST_FILES = 10_000
END_MARGIN_S = 15.0
"""Time added to the grace period, so that the last bytes can arrive."""

Rename = Callable[[str], str]
"""Function that returns the local name of a host's file."""


class HostPart:
    """One host's part of a launch, managed by the event loop."""

    def __init__(
        self,
        host: str,
        folder: Path,
        *,
        rename: Rename = str,
        on_news: Callable[[], object] = lambda: None,
    ) -> None:
        """Follow a launch, writing its files to `folder` under the names that `rename` returns."""
        self.host = host
        self.status: int | None = None
        self.ended = asyncio.Event()
        self._folder = folder
        self._rename = rename
        self._on_news = on_news
        self._sizes: dict[str, int] = {}

    def file_grew(self, name: str, offset: int, content: bytes) -> None:
        """Write received bytes; a file that was truncated on the host is also truncated here.

        Raises:
            ValueError: a launch may not write to this name, there are too many bytes, or they leave a gap.
            OSError: the file cannot be written.
        """
        if not _is_allowed(name):
            raise ValueError(f"a file named {name[:LONGEST_NAME]!r}")
        path = self._folder / self._rename(name)
        size = self._sizes.get(path.name, 0)
        if not 0 <= offset <= size or offset + len(content) > LARGEST_FILE_BYTES:
            raise ValueError(f"{len(content)} bytes at {offset} of {name}, which has {size}")
        if len(self._sizes) >= MOST_FILES and path.name not in self._sizes:
            raise ValueError(f"more than {MOST_FILES} files")
        # x: must not overwrite another host's file
        with path.open("r+b" if path.name in self._sizes else "xb") as file:
            file.truncate(offset)
            file.seek(offset)
            file.write(content)
        self._sizes[path.name] = offset + len(content)

    def has_exited(self, status: int) -> None:
        """Handle the exit of the ranks."""
        self.status = status
        self._on_news()

    def has_ended(self) -> None:
        """Handle the end of the launch: everything has arrived."""
        self.ended.set()
        self._on_news()

    def is_lost(self, cause: str) -> None:
        """Record that the host was lost; data received before that is kept."""
        if self.ended.is_set():
            return
        if self.status is None:
            self.status = LOST
            next_step = "Files received before are kept; finish the run with --resume once the host is back"
            failure = launch_failure(
                "lost_rank", cause, next_step=next_step, host=self.host, phase="download"
            )
            append_record(self._folder, failure)
        self.has_ended()


def _is_allowed(name: str) -> bool:
    plain = name.isprintable() and not set(name) & set("/\\") and len(name) <= LONGEST_NAME
    return plain and not name.startswith(".") and name not in OURS


def host_file_names(host: str, calls_itself: str, others: Sequence[str]) -> Rename:
    """Return unique names for same-named files (output, recordings) of several hosts in a job.

    `others` are the names of the hosts before this one; the first host's files keep their names.

    >>> host_file_names("node 1", "box", ["box"])("monitor-box.jsonl")
    'monitor-box@node%201.jsonl'
    """
    shared = {layout.LAUNCHER_OUTPUT} if others else set()
    if calls_itself in others:
        shared.add(layout.recording_name(calls_itself))

    def rename(file: str) -> str:
        stem, dot, end = file.rpartition(".")
        return f"{stem}@{quote(host, safe='')}{dot}{end}" if file in shared else file

    return rename


class ConnectingHost(Protocol):
    """A host that may still be connecting."""

    @property
    def name(self) -> str:
        """The host's name in the inventory."""

    def give_up(self) -> None:
        """Stop connecting, if that is still in progress."""


class RemoteLaunch:
    """The processes of one case, on one or several hosts."""

    waits_for: str | None = None

    def __init__(
        self,
        hosts: Sequence[ConnectingHost],
        *,
        loop: asyncio.AbstractEventLoop,
        on_news: Callable[[], object],
    ) -> None:
        self.command = ""
        self.placed: Placed | None = None
        self.error: HostError | None = None
        self.is_over = False
        self.on_news = on_news
        self._hosts = hosts
        self._loop = loop
        self._parts: list[tuple[AgentChannel, str, HostPart]] = []
        self._beginning: asyncio.Task[None]

    @property
    def status(self) -> int | None:
        """Return the status of the first host with failed ranks, 0 once all have exited."""
        statuses = [part.status for _, _, part in self._parts]
        failed = next((status for status in statuses if status), None)
        return 0 if failed is None and self.placed is not None and None not in statuses else failed

    def begin(self, work: Coroutine[Any, Any, None]) -> None:
        """Run `work` first in the event loop; if it raises an exception, the launch could not start."""
        self._beginning = self._loop.create_task(self._begin(work))

    async def _begin(self, work: Coroutine[Any, Any, None]) -> None:
        try:
            await work
        except HostError as error:
            self.error = error
        except Exception:  # noqa: BLE001  # our own fault is reported as the host's, and the others continue
            self.error = HostError(traceback.format_exc(), host=self._hosts[0].name, stage="exception")
        if self.error is not None:
            await self._end_parts(0.0)
            self.is_over = True
        self.on_news()

    def add(self, channel: AgentChannel, about: str, part: HostPart) -> None:
        """Add the processes that an agent started."""
        self._parts.append((channel, about, part))

    def end(self, grace_s: float) -> None:
        """Stop all parts concurrently: SIGTERM, a wait for last messages, SIGKILL; await the last bytes."""
        asyncio.run_coroutine_threadsafe(self._end(grace_s), self._loop)

    async def _end(self, grace_s: float) -> None:
        self._beginning.cancel()
        for host in self._hosts:
            host.give_up()
        await asyncio.wait({self._beginning})
        await self._end_parts(grace_s)
        self.is_over = True
        self.on_news()

    async def _end_parts(self, grace_s: float) -> None:
        unfinished = [(c, about, part) for c, about, part in self._parts if not part.ended.is_set()]
        await asyncio.gather(*(channel.end(about, grace_s) for channel, about, _ in unfinished))
        patience_s = 2 * grace_s + END_MARGIN_S
        await asyncio.gather(*(_ended_within(patience_s, part) for _, _, part in unfinished))


async def _ended_within(patience_s: float, part: HostPart) -> None:
    try:
        await asyncio.wait_for(part.ended.wait(), patience_s)
    except TimeoutError:
        part.is_lost("the host no longer responds")

"""The processes of one launch on this host, and what they have written.

In: the processes, and the folder that all write to. Out: the growth of every file in the folder.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from gpuproof.processes.group import ProcessGroup

OUTPUT = "launcher-output.txt"
CHUNK_BYTES = 1 << 18


@dataclass(frozen=True, slots=True, kw_only=True)
class Growth:
    """Bytes that a file has now and had not before; none where it shrank to `offset`."""

    name: str
    offset: int
    content: bytes


class LaunchedGroup:
    """One launch: its processes, and the files in its folder."""

    def __init__(self, processes: ProcessGroup, folder: Path, *, ignored: frozenset[str]) -> None:
        self.folder = folder
        self._sent = dict.fromkeys(ignored, -1)
        self._processes = processes

    def end(self, grace_s: float) -> None:
        """SIGTERM, `grace_s` to end by themselves, SIGKILL; then the samplers likewise."""
        self._processes.end(grace_s)

    def growth(self, *, everything: bool) -> Iterator[Growth]:
        """Yield what has come since the last call, whole lines only of JSON Lines unless `everything`.

        A writer takes back a line that it could not finish, so that half a line is nothing to send before
        the end.
        """
        for entry in sorted(os.scandir(self.folder), key=lambda file: file.name):
            if entry.name.startswith(".") or not entry.is_file(follow_symlinks=False):
                continue
            offset = self._sent.get(entry.name, 0)
            if offset < 0:
                continue
            size = entry.stat().st_size
            if size < offset:
                yield Growth(name=entry.name, offset=size, content=b"")
                self._sent[entry.name] = size
            elif everything and entry.name not in self._sent:
                yield Growth(name=entry.name, offset=0, content=b"")  # that it is empty is news too
            elif size > offset:
                yield from self._new_bytes(entry.name, offset, whole_lines=not everything)

    def _new_bytes(self, name: str, offset: int, *, whole_lines: bool) -> Iterator[Growth]:
        with (self.folder / name).open("rb") as file:
            file.seek(offset)
            content = file.read()
        if whole_lines and name.endswith(".jsonl"):
            content = content[: content.rfind(b"\n") + 1]
        for begin in range(0, len(content), CHUNK_BYTES):
            piece = content[begin : begin + CHUNK_BYTES]
            yield Growth(name=name, offset=offset + begin, content=piece)
        self._sent[name] = offset + len(content)

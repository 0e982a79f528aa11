"""Where do temporary files go? In a temporary folder that shows whether its owner is still alive.

Input: none, or the parent folder. Output: a separate folder, removed on exit. If an owner is killed, its
folder remains; it is removed by the next process that creates a folder next to it or requests a sweep. The
owner holds a lock that the system releases when the owner exits, so neither a reused process ID nor a process
ID from another container is mistaken for a living owner. Links are not followed.
"""

from __future__ import annotations

import fcntl
import os
import shutil
import stat
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

PREFIX = "gpuproof-"
OWNER = ".owner"
"""The lock file in each folder; only its creator may remove a folder that lacks one."""


class ScratchFolder:
    """A folder that is removed when this process exits; created by `make_scratch`, or adopted."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._owner = _locked_owner(path)

    def remove(self) -> None:
        """Remove the folder and its contents."""
        shutil.rmtree(self.path, ignore_errors=True)
        if self._owner is not None:
            os.close(self._owner)
            self._owner = None


def make_scratch(purpose: str = "") -> ScratchFolder:
    """Create a folder in the system's temporary folder; remove folders left there by killed owners.

    Raises:
        OSError: no folder can be created.
    """
    sweep()
    return ScratchFolder(Path(tempfile.mkdtemp(prefix=f"{PREFIX}{purpose}")))


@contextmanager
def scratch_folder(purpose: str = "") -> Iterator[Path]:
    """Provide a scratch folder for the duration of a block.

    Raises:
        OSError: see `make_scratch`.
    """
    scratch = make_scratch(purpose)
    try:
        yield scratch.path
    finally:
        scratch.remove()


def sweep(parent: Path | None = None) -> int:
    """Remove this user's folders if their owner process has exited; return the number removed.

    `parent` is where the folders are; by default, the system's temporary folder.
    """
    try:
        place = parent or Path(tempfile.gettempdir())
        names = os.listdir(place)
    except OSError:
        return 0
    return sum(_swept(place / name) for name in names if name.startswith(PREFIX))


def _locked_owner(path: Path) -> int | None:
    """Create the lock file, lock it, then rename it to its final name; return None if that fails."""
    unnamed = path / f"{OWNER}.part"
    flags = os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
    try:
        handle = os.open(unnamed, flags, 0o600)
    except OSError:  # e.g. a full disk: the folder is used without a lock, and remains if its owner is killed
        return None
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        unnamed.rename(path / OWNER)
    except OSError:
        os.close(handle)
        return None
    return handle


def _swept(path: Path) -> bool:
    """Remove a folder if it belongs to this user and its owner is dead; return whether it did so."""
    with suppress(OSError):
        folder = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
        try:
            return os.fstat(folder).st_uid == os.geteuid() and _removed(path, folder)
        finally:
            os.close(folder)
    return False


def _removed(path: Path, folder: int) -> bool:
    flags = os.O_RDWR | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
    owner = os.open(OWNER, flags, dir_fd=folder)
    try:
        fcntl.flock(owner, fcntl.LOCK_EX | fcntl.LOCK_NB)
        status = os.fstat(owner)
        if not stat.S_ISREG(status.st_mode) or not status.st_nlink:  # deleted: another sweep has claimed it
            return False
        shutil.rmtree(path, ignore_errors=True)
        return True
    finally:
        os.close(owner)

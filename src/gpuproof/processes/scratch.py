"""Where is kept what nobody needs afterwards? In a temporary folder that tells whether its owner lives.

In: nothing, or the folder to make it in. Out: a folder of its own, removed at its end. An owner that was
killed leaves its folder behind; whoever makes the next one beside it, or asks for it, removes it. Whether an
owner lives is told by a lock that the system takes back with the process, so that neither a process id that
was given again nor one of another container is mistaken for it. No link is followed.
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
"""The locked file in each; a folder without one is nobody's to remove but its maker's."""


class ScratchFolder:
    """A folder that goes with this process; made by `make_scratch`, or held by it from now on."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._owner = _locked_owner(path)

    def remove(self) -> None:
        """Remove it and all that is in it."""
        shutil.rmtree(self.path, ignore_errors=True)
        if self._owner is not None:
            os.close(self._owner)
            self._owner = None


def make_scratch(purpose: str = "") -> ScratchFolder:
    """Make a folder among the system's temporary ones, and remove what killed owners left there.

    Raises:
        OSError: no folder can be made.
    """
    sweep()
    return ScratchFolder(Path(tempfile.mkdtemp(prefix=f"{PREFIX}{purpose}")))


@contextmanager
def scratch_folder(purpose: str = "") -> Iterator[Path]:
    """Give such a folder for a while.

    Raises:
        OSError: as `make_scratch`.
    """
    scratch = make_scratch(purpose)
    try:
        yield scratch.path
    finally:
        scratch.remove()


def sweep(parent: Path | None = None) -> int:
    """Remove folders of this user whose owner has ended; return how many.

    `parent` is where they lie, by default the system's temporary folder.
    """
    try:
        place = parent or Path(tempfile.gettempdir())
        names = os.listdir(place)
    except OSError:
        return 0
    return sum(_swept(place / name) for name in names if name.startswith(PREFIX))


def _locked_owner(path: Path) -> int | None:
    """Make the file that is locked, and give it its name once it is; None where there is none."""
    unnamed = path / f"{OWNER}.part"
    flags = os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
    try:
        handle = os.open(unnamed, flags, 0o600)
    except OSError:  # a full disk, say: the folder is given as it is, and stays if its owner is killed
        return None
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        unnamed.rename(path / OWNER)
    except OSError:
        os.close(handle)
        return None
    return handle


def _swept(path: Path) -> bool:
    """Remove a folder if it is a dead owner's of this user; say whether it was."""
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
        if not stat.S_ISREG(status.st_mode) or not status.st_nlink:  # no name: another sweep has it already
            return False
        shutil.rmtree(path, ignore_errors=True)
        return True
    finally:
        os.close(owner)

"""Safe file access in shared folders: atomic writes, new temporary names, only plain files.

In a folder that other people provided or can modify, the path we write to may be a link, and the path we read
may be a pipe or a device. So output is written under a name that no one else can have created there, and is
then renamed; input must be a plain file.
"""

from __future__ import annotations

import contextlib
import errno
import json
import os
import shutil
import stat
from collections.abc import Iterable, Iterator
from pathlib import Path, PurePosixPath
from tempfile import TemporaryFile
from typing import Any, BinaryIO, Literal

from gpuproof.base.errors import EnvironmentUnfitError, RecordError, UsageError

_KINDS = (
    (stat.S_ISFIFO, "a pipe"),
    (stat.S_ISSOCK, "a socket"),
    (stat.S_ISCHR, "a device"),
    (stat.S_ISBLK, "a device"),
)


def write_array(path: Path, objects: Iterable[dict[str, Any]]) -> int:
    """Write the objects as a JSON array without holding it all in memory; return their number.

    Raises:
        EnvironmentUnfitError: the disk is full or the directory is not writable.
    """
    count = 0
    with aside(path) as place, place.open("w", encoding="utf-8") as file:
        file.write("[")
        for count, item in enumerate(objects, 1):
            file.write(",\n" if count > 1 else "\n")
            json.dump(item, file, allow_nan=False, ensure_ascii=False)
        file.write("\n]\n")
    return count


def write_text(path: Path, text: str) -> None:
    """Write a text file atomically.

    Raises:
        EnvironmentUnfitError: same as for `write_array`.
    """
    with aside(path) as place:
        place.write_text(text, encoding="utf-8")


@contextlib.contextmanager
def aside(path: Path) -> Iterator[Path]:
    """Yield a new file next to `path`, which replaces it on success and is removed otherwise.

    Raises:
        EnvironmentUnfitError: same as for `write_array`.
    """
    try:
        with replacing(path) as place:
            yield place
    except OSError as error:
        raise EnvironmentUnfitError(error.strerror or str(error), place=str(path)) from error


@contextlib.contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """Do the same as `aside`, but leave the operating system's error unchanged.

    The name is random and the file is created with O_EXCL, which does not follow links, so nothing outside
    the folder is written to.

    Raises:
        OSError: the file cannot be written.
    """
    _refuse_special(path)
    place = path.with_name(f".{os.urandom(8).hex()}.part{path.suffix}")
    os.close(os.open(place, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o666))
    try:
        yield place
        place.replace(path)
    finally:
        with contextlib.suppress(OSError):
            place.unlink(missing_ok=True)


def _refuse_special(path: Path) -> None:
    """Reject a device, pipe or socket, which a rename would replace: /dev/stdout, for everyone.

    Raises:
        OSError: the path is one.
    """
    with contextlib.suppress(FileNotFoundError):
        mode = path.stat().st_mode
        kind = next((name for holds, name in _KINDS if holds(mode)), None)
        if kind is None and path.parent.resolve() == Path("/dev") and path.is_symlink():
            kind = "a device"
        if kind is not None:
            raise OSError(errno.EINVAL, f"it is {kind}, not a plain file", str(path))


def open_plain(path: Path, *, follow_links: bool = True) -> BinaryIO:
    """Open only a regular file for reading, without blocking: never a pipe or an endless device.

    Raises:
        OSError: the file does not exist, access is denied, or it is not a plain file (`strerror` says what it
            is).
    """
    links = 0 if follow_links else os.O_NOFOLLOW
    handle = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC | links)
    try:
        mode = os.fstat(handle).st_mode
        if stat.S_ISDIR(mode):
            raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), str(path))
        if not stat.S_ISREG(mode):
            kind = next((name for holds, name in _KINDS if holds(mode)), "something else")
            raise OSError(errno.EINVAL, f"it is {kind}, not a plain file", str(path))
    except OSError:
        os.close(handle)
        raise
    return os.fdopen(handle, "rb")


def read_plain(path: Path, *, max_bytes: int | None = None, follow_links: bool = True) -> bytes:
    """Read an entire regular file.

    Raises:
        OSError: same as for `open_plain`, or the file is larger than `max_bytes`.
    """
    with open_plain(path, follow_links=follow_links) as file:
        content = file.read() if max_bytes is None else file.read(max_bytes + 1)
    if max_bytes is not None and len(content) > max_bytes:
        raise OSError(errno.EFBIG, f"it is larger than {max_bytes:,} bytes", str(path))
    return content


def link_plain(source: Path, target: Path) -> None:
    """Hard-link a plain file that is not a link, or copy it if the file system has no hard links.

    A link at `target` is replaced, not written through.

    Raises:
        OSError: the source is not a plain file, or cannot be copied.
    """
    with open_plain(source, follow_links=False) as file, replacing(target) as place:
        place.unlink()
        try:
            os.link(source, place, follow_symlinks=False)
        except OSError:
            with place.open("xb") as copy:
                shutil.copyfileobj(file, copy)


def try_place(option: str, path: Path | None, kind: Literal["file", "new file", "folder"] = "file") -> None:
    """Check, before measuring, that results can be written at the end; create the folder if needed.

    Raises:
        UsageError: the results cannot be written.
    """
    if path is None:
        return
    try:
        if kind == "folder":
            path.mkdir(parents=True, exist_ok=True)
        elif path.exists():
            _refuse_special(path)
            path.open("xb" if kind == "new file" else "ab").close()
            return
        TemporaryFile(dir=path if kind == "folder" else path.absolute().parent).close()
    except OSError as error:
        is_absent = isinstance(error, FileNotFoundError)
        cause = "there is no such folder" if is_absent else f"cannot be written: {error.strerror}"
        is_other = error.errno in (errno.EEXIST, errno.EINVAL)
        step = "Name another one" if is_other else "Use a folder that you own"
        raise UsageError(cause, place=f"{option} {path}", next_step=step) from error


@contextlib.contextmanager
def copying_results(source: Path, target: Path) -> Iterator[None]:
    """Report why results cannot be copied, and where the originals are.

    Raises:
        EnvironmentUnfitError: the block could not write to `target`.
    """
    try:
        yield
    except OSError as error:
        cause = error.args[0][0][2] if isinstance(error, shutil.Error) else error.strerror
        raise EnvironmentUnfitError(
            f"cannot be written: {cause}", place=str(target), next_step=f"The results are in {source}"
        ) from error


def packaged_text(path: str) -> str:
    """Return the text of a file shipped with gpuproof, by its path in the package."""
    from importlib import resources  # the import takes 2 ms, and few commands need it

    return resources.files("gpuproof").joinpath(path).read_text(encoding="utf-8")


def packaged_rows(path: str) -> list[dict[str, Any]]:
    """Return the rows of a packaged CSV, by column; an empty cell is None, `#` starts a comment."""
    import csv

    lines = (line for line in packaged_text(path).splitlines() if not line.startswith("#"))
    return [{name: cell or None for name, cell in row.items()} for row in csv.DictReader(lines)]


def open_lock(path: Path) -> int:
    """Open a file that is only used for locking: create it if missing, never truncate, follow no link.

    Returns the file descriptor.

    Raises:
        OSError: the file cannot be opened.
    """
    flags = os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
    return os.open(path, flags, 0o666)


def place_inside(root: Path, name: str) -> Path:
    """Return the path of the named file below `root`; no folder along the path may be a link.

    Raises:
        RecordError: the name leads outside `root`.
    """
    parts = PurePosixPath(name).parts
    folders = [root.joinpath(*parts[:end]) for end in range(1, len(parts))]
    is_outside = not parts or parts[0] == "/" or ".." in parts or "\0" in name
    if is_outside or any(folder.is_symlink() for folder in folders):
        raise RecordError(
            f"{name!r} leads outside the folder",
            place=str(root),
            next_step="Its files were modified; do not use any of them",
        )
    return root.joinpath(*parts)

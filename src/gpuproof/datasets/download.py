"""Download a data set once: stream to a temporary file, verify, unpack, and rename into place.

In: the location of an archive and its expected checksum. Out: the folder that the archive contains. Two
processes that request the same set wait for each other; an interrupted download is resumed. pooch streams the
archive, and tarfile's `data` filter
unpacks only files and folders inside the expected folder.
"""

from __future__ import annotations

import errno
import fcntl
import hashlib
import shlex
import shutil
import sys
import tarfile
import tempfile
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from time import monotonic
from typing import IO, Any

import pooch
import requests

from gpuproof.base.errors import EnvironmentUnfitError, GpuproofError
from gpuproof.base.units import memory
from gpuproof.datasets.catalogue import Say

BLOCK_BYTES = 2**16
"""Maximum number of bytes lost when a connection breaks."""
SILENCE_S = 60.0
"""Give up on a server that has sent nothing for this long."""
SAY_EVERY_S = 5.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Archive:
    """A tar archive on a server, or a single file."""

    url: str
    checksum: str
    """`md5:…` or `sha256:…`."""

    @property
    def name(self) -> str:
        """The file's own name."""
        return self.url.rsplit("/", 1)[-1]

    def replaced_by(self, url: str | None, checksum: str | None) -> Archive:
        """Return the archive, with the user's mirror and checksum if they are given."""
        return Archive(url=url or self.url, checksum=checksum or self.checksum)


def fetch(archive: Archive, target: Path, *, folder: str, say: Say) -> Path:
    """Create `target/folder` from the archive, unless another process has done so in the meantime.

    Raises:
        EnvironmentUnfitError: no network, no such file, a wrong checksum, a malicious archive, or no disk
            space.
    """
    place = target / folder
    part = target / f".{folder}.part"
    with _explained(archive, part):
        target.mkdir(parents=True, exist_ok=True)
        with _alone(target / f".{folder}.lock", say=say):
            if place.is_dir():
                return place
            _download(archive, part, say=say)
            _check(archive, part)
            say(f"unpacking {archive.name} into {target}")
            _unpack(part, target, folder=folder)
            part.unlink()
    return place


def fetch_file(archive: Archive, target: Path, *, say: Say) -> Path:
    """Download a single file into `target` as is, unless another process has done so in the meantime.

    Raises:
        EnvironmentUnfitError: no network, no such file, a wrong checksum, or no disk space.
    """
    place, part = target / archive.name, target / f".{archive.name}.part"
    with _explained(archive, part):
        target.mkdir(parents=True, exist_ok=True)
        with _alone(target / f".{archive.name}.lock", say=say):
            if not place.is_file():
                _download(archive, part, say=say)
                _check(archive, part)
                part.rename(place)
    return place


@contextmanager
def _explained(archive: Archive, part: Path) -> Iterator[None]:
    """Convert any network or disk error to a one-paragraph message."""
    try:
        yield
    except GpuproofError:
        raise
    except OSError as error:  # requests' exceptions are OSErrors, too
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            part.unlink(missing_ok=True)
            raise EnvironmentUnfitError(
                "the disk is full; the partial download is removed",
                place=str(part.parent),
                next_step="Free up space there, or set data.path to a larger disk",
            ) from error
        raise _unfit(
            f"cannot be downloaded: {_root_cause(error)}", archive, by_hand(archive, part.parent)
        ) from error


def _root_cause(error: BaseException) -> BaseException:
    """Return the root cause of a requests exception: the system's message, without the wrappers."""
    inner = getattr(error, "reason", None) or next(iter(error.args), None)
    return _root_cause(inner) if isinstance(inner, BaseException) else error


def by_hand(archive: Archive, target: Path) -> str:
    """Explain how to provide the files of an archive without a network, as is common in containers."""
    unpack = shlex.join(["tar", "-xf", archive.name, "-C", str(target)])
    return (
        "Try again (the partial download is kept). Without a network: download that file elsewhere, copy it "
        f"here and unpack it with `{unpack}`; for a container, mount the folder {target.absolute()}"
    )


def _unfit(cause: str, archive: Archive, next_step: str) -> EnvironmentUnfitError:
    return EnvironmentUnfitError(cause, place=archive.url, next_step=next_step)


@contextmanager
def _alone(path: Path, *, say: Say) -> Iterator[None]:
    """Hold the lock on one data set; the kernel releases it whenever and however the process exits."""
    with path.open("w") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            say(f"another process is downloading the same data set; waiting for it ({path})")
            fcntl.flock(file, fcntl.LOCK_EX)
        yield


def _download(archive: Archive, part: Path, *, say: Say) -> None:
    """Append the missing bytes to `part`; remove the file if it is still empty."""
    try:
        with part.open("ab") as file:
            _Arriving(archive, file, say).receive()
    finally:
        if not part.stat().st_size:
            part.unlink()


class _Arriving:
    """The file to which pooch streams; it also serves as pooch's progress bar."""

    total = 0
    """Number of bytes in the server's response, once known."""

    def __init__(self, archive: Archive, file: IO[bytes], say: Say) -> None:
        self.begin = file.tell()
        self._archive, self._file, self._say = archive, file, say
        self._last_line_s = 0.0
        self._answer: Any = None

    def receive(self) -> None:
        """Stream the missing part.

        Raises:
            EnvironmentUnfitError: the server does not have the file, or the connection broke.
            OSError: the server does not exist, or there is no disk space.
        """
        try:
            self._stream()
        except requests.HTTPError as error:
            status, reason = self._answer.status_code, self._answer.reason
            if not (self.begin and status == requests.codes.requested_range_not_satisfiable):
                raise self._unfit(f"the server responded with {status} {reason}") from error
            return  # nothing was missing; the checksum decides
        except (requests.exceptions.ChunkedEncodingError, requests.ConnectionError):
            if not self.total:
                raise
        arrived, size = self._file.tell(), self.begin + self.total
        if self.total and arrived < size:
            raise self._unfit(f"the connection broke after {memory(arrived)} of {memory(size)}")

    def _unfit(self, cause: str) -> EnvironmentUnfitError:
        return _unfit(cause, self._archive, by_hand(self._archive, Path(self._file.name).parent))

    def _stream(self) -> None:
        # If a server declares an archive's own compression as a content encoding, the archive would be
        # decompressed in transit.
        headers = {"Accept-Encoding": "identity"}
        if self.begin:
            headers["Range"] = f"bytes={self.begin}-"
        stream = pooch.HTTPDownloader(
            progressbar=self,
            chunk_size=BLOCK_BYTES,
            timeout=SILENCE_S,
            headers=headers,
            hooks={"response": self._begins},
        )
        try:
            stream(self._archive.url, self._file, None)
        finally:
            if self._answer is not None:
                self._answer.close()

    def _begins(self, answer: Any, **_: Any) -> None:
        self._answer = answer
        answer.raw.headers.pop("Content-Encoding", None)
        if answer.status_code == requests.codes.ok:
            self.begin = 0  # the server sent the whole file, whatever was requested
            self._file.truncate(0)

    def update(self, _num_bytes: int) -> None:
        if monotonic() - self._last_line_s >= SAY_EVERY_S:
            self._last_line_s = monotonic()
            size = memory(self.begin + self.total) if self.total else "unknown size"
            self._say(f"downloading {self._archive.url}: {memory(self._file.tell())} of {size}")

    def reset(self) -> None:
        """Do nothing at the end of the download: there is nothing left to draw."""

    close = reset


def _check(archive: Archive, part: Path) -> None:
    """Verify the file's checksum; remove the file on a mismatch, since resuming would not help."""
    kind, _, expected = archive.checksum.partition(":")
    with part.open("rb") as file:
        checksum = hashlib.file_digest(file, lambda: hashlib.new(kind, usedforsecurity=False)).hexdigest()
    if checksum != expected.lower():
        size = part.stat().st_size
        part.unlink()
        raise _unfit(
            (
                f"the downloaded file ({memory(size)}) has {kind} {checksum}, expected {expected}; it "
                "was removed"
            ),
            archive,
            "Check the address; if your mirror repacks it, set data.download_checksum",
        )


def _unpack(archive: Path, target: Path, *, folder: str) -> None:
    """Unpack the archive's `folder` into `target` with a final rename, so it is complete or absent."""
    if not hasattr(tarfile, "data_filter"):
        raise EnvironmentUnfitError(
            f"Python {sys.version.split()[0]} cannot safely unpack a downloaded archive",
            place="data.download",
            next_step="Use Python 3.11.4 or newer, or unpack it yourself",
        )

    def expected(member: tarfile.TarInfo, path: str) -> tarfile.TarInfo | None:
        if not (member.isfile() or member.isdir()):
            raise _refusal(f"{member.name!r} in it is neither a file nor a folder")
        if PurePosixPath(member.name).parts[:1] != (folder,):
            raise _refusal(f"{member.name!r} in it is outside {folder}")
        return tarfile.data_filter(member, path)

    aside = Path(tempfile.mkdtemp(prefix=f".{folder}.", dir=target))
    try:
        with tarfile.open(archive, "r:*") as tar:
            tar.extractall(aside, filter=expected)  # noqa: S202  # the filter is what it asks for
        (aside / folder).rename(target / folder)
    except tarfile.OutsideDestinationError as error:
        raise _refusal(f"{error.tarinfo.name!r} in it is outside {folder}") from error
    except (tarfile.TarError, EOFError, zlib.error) as error:
        raise _refusal(f"it is not a tar archive: {error}") from error
    except FileNotFoundError as error:
        raise _refusal(f"it does not contain a folder {folder}") from error
    finally:
        shutil.rmtree(aside, ignore_errors=True)


def _refusal(cause: str) -> EnvironmentUnfitError:
    return EnvironmentUnfitError(
        f"the archive is not unpacked: {cause}",
        place="data.download",
        next_step="Check where it came from (data.download_url), or unpack it yourself",
    )

"""Fetch a data set once: streamed aside, its checksum taken, unpacked, renamed into place.

Comes in: where an archive is and what its checksum must be. Goes out: the folder that it holds. Two
processes that ask for the same set wait for each other; what an interruption left is gone on with. pooch
streams, tarfile's `data` filter unpacks: files and folders inside the expected folder, and nothing else.
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
"""What is lost of a connection that breaks, at most."""
SILENCE_S = 60.0
"""A server that sends nothing for so long is given up."""
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
        """Return the archive at the user's own mirror, with the user's own checksum, where given."""
        return Archive(url=url or self.url, checksum=checksum or self.checksum)


def fetch(archive: Archive, target: Path, *, folder: str, say: Say) -> Path:
    """Bring `target/folder` into being out of the archive, unless another process did so meanwhile.

    Raises:
        EnvironmentUnfitError: no network, no such file, a wrong checksum, a hostile archive, or no room.
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
    """Bring a single file into `target` as it is, unless another process did so meanwhile.

    Raises:
        EnvironmentUnfitError: no network, no such file, a wrong checksum, or no room.
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
    """Turn whatever a network or a disk answers into one paragraph."""
    try:
        yield
    except GpuproofError:
        raise
    except OSError as error:  # requests' exceptions are such, too
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            part.unlink(missing_ok=True)
            raise EnvironmentUnfitError(
                "the disk is full; what had arrived is removed",
                place=str(part.parent),
                next_step="Free room there, or set data.path to a larger disk",
            ) from error
        raise _unfit(
            f"cannot be fetched: {_root_cause(error)}", archive, by_hand(archive, part.parent)
        ) from error


def _root_cause(error: BaseException) -> BaseException:
    """Return what an exception of requests was raised for: the words of the system, not of four layers."""
    inner = getattr(error, "reason", None) or next(iter(error.args), None)
    return _root_cause(inner) if isinstance(inner, BaseException) else error


def by_hand(archive: Archive, target: Path) -> str:
    """Return how to place the files of an archive where no network is: a container's usual case."""
    unpack = shlex.join(["tar", "-xf", archive.name, "-C", str(target)])
    return (
        "Try again (what has arrived is kept). Without a network: download that file elsewhere, bring it "
        f"here and unpack it with `{unpack}`; into a container, mount the folder {target.absolute()}"
    )


def _unfit(cause: str, archive: Archive, next_step: str) -> EnvironmentUnfitError:
    return EnvironmentUnfitError(cause, place=archive.url, next_step=next_step)


@contextmanager
def _alone(path: Path, *, say: Say) -> Iterator[None]:
    """Hold the lock of one data set; the kernel lets go of it when the process ends, however it ends."""
    with path.open("w") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            say(f"another process fetches the same data set; waiting for it ({path})")
            fcntl.flock(file, fcntl.LOCK_EX)
        yield


def _download(archive: Archive, part: Path, *, say: Say) -> None:
    """Append what is still missing to `part`; one that nothing came into is removed."""
    try:
        with part.open("ab") as file:
            _Arriving(archive, file, say).receive()
    finally:
        if not part.stat().st_size:
            part.unlink()


class _Arriving:
    """A file that pooch streams, which takes this for its progress bar."""

    total = 0
    """Bytes that this answer holds, once it begins."""

    def __init__(self, archive: Archive, file: IO[bytes], say: Say) -> None:
        self.begin = file.tell()
        self._archive, self._file, self._say = archive, file, say
        self._last_line_s = 0.0
        self._answer: Any = None

    def receive(self) -> None:
        """Stream what is missing.

        Raises:
            EnvironmentUnfitError: the server does not have it, or the connection broke on the way.
            OSError: there is no such server, or no room.
        """
        try:
            self._stream()
        except requests.HTTPError as error:
            status, reason = self._answer.status_code, self._answer.reason
            if not (self.begin and status == requests.codes.requested_range_not_satisfiable):
                raise self._unfit(f"the server answers {status} {reason}") from error
            return  # all of it was there; the checksum decides
        except (requests.exceptions.ChunkedEncodingError, requests.ConnectionError):
            if not self.total:
                raise
        arrived, size = self._file.tell(), self.begin + self.total
        if self.total and arrived < size:
            raise self._unfit(f"the connection broke after {memory(arrived)} of {memory(size)}")

    def _unfit(self, cause: str) -> EnvironmentUnfitError:
        return _unfit(cause, self._archive, by_hand(self._archive, Path(self._file.name).parent))

    def _stream(self) -> None:
        # A server that calls an archive's own compression an encoding would have it undone on the way.
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
            self.begin = 0  # the whole of it, whatever was asked for
            self._file.truncate(0)

    def update(self, _num_bytes: int) -> None:
        if monotonic() - self._last_line_s >= SAY_EVERY_S:
            self._last_line_s = monotonic()
            size = memory(self.begin + self.total) if self.total else "unknown size"
            self._say(f"fetching {self._archive.url}: {memory(self._file.tell())} of {size}")

    def reset(self) -> None:
        """Hear that all has come; nothing is drawn that had to be."""

    close = reset


def _check(archive: Archive, part: Path) -> None:
    """Compare the file with its checksum; what is wrong is removed, since no more of it would help."""
    kind, _, expected = archive.checksum.partition(":")
    with part.open("rb") as file:
        checksum = hashlib.file_digest(file, lambda: hashlib.new(kind, usedforsecurity=False)).hexdigest()
    if checksum != expected.lower():
        size = part.stat().st_size
        part.unlink()
        raise _unfit(
            f"the file that came ({memory(size)}) has {kind} {checksum}, expected {expected}; it is removed",
            archive,
            "Check the address; if a mirror of yours packs it anew, set data.download_checksum",
        )


def _unpack(archive: Path, target: Path, *, folder: str) -> None:
    """Unpack the archive's `folder` into `target`, aside and then renamed, so that it is whole or absent."""
    if not hasattr(tarfile, "data_filter"):
        raise EnvironmentUnfitError(
            f"Python {sys.version.split()[0]} cannot unpack what came over a network safely",
            place="data.download",
            next_step="Use Python 3.11.4 or newer, or unpack it yourself",
        )

    def expected(member: tarfile.TarInfo, path: str) -> tarfile.TarInfo | None:
        if not (member.isfile() or member.isdir()):
            raise _refusal(f"{member.name!r} in it is neither a file nor a folder")
        if PurePosixPath(member.name).parts[:1] != (folder,):
            raise _refusal(f"{member.name!r} in it lies outside of {folder}")
        return tarfile.data_filter(member, path)

    aside = Path(tempfile.mkdtemp(prefix=f".{folder}.", dir=target))
    try:
        with tarfile.open(archive, "r:*") as tar:
            tar.extractall(aside, filter=expected)  # noqa: S202  # the filter is what it asks for
        (aside / folder).rename(target / folder)
    except tarfile.OutsideDestinationError as error:
        raise _refusal(f"{error.tarinfo.name!r} in it lies outside of {folder}") from error
    except (tarfile.TarError, EOFError, zlib.error) as error:
        raise _refusal(f"it is no tar archive: {error}") from error
    except FileNotFoundError as error:
        raise _refusal(f"it holds no folder {folder}") from error
    finally:
        shutil.rmtree(aside, ignore_errors=True)


def _refusal(cause: str) -> EnvironmentUnfitError:
    return EnvironmentUnfitError(
        f"the archive is not unpacked: {cause}",
        place="data.download",
        next_step="Check where it came from (data.download_url), or unpack it yourself",
    )

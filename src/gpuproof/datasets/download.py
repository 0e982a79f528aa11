"""Fetch a data set once: streamed aside, its checksum taken, unpacked, renamed into place.

Comes in: where an archive is and what its checksum must be. Goes out: the folder that it holds. Two
processes that ask for the same set wait for each other; what an interruption left is gone on with.
"""

from __future__ import annotations

import errno
import fcntl
import hashlib
import http
import http.client
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from time import monotonic
from typing import IO, Protocol

from gpuproof.datasets.catalogue import Say
from gpuproof.datasets.unpack import unpack
from gpuproof.errors import EnvironmentUnfitError, GpuproofError
from gpuproof.records.case import DownloadSpec
from gpuproof.units import memory

BLOCK_BYTES = 2**20
SILENCE_S = 60.0
"""A server that sends nothing for so long is given up."""
SAY_EVERY_S = 5.0
BY_HAND = "Try again (what has arrived is kept), or fetch it by hand and unpack it there"


@dataclass(frozen=True, slots=True, kw_only=True)
class Archive:
    """A tar archive on a server."""

    url: str
    checksum: str
    """`md5:…` or `sha256:…`."""

    @property
    def name(self) -> str:
        """The file's own name."""
        return self.url.rsplit("/", 1)[-1]

    def replaced_by(self, download: DownloadSpec) -> Archive:
        """Return the archive at the user's own mirror, with the user's own checksum, where given."""
        return Archive(url=download.url or self.url, checksum=download.checksum or self.checksum)


class _Digest(Protocol):
    def update(self, data: bytes, /) -> None: ...

    def hexdigest(self) -> str: ...


def fetch(archive: Archive, target: Path, *, folder: str, say: Say) -> Path:
    """Bring `target/folder` into being out of the archive, unless another process did so meanwhile.

    Raises:
        EnvironmentUnfitError: no network, no such file, a wrong checksum, or no room.
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
            unpack(part, target, folder=folder)
            part.unlink()
    return place


@contextmanager
def _explained(archive: Archive, part: Path) -> Iterator[None]:
    """Turn whatever a network or a disk answers into one paragraph."""
    try:
        yield
    except GpuproofError:
        raise
    except urllib.error.HTTPError as error:
        raise _unfit(f"the server answers {error.code} {error.reason}", archive) from error
    except OSError as error:
        reason = getattr(error, "reason", None) or error
        if getattr(error, "errno", None) in (errno.ENOSPC, errno.EDQUOT):
            part.unlink(missing_ok=True)
            raise EnvironmentUnfitError(
                "the disk is full; what had arrived is removed",
                place=str(part.parent),
                next_step="Free room there, or set data.path to a larger disk",
            ) from error
        raise _unfit(f"cannot be fetched: {reason}", archive) from error
    except http.client.HTTPException as error:
        raise _unfit(f"the connection broke: {error!r}", archive) from error


def _unfit(cause: str, archive: Archive, next_step: str = BY_HAND) -> EnvironmentUnfitError:
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
    """Append what is still missing to `part`."""
    have = part.stat().st_size if part.exists() else 0
    request = urllib.request.Request(archive.url)  # noqa: S310  # the config lets http and https through
    if have:
        request.add_header("Range", f"bytes={have}-")
    try:
        response = urllib.request.urlopen(request, timeout=SILENCE_S)  # noqa: S310
    except urllib.error.HTTPError as error:
        if error.code == http.HTTPStatus.REQUESTED_RANGE_NOT_SATISFIABLE and have:
            return  # all of it is there; the checksum decides
        raise
    with response:
        continues = have and response.status == http.HTTPStatus.PARTIAL_CONTENT
        with part.open("ab" if continues else "wb") as file:
            _copy(response, file, archive, have=have if continues else 0, say=say)


def _copy(
    response: http.client.HTTPResponse, file: IO[bytes], archive: Archive, *, have: int, say: Say
) -> None:
    length = response.headers.get("Content-Length")
    total = have + int(length) if length else None
    said_s = 0.0
    while block := response.read(BLOCK_BYTES):
        file.write(block)
        have += len(block)
        if monotonic() - said_s >= SAY_EVERY_S:
            said_s = monotonic()
            say(f"fetching {archive.url}: {memory(have)} of {memory(total) if total else 'unknown size'}")
    if total is not None and have < total:
        raise _unfit(f"the connection broke after {memory(have)} of {memory(total)}", archive)


def _check(archive: Archive, part: Path) -> None:
    """Compare the file with its checksum; what is wrong is removed, since no more of it would help."""
    kind, _, expected = archive.checksum.partition(":")
    digest: _Digest = (
        hashlib.md5(usedforsecurity=False) if kind == "md5" else hashlib.new(kind, usedforsecurity=False)
    )
    with part.open("rb") as file:
        while block := file.read(BLOCK_BYTES):
            digest.update(block)
    found = digest.hexdigest()
    if found != expected.lower():
        size = part.stat().st_size
        part.unlink()
        raise _unfit(
            f"the file that came ({memory(size)}) has {kind} {found}, expected {expected}; it is removed",
            archive,
            "Check the address; if a mirror of yours packs it anew, set data.download_checksum",
        )

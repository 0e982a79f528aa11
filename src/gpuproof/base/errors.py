"""Errors that a user can act on, and their exit codes.

Every error states the location, the cause and the next step, and is printed as one paragraph. A traceback is
shown only for our own bugs.
"""

from __future__ import annotations

import errno
import os
import sys
from collections.abc import Mapping
from enum import IntEnum


class ExitCode(IntEnum):
    """The meaning of each exit status that a gpuproof command can return."""

    DONE = 0
    OUR_BUG = 1
    USAGE = 2
    FAILED = 3
    INCONCLUSIVE = 4
    UNFIT_ENVIRONMENT = 5
    TIMEOUT = 124
    INTERRUPTED = 130


class GpuproofError(Exception):
    """A failure that is not a bug in gpuproof: where it occurred, why, and what to do next."""

    exit_code = ExitCode.FAILED

    more_words: tuple[str, ...] = ()
    """Options to add so that the command as typed would work."""

    def __init__(self, cause: str, *, place: str | None = None, next_step: str | None = None) -> None:
        super().__init__(cause)
        self.cause = cause
        self.place = place
        self.next_step = next_step

    def __str__(self) -> str:
        """Join the three parts into one paragraph, without control characters."""
        parts = [f"{self.place}: {self.cause}" if self.place else self.cause]
        if self.next_step:
            parts.append(self.next_step)
        paragraph = ". ".join(part.strip().rstrip(".") for part in parts) + "."
        from gpuproof.base.outside import plain  # an error that is never shown does not need this import
        from gpuproof.base.redaction import redacted

        return redacted(plain(paragraph, allowed=""))


class UsageError(GpuproofError):
    """A mistake in a command line, a config or a file that the user specified."""

    exit_code = ExitCode.USAGE


class MissingDataError(UsageError):
    """A data set is not where the recipe says, but can be downloaded."""

    more_words = ("--data.download=true",)


class EnvironmentUnfitError(GpuproofError):
    """This machine lacks something the command needs: torch, a device, enough devices, disk space."""

    exit_code = ExitCode.UNFIT_ENVIRONMENT


class UnsupportedError(EnvironmentUnfitError):
    """The device itself cannot do what is requested, regardless of settings and software."""


class RecordError(GpuproofError):
    """A run's file cannot be read in the format that it claims to have."""

    exit_code = ExitCode.USAGE


REFUSALS: Mapping[int, type[GpuproofError]] = {
    errno.ENAMETOOLONG: UsageError,
    errno.ELOOP: UsageError,
    errno.ENOTDIR: UsageError,
    errno.EISDIR: UsageError,
    errno.EACCES: EnvironmentUnfitError,
    errno.EPERM: EnvironmentUnfitError,
    errno.EROFS: EnvironmentUnfitError,
    errno.ESTALE: EnvironmentUnfitError,
    errno.EIO: EnvironmentUnfitError,
}
"""A file system error for a path, wherever the path came from, but never one of our own bugs."""


def explained(error: Exception) -> GpuproofError | None:
    """Convert an error to our own type if the user can act on it; None for one of our own bugs.

    A missing library, or a file system or locale that rejects a path, wherever the path came from.
    """
    if isinstance(error, GpuproofError):
        return error
    if isinstance(error, ModuleNotFoundError) and error.name and error.name.split(".")[0] != "gpuproof":
        return EnvironmentUnfitError(
            f"{error.name}, which gpuproof needs, is not installed for {sys.executable}",
            next_step="Install gpuproof there with all its dependencies (pip install, without "
            "--no-deps), or start it with the Python that has them",
        )
    if isinstance(error, UnicodeEncodeError) and error.encoding != "utf-8":
        return UsageError(
            f"the encoding {error.encoding} of this locale lacks {error.object[error.start : error.end]!r}",
            place="environment",
            next_step="Set LC_ALL=C.UTF-8, or PYTHONUTF8=1",
        )
    kind = REFUSALS.get(error.errno or 0) if isinstance(error, OSError) else None
    if not isinstance(error, OSError) or kind is None or error.filename is None:
        return None
    return kind(
        f"the file system rejects this path: {error.strerror}",
        place=os.fsdecode(error.filename) if isinstance(error.filename, str | bytes) else None,
        next_step="Use another path, or fix what is there",
    )

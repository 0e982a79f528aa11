"""Errors that a person can act on, and the exit codes they end in.

Every error names the place, the cause and the next step, and prints as one paragraph. A traceback is
for a fault of ours only.
"""

from __future__ import annotations

import errno
import os
import sys
from collections.abc import Mapping
from enum import IntEnum


class ExitCode(IntEnum):
    """What the exit status of every gpuproof command means."""

    DONE = 0
    OUR_BUG = 1
    USAGE = 2
    FAILED = 3
    INCONCLUSIVE = 4
    UNFIT_ENVIRONMENT = 5
    TIMEOUT = 124
    INTERRUPTED = 130


class GpuproofError(Exception):
    """A failure that is not a bug of ours: where it is, why, and what to do next."""

    exit_code = ExitCode.FAILED

    more_words: tuple[str, ...] = ()
    """With these the command that was typed would do."""

    def __init__(self, cause: str, *, place: str | None = None, next_step: str | None = None) -> None:
        super().__init__(cause)
        self.cause = cause
        self.place = place
        self.next_step = next_step

    def __str__(self) -> str:
        """Join the three parts into one paragraph, free of control characters."""
        parts = [f"{self.place}: {self.cause}" if self.place else self.cause]
        if self.next_step:
            parts.append(self.next_step)
        paragraph = ". ".join(part.strip().rstrip(".") for part in parts) + "."
        from gpuproof.base.outside import plain  # an error that is never shown needs neither
        from gpuproof.base.redaction import redacted

        return redacted(plain(paragraph, allowed=""))


class UsageError(GpuproofError):
    """A mistake in a command line, a config or a file that the user named."""

    exit_code = ExitCode.USAGE


class MissingDataError(UsageError):
    """A data set is not where the recipe says, and can be fetched."""

    more_words = ("--data.download=true",)


class EnvironmentUnfitError(GpuproofError):
    """This machine lacks what the command needs: torch, a device, enough devices, room on the disk."""

    exit_code = ExitCode.UNFIT_ENVIRONMENT


class UnsupportedError(EnvironmentUnfitError):
    """The device itself has not got what is asked of it: no setting and no other software brings it."""


class RecordError(GpuproofError):
    """A file of a run cannot be read as what it says it is."""

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
"""What a file system answers for a path, whoever gave it, and never for a fault of ours."""


def explained(error: Exception) -> GpuproofError | None:
    """Return what the user can act on in our words; None for a fault of ours.

    A library that is not there, and a file system or a locale that refuses a path, whoever gave it.
    """
    if isinstance(error, GpuproofError):
        return error
    if isinstance(error, ModuleNotFoundError) and error.name and error.name.split(".")[0] != "gpuproof":
        return EnvironmentUnfitError(
            f"{error.name}, which gpuproof needs, is not installed for {sys.executable}",
            next_step="Install gpuproof there with all that it needs (pip install, without --no-deps), or "
            "start it by the Python that has them",
        )
    if isinstance(error, UnicodeEncodeError) and error.encoding != "utf-8":
        return UsageError(
            f"this locale writes {error.encoding}, which has no {error.object[error.start : error.end]!r}",
            place="environment",
            next_step="Set LC_ALL=C.UTF-8, or PYTHONUTF8=1",
        )
    kind = REFUSALS.get(error.errno or 0) if isinstance(error, OSError) else None
    if not isinstance(error, OSError) or kind is None or error.filename is None:
        return None
    return kind(
        f"the file system refuses this path: {error.strerror}",
        place=os.fsdecode(error.filename) if isinstance(error.filename, str | bytes) else None,
        next_step="Give another path, or put right what stands there",
    )

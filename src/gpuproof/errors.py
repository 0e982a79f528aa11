"""Errors that a person can act on, and the exit codes they end in.

Every error names the place, the cause and the next step, and prints as one paragraph. A traceback is
for a fault of ours only.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Mapping
from enum import IntEnum

from gpuproof.outside import plain
from gpuproof.redaction import redacted


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
        return redacted(plain(paragraph, kept=""))


class UsageError(GpuproofError):
    """A mistake in a command line, a config or a file that the user named."""

    exit_code = ExitCode.USAGE


class MissingDataError(UsageError):
    """A data set is not where the recipe says, and can be fetched."""

    more_words = ("--data.download=true",)


class EnvironmentUnfitError(GpuproofError):
    """This machine lacks what the command needs: torch, a device, enough devices, room on the disk."""

    exit_code = ExitCode.UNFIT_ENVIRONMENT


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


def path_refused(error: OSError) -> GpuproofError | None:
    """Return in our words that the file system refuses a path; None where it said something else."""
    kind = REFUSALS.get(error.errno or 0)
    if kind is None or error.filename is None:
        return None
    return kind(
        f"the file system refuses this path: {error.strerror}",
        place=os.fsdecode(error.filename) if isinstance(error.filename, str | bytes) else None,
        next_step="Give another path, or put right what stands there",
    )

"""How fast is a disk when a checkpoint is written, read back sequentially, and read at random?

Everything is bounded in size and time, happens in the folder that the user specifies, and is removed at the
end. Reads bypass the page cache (O_DIRECT) if the file system supports it. Otherwise the kernel is asked to
drop the file from the cache; if even that may not have worked, the result says so.
"""

from __future__ import annotations

import errno
import mmap
import os
import random
import tempfile
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from time import perf_counter

from gpuproof.base.errors import EnvironmentUnfitError
from gpuproof.records.work.probe import ProbeReading, StorageSpec
from gpuproof.worker.rank.bench import Bench
from gpuproof.worker.rank.recorder import rounded

DIRECT = "read bypassing the page cache (O_DIRECT)"
FORGOTTEN = (
    "the kernel was asked to drop the file from the page cache (POSIX_FADV_DONTNEED); "
    "layers below may still cache it"
)
KEPT = "this system cannot bypass or drop the page cache: the result may be the speed of memory"
MOUNTS = Path("/proc/self/mounts")
IN_MEMORY = ("tmpfs", "ramfs")
"""File systems without a disk; the first one also supports O_DIRECT since Linux 6.6."""
PLACE = "probe.storage.folder"
SYNCED_BYTES = 2**26
"""Bytes written between syncs; without syncs, everything might still be in memory when time is up."""
WRITTEN = f"until fsync returned, called every {SYNCED_BYTES:,} bytes"
FEWEST_FREE = 2
"""Divisor of the free space that limits the size of the file."""


def try_storage(spec: StorageSpec, bench: Bench) -> Iterator[ProbeReading]:
    """Yield the bandwidths; one rank per host runs the test, and the others do nothing.

    Raises:
        EnvironmentUnfitError: the folder does not exist, is not writable, or its disk is nearly full.
    """
    if bench.identity.local_rank:
        bench.count_one()
        return
    assert spec.folder is not None  # a rule of the recipe guarantees it
    folder = Path(spec.folder)
    try:
        _check(folder, spec)
        yield from _values(folder, spec, bench)
    except OSError as error:
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            raise  # a full disk is handled separately
        raise EnvironmentUnfitError(
            f"the file in {folder} could not be written and read: {error.strerror or error}",
            place=PLACE,
            next_step="Check the disk, its limits and quotas, or use another folder",
        ) from error


def _values(folder: Path, spec: StorageSpec, bench: Bench) -> Iterator[ProbeReading]:
    """Write a file and read it; always remove it."""
    handle, name = tempfile.mkstemp(prefix=".gpuproof-storage-", dir=folder)
    os.close(handle)
    try:
        trial = _Trial(path=Path(name), spec=spec, bench=bench)
        yield trial.write()
        yield from trial.read()
    finally:
        with suppress(OSError):
            os.unlink(name)


def _check(folder: Path, spec: StorageSpec) -> None:
    if not folder.is_dir() or not os.access(folder, os.W_OK | os.X_OK):
        raise EnvironmentUnfitError(
            f"{folder} is not a folder that this user can write to on this host",
            place=PLACE,
            next_step="Create it, or use another folder",
        )
    kind = file_system_of(folder.resolve(), MOUNTS.read_text() if MOUNTS.exists() else "")
    if kind in IN_MEMORY:
        raise EnvironmentUnfitError(
            f"{folder} is in memory ({kind}), so there is no disk to test",
            place=PLACE,
            next_step="Use a folder that is on a disk",
        )
    room = os.statvfs(folder)
    free_bytes = room.f_bavail * room.f_frsize
    if free_bytes < FEWEST_FREE * spec.file_bytes:
        raise EnvironmentUnfitError(
            f"{folder} has {free_bytes:,} bytes free; half of them must stay free, and the probe "
            f"needs {spec.file_bytes:,}",
            place=PLACE,
            next_step="Lower probe.storage.file_bytes, or use a folder with more space",
        )


def file_system_of(folder: Path, mounts: str) -> str | None:
    r"""Return a folder's file system type, according to the kernel; None if it is not listed.

    >>> mounts = "/dev/vda / ext4 rw 0 0\ntmpfs /dev/shm tmpfs rw 0 0\ntmpfs /a\\040b tmpfs rw 0 0"
    >>> file_system_of(Path("/dev/shm/x"), mounts), file_system_of(Path("/a b"), mounts)
    ('tmpfs', 'tmpfs')
    >>> file_system_of(Path("/dev/shmem"), mounts), file_system_of(Path("/x"), "")
    ('ext4', None)
    """
    deepest: tuple[int, str | None] = (-1, None)
    for line in mounts.splitlines():
        _, point, kind, *_ = line.split(" ")
        above = Path(point.encode().decode("unicode_escape").encode("latin-1").decode())
        # the last mount hides earlier mounts
        if folder.is_relative_to(above) and len(above.parts) >= deepest[0]:
            deepest = len(above.parts), kind
    return deepest[1]


def _forget(file: int) -> bool:
    """Ask the page cache to drop a file; return False if the system has no such call."""
    if not hasattr(os, "posix_fadvise"):
        return False
    os.posix_fadvise(file, 0, 0, os.POSIX_FADV_DONTNEED)
    return True


@dataclass(slots=True, kw_only=True)
class _Trial:
    """One file, and the operations done on it."""

    path: Path
    spec: StorageSpec
    bench: Bench
    written_bytes: int = 0

    def write(self) -> ProbeReading:
        """Write blocks of random bytes, and wait until they are on disk."""
        spec = self.spec
        block = memoryview(os.urandom(spec.block_bytes))
        file = os.open(self.path, os.O_WRONLY)
        begin_s, synced_bytes = perf_counter(), 0
        try:
            while self.written_bytes < spec.file_bytes and perf_counter() - begin_s < spec.time_limit_s:
                self.written_bytes += os.write(file, block[: spec.file_bytes - self.written_bytes])
                if self.written_bytes - synced_bytes >= SYNCED_BYTES:
                    os.fsync(file)
                    synced_bytes = self.written_bytes
                self.bench.beat()
            os.fsync(file)
            took_s = perf_counter() - begin_s
            _forget(file)
        finally:
            os.close(file)
        return self._value(
            "storage write",
            (took_s,),
            self.written_bytes,
            labels={"access": "sequential", "block_bytes": spec.block_bytes},
            evidence=(WRITTEN, *self._cut_short(self.written_bytes, spec.file_bytes)),
        )

    def read(self) -> Iterator[ProbeReading]:
        """Read the file sequentially, then random blocks of it."""
        spec, whole = self.spec, self.written_bytes // mmap.PAGESIZE * mmap.PAGESIZE
        sizes = {"sequential": spec.block_bytes, "random": spec.random_block_bytes}
        blocks = {access: whole // size for access, size in sizes.items()}
        if not blocks["sequential"] or not blocks["random"]:
            yield ProbeReading(
                rank=self.bench.identity.rank,
                quantity="storage read",
                unit="B/s",
                missing=f"only {self.written_bytes:,} bytes were written within the time limit",
                is_of_host=True,
            )
            return
        draw = random.Random(0)  # noqa: S311  # no secret
        at_random = [draw.randrange(blocks["random"]) for _ in range(spec.random_reads)]
        orders = {"sequential": range(blocks["sequential"]), "random": at_random}
        for access, size in sizes.items():
            file, how = self._open()
            try:
                offsets = [place * size for place in orders[access]]
                times_s = self._read_blocks(file, offsets, size)
            finally:
                os.close(file)
            yield self._value(
                "storage read",
                tuple(times_s),
                size,
                labels={"access": access, "block_bytes": size},
                evidence=(how, *self._cut_short(len(times_s), len(offsets))),
            )

    def _open(self) -> tuple[int, str]:
        """Open the file for reads that bypass the cache, or after the kernel was asked to drop it."""
        with suppress(OSError, AttributeError):
            file = os.open(self.path, os.O_RDONLY | os.O_DIRECT)
            try:  # some file systems accept the flag, but then fail every read
                os.preadv(file, [mmap.mmap(-1, self.spec.random_block_bytes)], 0)
            except OSError:
                os.close(file)
                raise
            return file, DIRECT
        file = os.open(self.path, os.O_RDONLY)
        return file, FORGOTTEN if _forget(file) else KEPT

    def _read_blocks(self, file: int, offsets: list[int], size: int) -> list[float]:
        buffer = mmap.mmap(-1, size)  # whole pages, as O_DIRECT requires
        begin_s, times_s = perf_counter(), []
        for offset in offsets:
            before_s = perf_counter()
            if os.preadv(file, [buffer], offset) != size:
                raise OSError(f"{self.path}: the read at byte {offset} was too short")
            now_s = perf_counter()
            times_s.append(now_s - before_s)
            if now_s - begin_s > self.spec.time_limit_s:
                break
            self.bench.beat()
        return times_s

    def _cut_short(self, done: int, planned: int) -> tuple[str, ...]:
        if done >= planned:
            return ()
        return (f"cut short by probe.storage.time_limit_s: {done:,} of {planned:,}",)

    def _value(
        self,
        quantity: str,
        times_s: tuple[float, ...],
        amount: int,
        *,
        labels: dict[str, object],
        evidence: tuple[str, ...],
    ) -> ProbeReading:
        self.bench.count(list(times_s))
        return ProbeReading(
            rank=self.bench.identity.rank,
            quantity=quantity,
            unit="B/s",
            labels=labels,
            amount=float(amount),
            durations_s=rounded(times_s),
            evidence=evidence,
            is_of_host=True,
        )

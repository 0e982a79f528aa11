"""The loader: a torch DataLoader as the batch source, and the time steps spend waiting for it.

Mirrors the user's own training job: processes build samples; the step fetches a batch and copies it to the
device. The stream is endless (a new epoch starts when one ends), and every batch is full. The wait is
measured with the same clock as the steps. On CUDA, that is the time between two events with no work between
them, so that a wait counts only once the device has run out of work, however far ahead the host is. All ranks
use the same shuffled order, derived from seed and epoch, and each uses every n-th sample of that order. These
shards are disjoint and together cover the whole set, except for leftover samples that do not fill a batch on
every rank.
"""

from __future__ import annotations

import atexit
import gc
import os
import signal
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from multiprocessing import active_children
from multiprocessing.process import BaseProcess
from typing import Any

import torch
from torch.utils.data import DataLoader

from gpuproof.base.errors import EnvironmentUnfitError, GpuproofError
from gpuproof.processes.group import end_with_parent
from gpuproof.processes.start import ENDING_SIGNALS
from gpuproof.records.work.data import DataUsed
from gpuproof.worker.data.batch_source import Batch
from gpuproof.worker.data.datasets import SampleSet
from gpuproof.worker.data.loader_failure import lost_process
from gpuproof.worker.engine.clocks import RING_PAIRS, EventClock
from gpuproof.worker.engine.host_clock import HostClock


@dataclass(frozen=True, slots=True, kw_only=True)
class LoaderSettings:
    """The DataLoader settings in effect on this device."""

    num_workers: int
    pin_memory: bool
    prefetch_factor: int | None
    persistent_workers: bool

    @property
    def batches_ahead(self) -> int:
        """Number of batches that the processes may prepare before they are requested."""
        return self.num_workers * (self.prefetch_factor or 2) if self.num_workers else 0


def effective_settings(options: dict[str, Any], *, can_pin: bool) -> LoaderSettings:
    """Return the settings, except those torch rejects or ignores if there are no processes or no GPU."""
    num_workers = int(options["num_workers"])
    return LoaderSettings(
        num_workers=num_workers,
        pin_memory=bool(options["pin_memory"]) and can_pin,
        prefetch_factor=options["prefetch_factor"] if num_workers else None,
        persistent_workers=bool(options["persistent_workers"]) and num_workers > 0,
    )


class LoaderSource:
    """Batches from a DataLoader, already on the device when they are returned."""

    def __init__(
        self,
        samples: SampleSet,
        batches: ShardedBatches,
        *,
        settings: LoaderSettings,
        device: torch.device,
        clock: EventClock | HostClock,
        finish: Callable[[torch.Tensor], torch.Tensor],
        used: DataUsed,
    ) -> None:
        self.batch_size = batches.batch_size
        self.num_samples = len(batches) * batches.batch_size
        self.used = used
        self.held: tuple[torch.Tensor, ...] = ()
        self._device = device
        self._pinned = settings.pin_memory
        self._clock = clock
        self._finish = finish
        self._waits_s = 0.0
        self._failure: Exception | None = None
        self._loader: DataLoader[Any] | None = _data_loader(samples, batches, settings)
        self._iterator: Iterator[Any] | None = None
        self._processes: list[BaseProcess] = []
        self._begin_epoch()
        if settings.num_workers:
            atexit.register(_kill_children)

    def next_batch(self) -> Batch:
        """Wait for the next batch, copy it, and return it in the form the model expects."""
        if not self._clock.capacity:
            self._count_waits()
        self._clock.begin()
        inputs, targets = self._next_from_loader()
        self._clock.end()
        inputs = inputs.to(self._device, non_blocking=self._pinned)
        return self._finish(inputs), targets.to(self._device, non_blocking=self._pinned)

    def _next_from_loader(self) -> Any:
        if self._failure is not None:  # otherwise torch would wait forever for the batches of a lost process
            raise self._failure
        assert self._iterator is not None, "the source is closed"
        try:
            batch = next(self._iterator, None)
            if batch is None:
                self._begin_epoch()
                batch = next(self._iterator)
        except (OSError, RuntimeError, EOFError, GpuproofError) as error:
            self._failure = lost_process(self._processes) or error
            raise self._failure from None
        return batch

    def _begin_epoch(self) -> None:
        """Start or restart the processes; a dead process is detected when a batch is requested.

        This replaces torch's SIGCHLD handler, which raises wherever the main thread happens to be: in a step,
        or while writing its final output.
        """
        assert self._loader is not None
        self._iterator = iter(self._loader)
        if self._loader.num_workers:
            signal.signal(signal.SIGCHLD, lambda *_: None)
            self._processes = active_children()

    def take_wait_s(self) -> float:
        """Return the seconds waited since the last call."""
        self._count_waits()
        waited_s, self._waits_s = self._waits_s, 0.0
        return waited_s

    def _count_waits(self) -> None:
        self._waits_s += sum(self._clock.drain(in_flight=RING_PAIRS))

    def close(self) -> None:
        """Stop the loader's processes, which exit along with the iterator."""
        self._iterator = None
        self._loader = None


def _data_loader(samples: SampleSet, batches: ShardedBatches, settings: LoaderSettings) -> DataLoader[Any]:
    """Create the DataLoader. Its processes are forked, to share the mapped files and start quickly."""
    return DataLoader(
        samples,  # type: ignore[arg-type]  # a Dataset by its methods
        batch_sampler=batches,  # duck-typed as a Sampler
        num_workers=settings.num_workers,
        pin_memory=settings.pin_memory,
        prefetch_factor=settings.prefetch_factor,
        persistent_workers=settings.persistent_workers,
        multiprocessing_context="fork" if settings.num_workers else None,
        worker_init_fn=partial(_begin_process, os.getpid()) if settings.num_workers else None,
    )


def _kill_children() -> None:
    """On an unexpected exit, kill loader processes: they ignore SIGTERM, so it would wait for them."""
    for process in active_children():
        process.kill()


def _begin_process(parent_pid: int, _worker: int) -> None:
    """Detach a forked loader process from signals: it exits with its rank, however the rank ends.

    The rank's watchdog receives signals through a pipe that a fork shares, so a signal to this process must
    not look like one to the rank. A launch is stopped by signalling the whole process group; only the rank
    responds.
    """
    signal.set_wakeup_fd(-1)
    for number in ENDING_SIGNALS:
        signal.signal(number, signal.SIG_IGN)
    end_with_parent(parent_pid)
    gc.enable()  # the engine turned it off in the rank process


@dataclass(frozen=True, slots=True, kw_only=True)
class Share:
    """The samples of a set that belong to this rank."""

    batch_size: int
    seed: int
    rank: int
    world_size: int

    def check(self, num_samples: int) -> None:
        """Check that there is at least one full batch per rank.

        Raises:
            EnvironmentUnfitError: the set is smaller than that.
        """
        if num_samples < self.batch_size * self.world_size:
            fits = num_samples // self.world_size
            raise EnvironmentUnfitError(
                f"{num_samples} samples are not enough for a batch of {self.batch_size} on each of "
                f"{self.world_size} ranks",
                place="data.batch_size",
                next_step=f"Use at most {fits}" if fits else "Use fewer ranks, or a larger data set",
            )

    def choose(self, num_samples: int, *, max_batches: int, epoch: int = 0) -> torch.Tensor:
        """Return the indices of at most `max_batches` batches, disjoint from all other ranks' batches.

        Every rank gets the same number, because ranks that share a model iterate over their samples together.

        Raises:
            EnvironmentUnfitError: there are not enough samples for one batch per rank.
        """
        self.check(num_samples)
        order = torch.randperm(num_samples, generator=torch.Generator().manual_seed(self.seed + epoch))
        num_batches = min(self.num_batches(num_samples), max_batches)
        return order[self.rank :: self.world_size][: self.batch_size * num_batches]

    def of_held_out(self, held_out: torch.Tensor) -> torch.Tensor:
        """Return this rank's part of the held-out samples; all ranks get the same number."""
        return held_out[self.rank :: self.world_size][: len(held_out) // self.world_size]

    def num_batches(self, num_samples: int) -> int:
        """Return the number of batches in an epoch, which is the same for every rank."""
        return num_samples // (self.batch_size * self.world_size)


def hold_out(num_samples: int, share: float) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the indices of samples that steps use, and of samples that they do not use.

    The split is the same in every run, whatever its seed, so that accuracies for different seeds are measured
    on the same samples.

    >>> [len(part) for part in hold_out(1797, 0.2)]
    [1438, 359]
    """
    order = torch.randperm(num_samples, generator=torch.Generator().manual_seed(0))
    num_training = num_samples - int(num_samples * share)
    return order[:num_training].sort().values, order[num_training:]


class ShardedBatches:
    """The batches of one rank; each iteration over it yields the next epoch.

    >>> [list(ShardedBatches(8, Share(batch_size=2, seed=0, rank=r, world_size=2))) for r in (0, 1)]
    [[[4, 7], [2, 1]], [[0, 3], [5, 6]]]
    """

    def __init__(self, num_samples: int, share: Share) -> None:
        share.check(num_samples)
        self.batch_size = share.batch_size
        self._num_samples = num_samples
        self._share = share
        self._epoch = 0

    def __len__(self) -> int:
        """Number of batches in an epoch, the same for every rank."""
        return self._share.num_batches(self._num_samples)

    def __iter__(self) -> Iterator[list[int]]:
        """Yield the next epoch's batches."""
        chosen = self._share.choose(self._num_samples, max_batches=len(self), epoch=self._epoch)
        self._epoch += 1
        for batch in chosen.split(self.batch_size):
            yield batch.tolist()

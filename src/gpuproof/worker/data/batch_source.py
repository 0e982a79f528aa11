"""The interface through which a step gets its batches, whichever way samples reach the device.

A `SamplePool` puts batches on the device before the window; a `LoaderSource` builds them during the window,
with a DataLoader. A step calls `next_batch` and knows nothing else about the source.
"""

from __future__ import annotations

from typing import Protocol

import torch

from gpuproof.records.work.data import DataUsed

Batch = tuple[torch.Tensor, torch.Tensor]
"""Inputs (n, *shape) and targets (n, …), on the device."""


class Batches(Protocol):
    """The only part of a batch source that a step uses."""

    def next_batch(self) -> Batch:
        """Return the next full batch."""


class BatchSource(Batches, Protocol):
    """Provides an endless stream of full batches."""

    @property
    def batch_size(self) -> int:
        """Samples per batch."""

    @property
    def num_samples(self) -> int:
        """Number of samples that this rank reads before the first one repeats, in whole batches."""

    @property
    def used(self) -> DataUsed:
        """Description of the samples."""

    @property
    def held(self) -> tuple[torch.Tensor, ...]:
        """Tensors that stay on the device for as long as the source exists."""

    def take_wait_s(self) -> float | None:
        """Return the seconds spent waiting for batches since the last call; None if steps never wait.

        Waits that the device has not reached yet are counted in the next call.
        """

    def close(self) -> None:
        """Stop whatever was started to build batches."""

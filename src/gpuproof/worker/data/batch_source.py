"""Where a step gets its batch: what steps know of every way in which samples reach the device.

A `SamplePool` has them there before the window; a `LoaderSource` has them made by a DataLoader meanwhile. A
step calls `next_batch` and knows no more.
"""

from __future__ import annotations

from typing import Protocol

import torch

from gpuproof.records.work.data import DataUsed

Batch = tuple[torch.Tensor, torch.Tensor]
"""Inputs (n, *shape) and targets (n, …), on the device."""


class Batches(Protocol):
    """All that a step knows of its samples."""

    def next_batch(self) -> Batch:
        """Return the next full batch."""


class BatchSource(Batches, Protocol):
    """Gives full batches without end."""

    @property
    def batch_size(self) -> int:
        """Samples in each batch."""

    @property
    def num_samples(self) -> int:
        """Samples of this rank that come before the first one comes again; whole batches."""

    @property
    def used(self) -> DataUsed:
        """What the samples are."""

    @property
    def held(self) -> tuple[torch.Tensor, ...]:
        """Tensors on the device that live as long as the source."""

    def take_wait_s(self) -> float | None:
        """Return the seconds waited for batches since the last call; None where there is nothing to wait for.

        What the device has not come to yet is left for the next call.
        """

    def close(self) -> None:
        """End what was started to make batches."""

"""Which samples a rank gets in an epoch, in which order, cut into batches.

All ranks shuffle alike, from seed and epoch, and each takes every n-th sample of that order: disjoint shards
that together are the whole set, but for what no full batch of every rank is left for.

>>> [list(ShardedBatches(8, batch_size=2, seed=0, rank=r, world_size=2)) for r in (0, 1)]
[[[4, 7], [2, 1]], [[0, 3], [5, 6]]]
"""

from __future__ import annotations

from collections.abc import Iterator

import torch

from gpuproof.errors import EnvironmentUnfitError


class ShardedBatches:
    """The batches of one rank; each pass over it is the next epoch."""

    def __init__(self, num_samples: int, *, batch_size: int, seed: int, rank: int, world_size: int) -> None:
        require_a_batch(num_samples, batch_size=batch_size, world_size=world_size)
        self.batch_size = batch_size
        self._num_samples = num_samples
        self._seed = seed
        self._rank = rank
        self._world_size = world_size
        self._epoch = 0

    def __len__(self) -> int:
        """Batches of an epoch, the same for every rank."""
        return self._num_samples // (self.batch_size * self._world_size)

    def __iter__(self) -> Iterator[list[int]]:
        """Give the next epoch's batches."""
        generator = torch.Generator().manual_seed(self._seed + self._epoch)
        self._epoch += 1
        order = torch.randperm(self._num_samples, generator=generator)
        shard = order[self._rank :: self._world_size]
        for batch in shard[: len(self) * self.batch_size].split(self.batch_size):
            yield batch.tolist()


def require_a_batch(num_samples: int, *, batch_size: int, world_size: int) -> None:
    """Check that there is a full batch for each rank.

    Raises:
        EnvironmentUnfitError: the set is smaller.
    """
    if num_samples < batch_size * world_size:
        fits = num_samples // world_size
        raise EnvironmentUnfitError(
            f"{num_samples} samples make no batch of {batch_size} for each of {world_size} ranks",
            place="data.batch_size",
            next_step=f"Use at most {fits}" if fits else "Use fewer ranks, or a larger data set",
        )

"""Which samples a rank gets in an epoch, in which order, cut into batches.

All ranks shuffle alike, from seed and epoch, and each takes every n-th sample of that order: disjoint shards
that together are the whole set, but for what no full batch of every rank is left for.

>>> [list(ShardedBatches(8, Share(batch_size=2, seed=0, rank=r, world_size=2))) for r in (0, 1)]
[[[4, 7], [2, 1]], [[0, 3], [5, 6]]]
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import torch

from gpuproof.base.errors import EnvironmentUnfitError


@dataclass(frozen=True, slots=True, kw_only=True)
class Share:
    """Which samples of a set are this rank's."""

    batch_size: int
    seed: int
    rank: int
    world_size: int

    def check(self, num_samples: int) -> None:
        """Check that there is a full batch for each rank.

        Raises:
            EnvironmentUnfitError: the set is smaller.
        """
        if num_samples < self.batch_size * self.world_size:
            fits = num_samples // self.world_size
            raise EnvironmentUnfitError(
                f"{num_samples} samples make no batch of {self.batch_size} for each of {self.world_size} "
                "ranks",
                place="data.batch_size",
                next_step=f"Use at most {fits}" if fits else "Use fewer ranks, or a larger data set",
            )

    def choose(self, num_samples: int, *, max_batches: int, epoch: int = 0) -> torch.Tensor:
        """Return the numbers of at most `max_batches` batches, disjoint from those of all other ranks.

        As many as any other's: ranks that share a model pass over their samples together.

        Raises:
            EnvironmentUnfitError: there is no batch for each rank.
        """
        self.check(num_samples)
        order = torch.randperm(num_samples, generator=torch.Generator().manual_seed(self.seed + epoch))
        num_batches = min(self.num_batches(num_samples), max_batches)
        return order[self.rank :: self.world_size][: self.batch_size * num_batches]

    def of_held_out(self, held_out: torch.Tensor) -> torch.Tensor:
        """Return this rank's part of what no step takes; as many as any other's."""
        return held_out[self.rank :: self.world_size][: len(held_out) // self.world_size]

    def num_batches(self, num_samples: int) -> int:
        """Return the batches of an epoch, the same for every rank."""
        return num_samples // (self.batch_size * self.world_size)


def hold_out(num_samples: int, share: float) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the numbers of the samples that steps take, and of those they never do.

    The same in every run, whatever its seed: accuracies of several seeds are of the same samples.

    >>> [len(part) for part in hold_out(1797, 0.2)]
    [1438, 359]
    """
    order = torch.randperm(num_samples, generator=torch.Generator().manual_seed(0))
    num_training = num_samples - int(num_samples * share)
    return order[:num_training].sort().values, order[num_training:]


class ShardedBatches:
    """The batches of one rank; each pass over it is the next epoch."""

    def __init__(self, num_samples: int, share: Share) -> None:
        share.check(num_samples)
        self.batch_size = share.batch_size
        self._num_samples = num_samples
        self._share = share
        self._epoch = 0

    def __len__(self) -> int:
        """Batches of an epoch, the same for every rank."""
        return self._share.num_batches(self._num_samples)

    def __iter__(self) -> Iterator[list[int]]:
        """Give the next epoch's batches."""
        chosen = self._share.choose(self._num_samples, max_batches=len(self), epoch=self._epoch)
        self._epoch += 1
        for batch in chosen.split(self.batch_size):
            yield batch.tolist()

"""How the ranks of a launch share a model and its samples: the arrangement, from a strategy and sizes.

Ranks are laid out as a box of three sides: groups that hold the model once each (replicate), the ranks of a
group that hold a share of every parameter (shard), and the ranks that work on the same samples, each on a
part of every layer (tensor). The last side counts fastest, so that its ranks lie on one host where they can.

>>> arrange("hsdp", world_size=8, shard_size=4).sizes
(2, 4, 1)
>>> arrange("fsdp_tensor", world_size=8, tensor_parallel_size=2).data_parallel_size
4
"""

from __future__ import annotations

from dataclasses import dataclass

from gpuproof.records.work.parallel import ParallelStrategy

AXES = ("replicate", "shard", "tensor")


@dataclass(frozen=True, slots=True, kw_only=True)
class Arrangement:
    """The sides of the box of ranks; their product is the world size."""

    replicate: int = 1
    shard: int = 1
    tensor: int = 1

    @property
    def sizes(self) -> tuple[int, int, int]:
        """The sides in the order of `AXES`."""
        return self.replicate, self.shard, self.tensor

    @property
    def data_parallel_size(self) -> int:
        """Ranks, or groups of them, that work on different samples."""
        return self.replicate * self.shard

    def data_rank(self, rank: int) -> int:
        """Say which share of the samples a rank works on: ranks of a tensor group have the same one."""
        return rank // self.tensor

    def counts_samples(self, rank: int) -> bool:
        """Say whether a rank is the one of its tensor group that counts the group's samples."""
        return rank % self.tensor == 0


class ArrangementError(ValueError):
    """The sizes do not fit the number of ranks; `key` is the config's key to change."""

    def __init__(self, key: str, cause: str, next_step: str) -> None:
        super().__init__(cause)
        self.key, self.cause, self.next_step = key, cause, next_step


def arrange(
    strategy: ParallelStrategy,
    *,
    world_size: int,
    shard_size: int | None = None,
    tensor_parallel_size: int | None = None,
) -> Arrangement:
    """Lay out the ranks.

    Raises:
        ArrangementError: a size does not divide the world size, or leaves another strategy than is named.
    """
    if strategy == "ddp":
        return Arrangement(replicate=world_size)
    if strategy == "fsdp":
        return Arrangement(shard=world_size)
    if strategy == "hsdp":
        shard = _inner("shard_size", shard_size, world_size, whole_is="fsdp")
        return Arrangement(replicate=world_size // shard, shard=shard)
    if strategy == "fsdp_tensor":
        tensor = _inner("tensor_parallel_size", tensor_parallel_size, world_size, whole_is="tensor")
        return Arrangement(shard=world_size // tensor, tensor=tensor)
    if tensor_parallel_size not in (None, world_size):
        raise ArrangementError(
            "tensor_parallel_size",
            f"tensor alone takes all {world_size} ranks into one group, not {tensor_parallel_size}",
            "Use distributed.strategy=fsdp_tensor for several groups, or set the size to null",
        )
    return Arrangement(tensor=world_size)


def _inner(name: str, size: int | None, world_size: int, *, whole_is: ParallelStrategy) -> int:
    if size is None or world_size % size:
        raise ArrangementError(
            name,
            f"{name} is {'null' if size is None else size}, which does not divide {world_size} ranks",
            "Start a multiple of that many ranks, or set it to a divisor of their number",
        )
    if size == world_size:
        raise ArrangementError(
            name,
            f"one group of all {world_size} ranks is {whole_is}",
            f"Use distributed.strategy={whole_is}, or a smaller group",
        )
    return size


@dataclass(frozen=True, slots=True, kw_only=True)
class Parallelism:
    """What really ran on several ranks."""

    strategy: ParallelStrategy
    arrangement: Arrangement
    sharded_blocks: int | None = None
    """Blocks whose parameters are gathered and freed one by one; None where nothing is sharded."""
    casts: str | None = None
    """In which types sharded parameters are gathered and their gradients summed; None for float32."""
    gradient_hook: str | None = None
    """What compresses gradients before they are summed; None for nothing."""

    def describe(self) -> str:
        """Name strategy, mesh and hook, as a report does: `hsdp (replicate 2 × shard 2)`."""
        sides = zip(AXES, self.arrangement.sizes, strict=True)
        mesh = " × ".join(f"{axis} {size}" for axis, size in sides if size > 1)
        hook = f", gradients by {self.gradient_hook}" if self.gradient_hook else ""
        return f"{self.strategy} ({mesh}){hook}"


def plain_copies(world_size: int) -> Parallelism:
    """Return what runs where nothing else is asked for: a copy of the model on each rank."""
    return Parallelism(strategy="ddp", arrangement=Arrangement(replicate=world_size))

"""Each collective operation: its buffers, its call, and its expected output.

Sizes are defined as in nccl-tests. Operations that torch runs in place (all_reduce, broadcast, reduce) have
their input restored before each iteration, outside the measured time, so that sums do not grow from one
iteration to the next. The data are small integers (`Pattern`), so that every sum is exact in every type.
Element i of rank r is i mod p + r mod q, so it differs between neighbouring elements and between ranks. So
does the sum over any number of ranks. This reveals a part that is shifted, omitted, sent twice or taken from
another rank. A sum over n ranks is at most n·(p + q − 2), which the type must represent exactly.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable
from dataclasses import dataclass

import torch
import torch.distributed as dist

from gpuproof.records.work.collective import (
    ELEMENT_BYTES,
    SHARED_OUT,
    CollectiveSpec,
    ElementType,
    Operation,
    Reduction,
)
from gpuproof.worker.rank.identity import RankIdentity

TORCH_TYPES: dict[ElementType, torch.dtype] = {
    "float64": torch.float64,
    "float32": torch.float32,
    "float16": torch.float16,
    "bfloat16": torch.bfloat16,
    "int64": torch.int64,
    "int32": torch.int32,
    "int8": torch.int8,
}
REDUCTIONS = {"sum": dist.ReduceOp.SUM, "max": dist.ReduceOp.MAX, "min": dist.ReduceOp.MIN}
EXACT_UP_TO: dict[ElementType, int] = {
    "float64": 2**53,
    "float32": 2**24,
    "float16": 2**11,
    "bfloat16": 2**8,
    "int64": 2**63 - 1,
    "int32": 2**31 - 1,
    "int8": 2**7 - 1,
}
"""The largest integer up to which all integers are exact; for floating-point formats, derived from the
significand (IEEE 754)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CollectiveTask:
    """One operation at one size, as one rank runs it."""

    operation: Operation
    num_elements: int
    """Number of elements that the size refers to; a multiple of the number of ranks if divided among them."""
    rank: int
    num_ranks: int
    pattern: Pattern | None
    """Pattern of the values; None if it could not distinguish correct from wrong results."""
    spec: CollectiveSpec
    device: torch.device

    @property
    def part(self) -> int:
        """Number of elements in one rank's part."""
        return self.num_elements // self.num_ranks

    @property
    def is_root(self) -> bool:
        """Whether this rank is the root."""
        return self.rank == self.spec.root

    def empty(self, count: int) -> torch.Tensor:
        """Return a buffer; shape (count,)."""
        return torch.empty(count, dtype=TORCH_TYPES[self.spec.dtype], device=self.device)


def task_for(
    operation: Operation,
    size_bytes: int,
    *,
    spec: CollectiveSpec,
    identity: RankIdentity,
    device: torch.device,
) -> CollectiveTask:
    """Return this rank's task for an operation at a given size, in whole elements."""
    num_ranks = identity.world_size
    return CollectiveTask(
        operation=operation,
        num_elements=whole_elements(operation, size_bytes, spec.dtype, num_ranks),
        rank=identity.rank,
        num_ranks=num_ranks,
        pattern=pattern_for(spec.dtype, spec.reduction, num_ranks),
        spec=spec,
        device=device,
    )


def whole_elements(operation: Operation, size_bytes: int, dtype: ElementType, num_ranks: int) -> int:
    """Return the number of whole elements in a size; a multiple of the rank count if each has a part.

    >>> whole_elements("all_reduce", 100, "float32", 3), whole_elements("all_gather", 100, "float32", 3)
    (25, 24)
    """
    elements = size_bytes // ELEMENT_BYTES[dtype]
    return elements // num_ranks * num_ranks if operation in SHARED_OUT else elements


class Collective:
    """Buffers, call and expected output for one operation at one size on one rank."""

    def __init__(self, task: CollectiveTask) -> None:
        self.task = task
        self.sent, self.got = self._buffers()
        self._expected: torch.Tensor | None = None
        self._has_output = False
        self._num_compared = 0
        self._num_wrong = torch.zeros((), dtype=torch.int64, device=task.device)
        self.refill()

    @abstractmethod
    def _buffers(self) -> tuple[torch.Tensor, torch.Tensor]:
        """Return the input and output buffers; a single buffer if the operation is in place."""

    @abstractmethod
    def run(self) -> None:
        """Run the operation once."""

    @abstractmethod
    def expected(self) -> torch.Tensor | None:
        """Return the expected output; None if this rank gets no output."""

    @property
    def size_elements(self) -> int:
        """The number of elements that the bandwidth is based on."""
        return self.task.num_elements

    def refill(self) -> None:
        """Restore the input, which an in-place operation has overwritten."""
        if self.sent.numel():
            self.sent.copy_(self._pattern(self.task.rank, 0, self.sent.numel()))

    def spoil(self) -> None:
        """Write values that no operation produces, so that an unwritten output never looks correct."""
        if self.got is not self.sent and self.got.numel():
            self.got.fill_(-1)

    def renew(self) -> None:
        """Compare the previous run's output, then overwrite it; does not wait for anything."""
        if self._has_output:
            self._compare()
        self._has_output = True
        self.spoil()
        self.refill()

    def count_wrong(self) -> tuple[int, int]:
        """Also compare the last output; return how many elements were compared, and how many were wrong."""
        self._compare()
        return self._num_compared, int(self._num_wrong)

    def _compare(self) -> None:
        if self._expected is None:
            self._expected = self.expected()
        if self._expected is not None:
            self._num_wrong += (self.got != self._expected).sum()
            self._num_compared += self._expected.numel()

    def _pattern(self, rank: int, first: int, count: int) -> torch.Tensor:
        return (self.task.pattern or LADDER[-1]).sent_by(rank, first, count, like=self.got)

    def _reduced(self, first: int, count: int) -> torch.Tensor:
        task = self.task
        pattern = task.pattern or LADDER[-1]
        return pattern.reduced(task.spec.reduction, task.num_ranks, first, count, like=self.got)

    @property
    def _reduction(self) -> dist.ReduceOp.RedOpType:
        return REDUCTIONS[self.task.spec.reduction]


class InPlace(Collective):
    """all_reduce, reduce and broadcast: they use one buffer, which torch overwrites."""

    def _buffers(self) -> tuple[torch.Tensor, torch.Tensor]:
        buffer = self.task.empty(self.task.num_elements)
        return buffer, buffer

    def run(self) -> None:
        """Run the operation once."""
        root = self.task.spec.root
        match self.task.operation:
            case "all_reduce":
                dist.all_reduce(self.got, op=self._reduction)
            case "reduce":
                dist.reduce(self.got, dst=root, op=self._reduction)
            case _:
                dist.broadcast(self.got, src=root)

    def expected(self) -> torch.Tensor | None:
        """Return the sum, or the data that the root sent; for reduce, only the root has an output."""
        task = self.task
        if task.operation == "broadcast":
            return self._pattern(task.spec.root, 0, task.num_elements)
        if task.operation == "reduce" and not task.is_root:
            return None
        return self._reduced(0, task.num_elements)


class AllGather(Collective):
    """All-gather: every rank receives every rank's part."""

    def _buffers(self) -> tuple[torch.Tensor, torch.Tensor]:
        return self.task.empty(self.task.part), self.task.empty(self.task.num_elements)

    def run(self) -> None:
        """Run the operation once."""
        dist.all_gather_into_tensor(self.got, self.sent)

    def expected(self) -> torch.Tensor:
        """Return the parts in rank order."""
        task = self.task
        return torch.cat([self._pattern(rank, 0, task.part) for rank in range(task.num_ranks)])


class ReduceScatter(Collective):
    """Reduce-scatter: each rank receives its part of the reduction."""

    def _buffers(self) -> tuple[torch.Tensor, torch.Tensor]:
        return self.task.empty(self.task.num_elements), self.task.empty(self.task.part)

    def run(self) -> None:
        """Run the operation once."""
        dist.reduce_scatter_tensor(self.got, self.sent, op=self._reduction)

    def expected(self) -> torch.Tensor:
        """Return this rank's part."""
        return self._reduced(self.task.rank * self.task.part, self.task.part)


class AllToAll(Collective):
    """Each rank sends every rank a part; with all_to_all_v the last rank gets `skew` times as much."""

    def _buffers(self) -> tuple[torch.Tensor, torch.Tensor]:
        task = self.task
        self._to = split_sizes(task)
        self._from = [self._to[task.rank]] * task.num_ranks
        return task.empty(sum(self._to)), task.empty(sum(self._from))

    @property
    def size_elements(self) -> int:
        """The most that any rank sends or receives (what the last rank receives), as in nccl-tests."""
        return max(self._to) * self.task.num_ranks

    def run(self) -> None:
        """Run the operation once."""
        dist.all_to_all_single(self.got, self.sent, output_split_sizes=self._from, input_split_sizes=self._to)

    def expected(self) -> torch.Tensor:
        """Return the part that each rank sends to this rank, in rank order."""
        task = self.task
        first = sum(self._to[: task.rank])
        return torch.cat([self._pattern(rank, first, self._to[task.rank]) for rank in range(task.num_ranks)])


def split_sizes(task: CollectiveTask) -> list[int]:
    """Return how many elements every rank sends to each rank; the size is the last rank's total."""
    if task.operation == "all_to_all":
        return [task.part] * task.num_ranks
    share = task.num_elements / task.num_ranks / task.spec.skew
    return [max(1, int(share))] * (task.num_ranks - 1) + [task.part]


class Gather(Collective):
    """Gather: the root receives every rank's part."""

    def _buffers(self) -> tuple[torch.Tensor, torch.Tensor]:
        task = self.task
        return task.empty(task.part), task.empty(task.num_elements if task.is_root else 0)

    def run(self) -> None:
        """Run the operation once."""
        parts = list(self.got.chunk(self.task.num_ranks)) if self.task.is_root else None
        dist.gather(self.sent, parts, dst=self.task.spec.root)

    def expected(self) -> torch.Tensor | None:
        """Return the parts in rank order; only the root has an output."""
        task = self.task
        if not task.is_root:
            return None
        return torch.cat([self._pattern(rank, 0, task.part) for rank in range(task.num_ranks)])


class Scatter(Collective):
    """Scatter: each rank receives its part of the root's data."""

    def _buffers(self) -> tuple[torch.Tensor, torch.Tensor]:
        task = self.task
        return task.empty(task.num_elements if task.is_root else 0), task.empty(task.part)

    def run(self) -> None:
        """Run the operation once."""
        parts = list(self.sent.chunk(self.task.num_ranks)) if self.task.is_root else None
        dist.scatter(self.got, parts, src=self.task.spec.root)

    def expected(self) -> torch.Tensor:
        """Return this rank's part of the root's buffer."""
        task = self.task
        return self._pattern(task.spec.root, task.rank * task.part, task.part)


class SendRecv(Collective):
    """Each rank sends to the next rank and receives from the previous one, in a ring."""

    def _buffers(self) -> tuple[torch.Tensor, torch.Tensor]:
        return self.task.empty(self.task.num_elements), self.task.empty(self.task.num_elements)

    def run(self) -> None:
        """Run the operation once."""
        rank, ranks = self.task.rank, self.task.num_ranks
        both = [
            dist.P2POp(dist.isend, self.sent, (rank + 1) % ranks),
            dist.P2POp(dist.irecv, self.got, (rank - 1) % ranks),
        ]
        for request in dist.batch_isend_irecv(both):
            request.wait()

    def expected(self) -> torch.Tensor:
        """Return the data sent by the previous rank."""
        task = self.task
        return self._pattern((task.rank - 1) % task.num_ranks, 0, task.num_elements)


OPERATIONS: dict[Operation, Callable[[CollectiveTask], Collective]] = {
    "all_reduce": InPlace,
    "reduce": InPlace,
    "broadcast": InPlace,
    "all_gather": AllGather,
    "reduce_scatter": ReduceScatter,
    "all_to_all": AllToAll,
    "all_to_all_v": AllToAll,
    "gather": Gather,
    "scatter": Scatter,
    "send_recv": SendRecv,
}


@dataclass(frozen=True, slots=True)
class Pattern:
    """Number of different values along the elements (p) and across ranks (q)."""

    along: int
    between: int

    def highest_sum(self, num_ranks: int) -> int:
        """Return the largest possible sum over ranks."""
        return num_ranks * (self.along + self.between - 2)

    def sent_by(self, rank: int, first: int, count: int, *, like: torch.Tensor) -> torch.Tensor:
        """Return a rank's elements from `first` on, with the type and device of `like`; shape (count,)."""
        return self._along(first, count, like).add_(rank % self.between).to(like.dtype)

    def reduced(
        self, reduction: Reduction, num_ranks: int, first: int, count: int, *, like: torch.Tensor
    ) -> torch.Tensor:
        """Return the elements of the reduction over all ranks, from `first` on; shape (count,)."""
        of_ranks = [rank % self.between for rank in range(num_ranks)]
        along = self._along(first, count, like)
        if reduction == "sum":
            return (along * num_ranks + sum(of_ranks)).to(like.dtype)
        return (along + (max(of_ranks) if reduction == "max" else min(of_ranks))).to(like.dtype)

    def _along(self, first: int, count: int, like: torch.Tensor) -> torch.Tensor:
        return torch.arange(first, first + count, device=like.device) % self.along


LADDER = (Pattern(13, 7), Pattern(5, 3), Pattern(3, 2), Pattern(2, 1))
"""More distinct values reveal more errors, so the first pattern with exact sums is used."""


def pattern_for(dtype: ElementType, reduction: Reduction, num_ranks: int) -> Pattern | None:
    """Return the pattern for this many ranks; None if no pattern with distinct values has exact sums.

    >>> pattern_for("float32", "sum", 8), pattern_for("bfloat16", "sum", 64), pattern_for("int8", "sum", 200)
    (Pattern(along=13, between=7), Pattern(along=3, between=2), None)
    """
    if reduction != "sum":
        return LADDER[0]
    fitting = (pattern for pattern in LADDER if pattern.highest_sum(num_ranks) <= EXACT_UP_TO[dtype])
    return next(fitting, None)

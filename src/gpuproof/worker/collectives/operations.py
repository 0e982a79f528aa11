"""Each collective operation: its buffers, its call, and what its output must be.

Sizes are those of nccl-tests. Operations that torch does in place (all_reduce, broadcast, reduce) get their
input back before each iteration, outside of the time, so that sums do not grow from one to the next.
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
)
from gpuproof.worker.collectives.patterns import LADDER, Pattern

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


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked:
    """One operation at one size, as one rank is to do it."""

    operation: Operation
    num_elements: int
    """That the size counts; a multiple of the ranks where each has a part."""
    rank: int
    num_ranks: int
    pattern: Pattern | None
    """Of the values that are sent; None where no result can be told right from wrong."""
    spec: CollectiveSpec
    device: torch.device

    @property
    def part(self) -> int:
        """Elements of one rank's part."""
        return self.num_elements // self.num_ranks

    @property
    def element_bytes(self) -> int:
        """Bytes of one element."""
        return ELEMENT_BYTES[self.spec.dtype]

    @property
    def is_root(self) -> bool:
        """Whether this rank is the root."""
        return self.rank == self.spec.root

    def empty(self, count: int) -> torch.Tensor:
        """Return a buffer; shape (count,)."""
        return torch.empty(count, dtype=TORCH_TYPES[self.spec.dtype], device=self.device)


def whole_elements(operation: Operation, size_bytes: int, dtype: ElementType, num_ranks: int) -> int:
    """Return the elements that a size holds: whole ones, and as many for each rank where each has a part.

    >>> whole_elements("all_reduce", 100, "float32", 3), whole_elements("all_gather", 100, "float32", 3)
    (25, 24)
    """
    elements = size_bytes // ELEMENT_BYTES[dtype]
    return elements // num_ranks * num_ranks if operation in SHARED_OUT else elements


class Collective:
    """Buffers, call and expectation of one operation at one size on one rank."""

    def __init__(self, asked: Asked) -> None:
        self.asked = asked
        self.sent, self.got = self._buffers()
        self._expected: torch.Tensor | None = None
        self._has_output = False
        self._num_compared = 0
        self._num_wrong = torch.zeros((), dtype=torch.int64, device=asked.device)
        self.refill()

    @abstractmethod
    def _buffers(self) -> tuple[torch.Tensor, torch.Tensor]:
        """Return what is sent and where the output comes to be; one buffer where it is in place."""

    @abstractmethod
    def run(self) -> None:
        """Do the operation once."""

    @abstractmethod
    def expected(self) -> torch.Tensor | None:
        """Return what the output must be; None where this rank gets none."""

    @property
    def size_elements(self) -> int:
        """The elements that bandwidth is counted by."""
        return self.asked.num_elements

    def refill(self) -> None:
        """Write the input, which an operation in place has overwritten."""
        if self.sent.numel():
            self.sent.copy_(self._pattern(self.asked.rank, 0, self.sent.numel()))

    def spoil(self) -> None:
        """Write what no operation gives, so that an output that is not written is no right one."""
        if self.got is not self.sent and self.got.numel():
            self.got.fill_(-1)

    def renew(self) -> None:
        """Compare the output of the run before this one, and write over it; waits for nothing."""
        if self._has_output:
            self._compare()
        self._has_output = True
        self.spoil()
        self.refill()

    def count_wrong(self) -> tuple[int, int]:
        """Compare the last output too; return how many elements of all were compared, and are wrong."""
        self._compare()
        return self._num_compared, int(self._num_wrong)

    def _compare(self) -> None:
        if self._expected is None:
            self._expected = self.expected()
        if self._expected is not None:
            self._num_wrong += (self.got != self._expected).sum()
            self._num_compared += self._expected.numel()

    def _pattern(self, rank: int, first: int, count: int) -> torch.Tensor:
        return (self.asked.pattern or LADDER[-1]).sent_by(rank, first, count, like=self.got)

    def _reduced(self, first: int, count: int) -> torch.Tensor:
        asked = self.asked
        pattern = asked.pattern or LADDER[-1]
        return pattern.reduced(asked.spec.reduction, asked.num_ranks, first, count, like=self.got)

    @property
    def _reduction(self) -> dist.ReduceOp.RedOpType:
        return REDUCTIONS[self.asked.spec.reduction]


class InPlace(Collective):
    """all_reduce, reduce and broadcast: one buffer, which torch overwrites."""

    def _buffers(self) -> tuple[torch.Tensor, torch.Tensor]:
        buffer = self.asked.empty(self.asked.num_elements)
        return buffer, buffer

    def run(self) -> None:
        """Do the operation once."""
        root = self.asked.spec.root
        match self.asked.operation:
            case "all_reduce":
                dist.all_reduce(self.got, op=self._reduction)
            case "reduce":
                dist.reduce(self.got, dst=root, op=self._reduction)
            case _:
                dist.broadcast(self.got, src=root)

    def expected(self) -> torch.Tensor | None:
        """Return the sum, or what the root sent; of reduce the root alone has an output."""
        asked = self.asked
        if asked.operation == "broadcast":
            return self._pattern(asked.spec.root, 0, asked.num_elements)
        if asked.operation == "reduce" and not asked.is_root:
            return None
        return self._reduced(0, asked.num_elements)


class AllGather(Collective):
    """Every rank gets every rank's part."""

    def _buffers(self) -> tuple[torch.Tensor, torch.Tensor]:
        return self.asked.empty(self.asked.part), self.asked.empty(self.asked.num_elements)

    def run(self) -> None:
        """Do the operation once."""
        dist.all_gather_into_tensor(self.got, self.sent)

    def expected(self) -> torch.Tensor:
        """Return the parts in the order of ranks."""
        asked = self.asked
        return torch.cat([self._pattern(rank, 0, asked.part) for rank in range(asked.num_ranks)])


class ReduceScatter(Collective):
    """Each rank gets its part of the reduction."""

    def _buffers(self) -> tuple[torch.Tensor, torch.Tensor]:
        return self.asked.empty(self.asked.num_elements), self.asked.empty(self.asked.part)

    def run(self) -> None:
        """Do the operation once."""
        dist.reduce_scatter_tensor(self.got, self.sent, op=self._reduction)

    def expected(self) -> torch.Tensor:
        """Return this rank's part."""
        return self._reduced(self.asked.rank * self.asked.part, self.asked.part)


class AllToAll(Collective):
    """Each rank sends each a part; under all_to_all_v the last rank gets `skew` times what others get."""

    def _buffers(self) -> tuple[torch.Tensor, torch.Tensor]:
        asked = self.asked
        self._to = split_sizes(asked)
        self._from = [self._to[asked.rank]] * asked.num_ranks
        return asked.empty(sum(self._to)), asked.empty(sum(self._from))

    @property
    def size_elements(self) -> int:
        """The most that any rank sends or gets, as nccl-tests counts it: what the last rank gets."""
        return max(self._to) * self.asked.num_ranks

    def run(self) -> None:
        """Do the operation once."""
        dist.all_to_all_single(self.got, self.sent, output_split_sizes=self._from, input_split_sizes=self._to)

    def expected(self) -> torch.Tensor:
        """Return each rank's part for this one, in the order of ranks."""
        asked = self.asked
        first = sum(self._to[: asked.rank])
        return torch.cat(
            [self._pattern(rank, first, self._to[asked.rank]) for rank in range(asked.num_ranks)]
        )


def split_sizes(asked: Asked) -> list[int]:
    """Return the elements that every rank sends to each; the size is what the last rank gets of all."""
    if asked.operation == "all_to_all":
        return [asked.part] * asked.num_ranks
    share = asked.num_elements / asked.num_ranks / asked.spec.skew
    return [max(1, int(share))] * (asked.num_ranks - 1) + [asked.part]


class Gather(Collective):
    """The root gets every rank's part."""

    def _buffers(self) -> tuple[torch.Tensor, torch.Tensor]:
        asked = self.asked
        return asked.empty(asked.part), asked.empty(asked.num_elements if asked.is_root else 0)

    def run(self) -> None:
        """Do the operation once."""
        parts = list(self.got.chunk(self.asked.num_ranks)) if self.asked.is_root else None
        dist.gather(self.sent, parts, dst=self.asked.spec.root)

    def expected(self) -> torch.Tensor | None:
        """Return the parts in the order of ranks; only the root has an output."""
        asked = self.asked
        if not asked.is_root:
            return None
        return torch.cat([self._pattern(rank, 0, asked.part) for rank in range(asked.num_ranks)])


class Scatter(Collective):
    """Each rank gets its part of what the root has."""

    def _buffers(self) -> tuple[torch.Tensor, torch.Tensor]:
        asked = self.asked
        return asked.empty(asked.num_elements if asked.is_root else 0), asked.empty(asked.part)

    def run(self) -> None:
        """Do the operation once."""
        parts = list(self.sent.chunk(self.asked.num_ranks)) if self.asked.is_root else None
        dist.scatter(self.got, parts, src=self.asked.spec.root)

    def expected(self) -> torch.Tensor:
        """Return this rank's part of the root's buffer."""
        asked = self.asked
        return self._pattern(asked.spec.root, asked.rank * asked.part, asked.part)


class SendRecv(Collective):
    """Each rank sends to the next and gets from the one before, in a ring."""

    def _buffers(self) -> tuple[torch.Tensor, torch.Tensor]:
        return self.asked.empty(self.asked.num_elements), self.asked.empty(self.asked.num_elements)

    def run(self) -> None:
        """Do the operation once."""
        rank, ranks = self.asked.rank, self.asked.num_ranks
        both = [
            dist.P2POp(dist.isend, self.sent, (rank + 1) % ranks),
            dist.P2POp(dist.irecv, self.got, (rank - 1) % ranks),
        ]
        for request in dist.batch_isend_irecv(both):
            request.wait()

    def expected(self) -> torch.Tensor:
        """Return what the rank before sent."""
        asked = self.asked
        return self._pattern((asked.rank - 1) % asked.num_ranks, 0, asked.num_elements)


OPERATIONS: dict[Operation, Callable[[Asked], Collective]] = {
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

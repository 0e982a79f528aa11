"""What is sent in collectives, and which faults of the result show: each is put into an output by hand."""

from __future__ import annotations

from collections.abc import Callable
from typing import get_args

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from gpuproof.records.work.collective import CollectiveSpec, ElementType, Operation, Reduction
from gpuproof.worker.collectives.operations import (
    EXACT_UP_TO,
    LADDER,
    OPERATIONS,
    TORCH_TYPES,
    Collective,
    CollectiveTask,
    pattern_for,
    whole_elements,
)

RANKS, ELEMENTS = 4, 48
CPU = torch.device("cpu")


def task(
    operation: Operation, rank: int, *, reduction: Reduction = "sum", dtype: ElementType = "float32"
) -> CollectiveTask:
    spec = CollectiveSpec(
        operations=(operation,),
        min_bytes=4 * ELEMENTS,
        max_bytes=4 * ELEMENTS,
        dtype=dtype,
        reduction=reduction,
        root=1,
        warmup_iterations=0,
        iterations=1,
        check_iterations=1,
        blocking=False,
        skew=3.0,
    )
    pattern = pattern_for(dtype, reduction, RANKS)
    return CollectiveTask(
        operation=operation,
        num_elements=ELEMENTS,
        rank=rank,
        num_ranks=RANKS,
        pattern=pattern,
        spec=spec,
        device=CPU,
    )


def all_ranks(operation: Operation, reduction: Reduction = "sum") -> list[Collective]:
    return [OPERATIONS[operation](task(operation, rank, reduction=reduction)) for rank in range(RANKS)]


def by_hand(operation: Operation, ranks: list[Collective], reduction: Reduction) -> list[torch.Tensor]:
    """Return each rank's output, from what all of them send, with no call of torch.distributed."""
    sent = [found.sent.clone() for found in ranks]
    split = [list(buffer.chunk(RANKS)) for buffer in sent if buffer.numel()]
    match operation:
        case "all_reduce" | "reduce" | "reduce_scatter":
            stacked = torch.stack(sent)
            whole = {"sum": stacked.sum(0), "max": stacked.amax(0), "min": stacked.amin(0)}[reduction]
            return list(whole.chunk(RANKS)) if operation == "reduce_scatter" else [whole] * RANKS
        case "all_gather" | "gather":
            return [torch.cat(sent)] * RANKS
        case "all_to_all":
            return [torch.cat([parts[rank] for parts in split]) for rank in range(RANKS)]
        case "all_to_all_v":  # by a skew of 3, of 48 / 4 elements for the last rank: 4, 4, 4 and 12
            return [torch.cat([b.split([4, 4, 4, 12])[rank] for b in sent]) for rank in range(RANKS)]
        case "broadcast":
            return [sent[1]] * RANKS
        case "scatter":
            return list(sent[1].chunk(RANKS))
        case _:
            return [sent[rank - 1] for rank in range(RANKS)]


@pytest.mark.parametrize("reduction", get_args(Reduction))
@pytest.mark.parametrize("operation", get_args(Operation))
def test_an_output_made_by_hand_is_right_on_every_rank(operation: Operation, reduction: Reduction) -> None:
    ranks = all_ranks(operation, reduction)
    outputs = by_hand(operation, ranks, reduction)
    compared = 0
    for rank, (found, output) in enumerate(zip(ranks, outputs, strict=True)):
        if found.expected() is None:
            assert operation in ("reduce", "gather")
            assert rank != 1
            continue
        found.got.copy_(output)
        checked, wrong = found.count_wrong()
        assert wrong == 0
        compared += checked
    assert compared >= ELEMENTS


FAULTS: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "one element": lambda x: torch.cat([x[:5], x[5:6] + 1, x[6:]]),
    "shifted by one": lambda x: x.roll(1),
    "half of it missing": lambda x: torch.cat([x[: len(x) // 2], torch.zeros_like(x[len(x) // 2 :])]),
    "half of it twice": lambda x: torch.cat([x[: len(x) // 2]] * 2 + [x[len(x) // 2 * 2 :]]),
    "nothing": torch.zeros_like,
    "not a number": lambda x: torch.full_like(x, torch.nan),
    "all one too much": lambda x: x + 1,
}


@pytest.mark.parametrize("fault", FAULTS)
@pytest.mark.parametrize("operation", get_args(Operation))
def test_a_fault_of_the_output_is_counted(operation: Operation, fault: str) -> None:
    ranks = all_ranks(operation)
    outputs = by_hand(operation, ranks, "sum")
    for found, output in zip(ranks, outputs, strict=True):
        if found.expected() is not None:
            found.got.copy_(FAULTS[fault](output))
            checked, wrong = found.count_wrong()
            assert 0 < wrong <= checked
            if fault == "one element":
                assert wrong == 1


@pytest.mark.parametrize("operation", ["all_reduce", "reduce_scatter", "reduce"])
def test_a_rank_that_is_left_out_or_counted_twice_shows(operation: Operation) -> None:
    for rank_at_fault in range(1, RANKS):  # what rank 0 sends differs from nothing, too, but for its zeros
        for times in (0, 2):
            ranks = all_ranks(operation)
            ranks[rank_at_fault].sent.mul_(times)
            found = ranks[1]
            found.got.copy_(by_hand(operation, ranks, "sum")[1])
            assert found.count_wrong()[1] > 0


def test_an_output_that_is_not_written_is_wrong() -> None:
    for operation in ("all_gather", "reduce_scatter", "all_to_all", "scatter", "send_recv"):
        found = all_ranks(operation)[1]
        found.got.copy_(by_hand(operation, all_ranks(operation), "sum")[1])
        found.spoil()
        assert found.count_wrong() == (found.got.numel(), found.got.numel())


def test_an_output_that_was_wrong_once_is_counted_among_right_ones() -> None:
    for operation in get_args(Operation):
        ranks = all_ranks(operation)
        for found, output in zip(ranks, by_hand(operation, ranks, "sum"), strict=True):
            for number in range(4):
                found.renew()
                if output is not None and found.got.numel():
                    found.got.copy_(output)
                    found.got[:2] += number == 2
            num = 0 if found.expected() is None else 4 * found.got.numel()
            assert found.count_wrong() == (num, 2 if num else 0), operation


@settings(deadline=None)
@given(
    dtype=st.sampled_from(get_args(ElementType)),
    reduction=st.sampled_from(get_args(Reduction)),
    num_ranks=st.integers(2, 600),
)
def test_what_must_come_out_is_held_exactly_or_nothing_is_compared(
    dtype: ElementType, reduction: Reduction, num_ranks: int
) -> None:
    pattern = pattern_for(dtype, reduction, num_ranks)
    if pattern is None:
        assert reduction == "sum"
        assert LADDER[-1].highest_sum(num_ranks) > EXACT_UP_TO[dtype]
        return
    like = torch.empty(0, dtype=TORCH_TYPES[dtype])
    found = pattern.reduced(reduction, num_ranks, 0, 26, like=like).to(torch.float64)
    exact = torch.stack(
        [pattern.sent_by(rank, 0, 26, like=torch.empty(0, dtype=torch.float64)) for rank in range(num_ranks)]
    )
    whole = {"sum": exact.sum(0), "max": exact.amax(0), "min": exact.amin(0)}[reduction]
    assert torch.equal(found, whole)
    assert len(set(found.tolist())) > 1, "neighbours must differ, or a shift is not seen"


def test_sizes_hold_whole_elements_of_every_rank() -> None:
    assert whole_elements("all_reduce", 1023, "float32", 4) == 255
    assert whole_elements("all_to_all", 1023, "float32", 4) == 252
    assert whole_elements("all_gather", 8, "float32", 4) == 0

"""How a launch stands: done, failed or unfinished, and which of many failures the others came from."""

from __future__ import annotations

from typing import Any

import pytest

from gpuproof.records.collected import CaseRecords
from records_by_hand import case, failure, result, setup, start, steps, window


def launch(*records: Any, nproc: int = 2) -> CaseRecords:
    return CaseRecords(case=case(nproc=nproc), records=records)


def two_ranks(*records: Any) -> CaseRecords:
    return launch(start(0, world_size=2), start(1, world_size=2), *records)


def test_done_takes_the_result_of_every_rank() -> None:
    assert two_ranks(result(0), result(1)).status == "done"
    assert two_ranks(result(0)).status == "unfinished"
    assert launch(result(0), nproc=2).status == "unfinished"
    assert launch(nproc=2).status == "unfinished"


def test_the_ranks_that_were_started_count_where_they_said_so() -> None:
    assert launch(nproc=3).world_size == 3
    joined = launch(start(0, world_size=4), nproc=1)
    assert joined.world_size == 4
    assert joined.status == "unfinished"


@pytest.mark.parametrize("cause", ["exception", "out_of_memory", "hang", "timeout"])
def test_what_would_fail_again_has_failed(cause: Any) -> None:
    assert two_ranks(failure(cause)).status == "failed"


@pytest.mark.parametrize("cause", ["lost_rank", "interrupted", "disk_full", "environment"])
def test_what_came_from_outside_leaves_the_launch_unfinished(cause: Any) -> None:
    assert two_ranks(failure(cause)).status == "unfinished"


@pytest.mark.parametrize(
    ("expected", "others"),
    [
        # The launcher notices the dead rank after its neighbours lost their connection.
        (failure("lost_rank", rank=None, unix_s=9), [failure("exception", rank=1, unix_s=5)]),
        (failure("exception", rank=1, unix_s=5), [failure("interrupted", rank=0, unix_s=6)]),
        # The agent was killed: one rank notices, the other finds the connection to it closed.
        (failure("interrupted", rank=0, unix_s=4), [failure("exception", rank=1, unix_s=5)]),
        (failure("exception", rank=1, unix_s=5), [failure("exception", rank=0, unix_s=6)]),
        (failure("timeout", rank=None, unix_s=9), [failure("interrupted", rank=0, unix_s=8)]),
        # Out of memory on one rank; the agent then killed the other.
        (failure("out_of_memory", rank=0, unix_s=5), [failure("lost_rank", rank=None, unix_s=9)]),
        # Ctrl-C: what the ranks say while they are ended is its consequence.
        (failure("interrupted", rank=None, unix_s=9), [failure("exception", rank=1, unix_s=8)]),
        (failure("hang", rank=0, unix_s=5), [failure("interrupted", rank=1, unix_s=5.5)]),
    ],
)
def test_the_cause_comes_before_its_consequences(expected: Any, others: list[Any]) -> None:
    assert two_ranks(*others, expected).primary_failure == expected
    assert two_ranks(expected, *others).primary_failure == expected


def test_nothing_failed() -> None:
    assert two_ranks(result(0), result(1)).primary_failure is None


def test_records_are_told_apart_by_rank_and_phase() -> None:
    records = two_ranks(
        *(setup(0), setup(1), steps(0, 0.5, phase="warmup"), steps(0, 0.1, 0.2), steps(1, 0.9)),
        *(steps(0, 0.3, first_step=2), window(0), window(1)),
    )
    assert records.step_times_s(0) == [0.1, 0.2, 0.3]
    assert records.step_times_s(0, phase="warmup") == [0.5]
    assert records.step_times_s(1) == [0.9]
    assert [found.rank for found in records.windows] == [0, 1]
    assert [found.rank for found in records.setups] == [0, 1]

"""The search for the largest batch that fits, against a memory of known size."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpuproof.config.models import RunConfig, SearchConfig
from gpuproof.records.case import Case
from gpuproof.records.collected import CaseRecords
from gpuproof.records.run import Environment, FailureCause
from gpuproof.suites.batch_limit.plan import BatchOutcome, BatchSearch, is_expected, next_batch
from planning import next_cases, settled, suite_of
from records_by_hand import failure, result, start

Memory = Callable[[int], FailureCause | None]


def config(repeats: int = 1, **search: Any) -> RunConfig:
    return RunConfig.model_validate(
        {
            "model": {"name": "medium"},
            "data": {"batch_size": 8},
            "search": {"kind": "batch_size", **search},
            "run": {"repeats": repeats},
        }
    )


def ended_by(case: Case, cause: FailureCause | None) -> Iterator[Any]:
    """Yield what a launch writes; one that is lost is lost before it tells what the host has."""
    yield start()
    if case.capture_env and cause != "lost_rank":
        yield Environment(host="here", facts={})
    yield result() if cause is None else failure(cause)


def search(asked: RunConfig, memory: Memory) -> tuple[list[int], list[CaseRecords]]:
    """Run the search to its end; return the batch sizes in the order in which they were launched."""
    results: list[CaseRecords] = []
    while cases := next_cases(asked, results):
        cause = memory(cases[0].model_work.data.batch_size)
        results.append(CaseRecords(case=cases[0], records=tuple(ended_by(cases[0], cause))))
        assert len(results) < 200
    return [records.case.model_work.data.batch_size for records in results], results


def outcomes(results: list[CaseRecords]) -> Mapping[int, BatchOutcome]:
    state = settled(config(), results)
    assert isinstance(state, BatchSearch)
    return state.tried


def means_what_was_looked_for(asked: RunConfig, launch: CaseRecords) -> bool:
    return suite_of(asked).on_failure(launch) == "expected"


def holds(samples: int) -> Memory:
    return lambda batch: "out_of_memory" if batch > samples else None


def test_it_doubles_until_memory_is_out_and_then_halves_the_distance() -> None:
    batches, results = search(config(start=16), holds(300))
    assert batches == [16, 32, 64, 128, 256, 512, 384, 320, 288, 304]
    assert max(batch for batch, outcome in outcomes(results).items() if outcome == "fits") == 288
    assert [r.case.model_work.data.batch_size for r in results if is_expected(r)] == [512, 384, 320, 304]
    assert all(
        means_what_was_looked_for(config(), r) == (r.case.model_work.data.batch_size > 300) for r in results
    )
    assert not means_what_was_looked_for(RunConfig(), results[5])


@pytest.mark.parametrize(
    ("asked", "memory", "expected"),
    [
        ({"start": 16, "up_to": 64}, 10**6, [16, 32, 64]),
        ({"start": 16, "up_to": 50}, 10**6, [16, 32, 50]),
        ({"start": 10, "factor": 1.5, "up_to": 40}, 10**6, [10, 15, 23, 35, 40]),
        ({"start": 16, "step": 1}, 37, [16, 32, 64, 48, 40, 36, 38, 37]),
        ({"start": 16, "step": 1}, 5, [16, 8, 4, 6, 5]),
        ({"start": 16}, 5, [16, 8, 4]),
        ({"start": 16}, 0, [16, 8, 4, 2, 1]),
    ],
)
def test_the_batches_of_a_search(asked: dict[str, Any], memory: int, expected: list[int]) -> None:
    assert search(config(**asked), holds(memory))[0] == expected


@given(
    room=st.integers(0, 5000),
    first=st.integers(1, 300),
    factor=st.floats(1.1, 16),
    step=st.integers(1, 300),
)
def test_the_largest_batch_is_found_to_within_the_step(
    room: int, first: int, factor: float, step: int
) -> None:
    asked = SearchConfig(kind="batch_size", start=first, factor=factor, step=step, up_to=4096)
    found: dict[int, BatchOutcome] = {}
    while (batch := next_batch(asked, found)) is not None:
        assert batch not in found
        found[batch] = "fits" if batch <= room else "out of memory"
    fits = max((batch for batch, outcome in found.items() if outcome == "fits"), default=0)
    too_large = min((batch for batch, outcome in found.items() if outcome != "fits"), default=None)
    assert fits <= room
    if too_large is None:
        assert fits == 4096
    else:
        assert fits < too_large
        assert too_large - fits <= (step if fits else 1)


def test_a_failure_of_another_kind_ends_the_search() -> None:
    batches, _ = search(config(), lambda batch: "exception" if batch == 64 else None)
    assert batches == [16, 32, 64]
    batches, _ = search(config(), lambda batch: "lost_rank" if batch == 32 else None)
    assert batches == [16, 32]


def test_each_batch_is_repeated_unless_memory_is_out() -> None:
    batches, results = search(config(repeats=3, start=16, up_to=64), holds(40))
    assert batches == [16, 16, 16, 32, 32, 32, 64, 48]
    assert [records.case.capture_env for records in results] == [True] + [False] * 7


def test_an_epoch_holds_a_batch_however_large() -> None:
    (case,) = next_cases(config(start=65_536))
    data = case.model_work.data
    assert (data.batch_size, data.samples_per_epoch, case.start) == (65_536, 65_536, "fork")

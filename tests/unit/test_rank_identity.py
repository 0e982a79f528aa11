"""Who a process is among the ranks, and how many threads it gets."""

from __future__ import annotations

import pytest

from gpuproof.base.errors import EnvironmentUnfitError
from gpuproof.processes.granted import usable_cpus, users_threads
from gpuproof.worker.rank.identity import RankIdentity, effective_threads, identity_from
from records_by_hand import case


@pytest.mark.parametrize(
    ("environment", "expected"),
    [
        ({}, (0, 1, 0, 1)),
        ({"RANK": "3", "WORLD_SIZE": "4"}, (3, 4, 3, 4)),  # by hand, one host
        ({"RANK": "5", "WORLD_SIZE": "8", "LOCAL_RANK": "1", "LOCAL_WORLD_SIZE": "4"}, (5, 8, 1, 4)),
        ({"RANK": "5", "WORLD_SIZE": "8", "LOCAL_WORLD_SIZE": "4"}, (5, 8, 1, 4)),
    ],
)
def test_identity_comes_from_the_launcher(environment: dict[str, str], expected: tuple[int, ...]) -> None:
    found = identity_from(environment)
    assert (found.rank, found.world_size, found.local_rank, found.local_world_size) == expected


@pytest.mark.parametrize(
    ("environment", "expected"),
    [
        ({"RANK": "4", "WORLD_SIZE": "4"}, "RANK=4 does not fit WORLD_SIZE=4"),
        ({"RANK": "-1", "WORLD_SIZE": "4"}, "RANK=-1 does not fit"),
        ({"RANK": "0", "WORLD_SIZE": "0"}, "RANK=0 does not fit WORLD_SIZE=0"),
        ({"RANK": "one"}, "must be whole numbers"),
        ({"RANK": ""}, "must be whole numbers"),
        ({"RANK": "0", "WORLD_SIZE": "2", "LOCAL_RANK": "2"}, "LOCAL_RANK=2 does not fit LOCAL_WORLD_SIZE=2"),
        ({"RANK": "0", "WORLD_SIZE": "2", "LOCAL_WORLD_SIZE": "0"}, "LOCAL_RANK=0 does not fit"),
        (
            {"RANK": "0", "WORLD_SIZE": "2", "LOCAL_WORLD_SIZE": "4"},
            "LOCAL_WORLD_SIZE=4 exceeds WORLD_SIZE=2",
        ),
    ],
)
def test_an_identity_that_cannot_be_is_refused(environment: dict[str, str], expected: str) -> None:
    with pytest.raises(EnvironmentUnfitError, match=expected):
        identity_from(environment)


def test_threads_are_those_asked_for_or_an_equal_share() -> None:
    def threads(local_world_size: int, asked: int | None = None) -> int:
        identity = RankIdentity(rank=0, world_size=8, local_rank=0, local_world_size=local_world_size)
        return effective_threads(case(parallel={"threads_per_rank": asked}).work.parallel, identity)

    usable = min(usable_cpus(), users_threads() or usable_cpus())
    assert threads(1) == usable
    assert threads(2) == max(1, usable // 2)
    assert threads(10_000) == 1
    assert threads(2, asked=7) == 7

"""The search as launches: where each test is placed, what a launch gives, and who is named in the end."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from collectives_by_hand import collective_records, trial
from gpuproof.config.models import RunConfig
from gpuproof.records.case import Case, CollectiveWork
from gpuproof.records.collected import CaseRecords
from gpuproof.records.run import Failure
from gpuproof.suites.base import HostPlace
from gpuproof.suites.validate.suspicion import Blaming, blame_devices, blame_hosts, value_of
from gpuproof.verdict.blame.evidence import Group
from gpuproof.verdict.blame.findings import blamed
from records_by_hand import start

HOSTS = tuple(HostPlace(name=f"n{number}") for number in range(9))
CONFIG = RunConfig.model_validate({"kind": "collective", "distributed": {"nproc": 2}})
LOOKED_FOR: dict[str, Any] = {"noise": 0.01, "slowdown": 0.2}


def ended(case: Case, *, slower_by: float = 0.0) -> CaseRecords:
    assert isinstance(case.work, CollectiveWork)
    (operation,) = case.work.collective.operations
    trials = [
        replace(
            whole := trial(rank, operation), durations_s=tuple(t / (1 - slower_by) for t in whole.durations_s)
        )
        for rank in range(case.placement.num_ranks)
    ]
    return collective_records(case, trials)


def searched(state: Blaming, slow: str, *, backwards: bool = False) -> Blaming:
    while cases := list(state.next(())):
        for case in reversed(cases) if backwards else cases:
            members = case.placement.hosts if state.part == "host" else map(str, case.placement.devices or ())
            state = state.settle(ended(case, slower_by=0.3 * (slow in members)))
    assert state.is_over
    return state


@pytest.mark.parametrize("backwards", [False, True])
def test_a_slow_host_is_named_in_whichever_order_launches_end(backwards: bool) -> None:
    state = searched(blame_hosts(CONFIG, HOSTS, **LOOKED_FOR), "n4", backwards=backwards)
    (named,) = blamed(state.search.findings())
    assert (named.subject, named.part) == ("host/n4", "host")
    assert named.evidence.startswith("n4: 30 % slower than good ones")


def test_a_group_of_hosts_is_one_job_over_them_and_one_way_is_a_broadcast() -> None:
    state = blame_hosts(CONFIG, HOSTS, **LOOKED_FOR)
    case = state.case("blame-0-0", Group(("n3", "n1"), one_way=True))
    assert (case.placement.hosts, case.placement.ranks_per_host) == (("n3", "n1"), 2)
    assert isinstance(case.work, CollectiveWork)
    assert (case.work.collective.operations, case.work.collective.root) == (("broadcast",), 0)
    assert len(case.work.collective.sizes_bytes) == 1


def test_among_devices_of_a_host_the_slow_one_is_named_and_alike_ones_leave_the_nic() -> None:
    hosts = searched(blame_hosts(CONFIG, HOSTS, **LOOKED_FOR), "n4").search.findings()
    inside = blame_devices(CONFIG, HOSTS[4], range(8), name="inside", **LOOKED_FOR)
    first = next(inside.next(()))
    assert (first.placement.hosts, first.placement.devices) == (("n4",), (0, 1))
    (gpu,) = blamed(hosts, {"n4": searched(inside, "3").search.findings()})
    (nic,) = blamed(hosts, {"n4": searched(inside, "none").search.findings()})
    assert (gpu.subject, gpu.part) == ("host/n4/gpu/3", "gpu")
    assert (nic.subject, nic.part) == ("host/n4", "nic")


def test_a_launch_of_something_else_changes_nothing() -> None:
    state = blame_hosts(CONFIG, HOSTS, **LOOKED_FOR)
    other = replace(next(state.next(())), case_id="main")
    assert state.settle(ended(other)) is state


def test_what_began_and_did_not_end_moved_nothing_and_what_did_not_begin_says_nothing() -> None:
    case = next(blame_hosts(CONFIG, HOSTS, **LOOKED_FOR).next(()))
    words: dict[str, Any] = {"host": "n0", "message": "", "unix_s": 1.0}
    hung = Failure(rank=0, phase="measure", cause="hang", **words)
    assert value_of(CaseRecords(case=case, records=(start(0, world_size=4), hung))) == 0.0
    unreachable = Failure(rank=None, phase="setup", cause="environment", **words)
    assert value_of(CaseRecords(case=case, records=(unreachable,))) is None
    wrong = [trial(rank, "all_reduce", num_wrong=rank) for rank in range(4)]
    assert value_of(collective_records(case, wrong)) == 0.0
    assert value_of(ended(case)) == pytest.approx(4 * 2**20 / 0.002, rel=0.01)

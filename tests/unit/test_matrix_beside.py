"""Times of commands that shared their host's processors, with others or with cases of their own matrix."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import chain
from pathlib import Path

import pytest

import recordings as r
from gpuproof.config.models import RunConfig
from gpuproof.readings.evidence import Evidence
from gpuproof.records.collected import CaseRecords
from gpuproof.records.result import Doubt
from gpuproof.records.work.command import CommandEnded, CommandStarted
from gpuproof.suites.matrix.conclude import doubts_of_times
from gpuproof.suites.matrix.plan import plan
from records_by_hand import result, start

HOST = "node7"
CPUS = 4


@dataclass(frozen=True, kw_only=True)
class Ran:
    """A command: when it ran, the CPUs that it kept busy, and those that its host did."""

    begin_s: float
    end_s: float
    own_cpus: float
    busy_cpus: float | None


def evidence(folder: Path, commands: Sequence[Ran]) -> Evidence:
    asked = RunConfig.model_validate(
        {
            "kind": "command",
            "command": {"argv": ["train", "{seed}"]},
            "matrix": {"seed": list(range(len(commands)))},
        }
    )
    planned = plan(asked)
    launches = []
    for ran, key in zip(commands, planned.order, strict=True):
        case = planned.case(key)
        launches.append(CaseRecords(case=case, records=(start(), started(ran), ended(ran), result())))
        record(folder / f"{case.case_id}.jsonl", ran)
    return Evidence(
        description={},
        config=asked,
        launches=tuple(launches),
        hosts=(),
        recording_at=lambda case, host: folder / f"{case.case_id}.jsonl",
        folder_of=lambda case: folder,
    )


def started(ran: Ran) -> CommandStarted:
    at_s = r.MONOTONIC_S + ran.begin_s
    return CommandStarted(
        rank=0, host=HOST, pid=1, argv=("train",), cwd="/", monotonic_s=at_s, unix_s=r.UNIX_S + ran.begin_s
    )


def ended(ran: Ran) -> CommandEnded:
    wall_s = ran.end_s - ran.begin_s
    return CommandEnded(
        rank=0,
        returncode=0,
        ended_by="itself",
        wall_s=wall_s,
        cpu_s=ran.own_cpus * wall_s,
        begin_monotonic_s=r.MONOTONIC_S + ran.begin_s,
        end_monotonic_s=r.MONOTONIC_S + ran.end_s,
        left_behind=0,
    )


def record(path: Path, ran: Ran) -> None:
    if ran.busy_cpus is None:
        return
    percent = {"cpu_percent": 100 * ran.busy_cpus / CPUS}
    samples = [r.sample(t, {}, host=percent) for t in range(int(ran.begin_s), int(ran.end_s) + 1)]
    r.write(path, [r.header([], host_facts={"cpus_logical": CPUS}), *samples])


def all_doubts(found: Evidence) -> set[Doubt]:
    return set(chain(*doubts_of_times(found).values()))


def test_commands_that_others_made_wait_are_doubted_with_how_many_ran_at_a_time(tmp_path: Path) -> None:
    waiting = Ran(begin_s=0, end_s=20, own_cpus=1.0, busy_cpus=4.0)
    after = Ran(begin_s=20, end_s=40, own_cpus=2.5, busy_cpus=3.9)
    (doubt,) = all_doubts(evidence(tmp_path, [waiting, waiting, after]))
    assert (doubt.validity, doubt.code) == ("SUSPECT", "cpu-neighbours")
    assert "while 3 of 3 commands ran" in doubt.reason
    assert "3.0 of 4" in doubt.reason
    assert "up to 2 cases ran at a time" in doubt.reason
    assert "cases.parallel=1" in doubt.remedy


@pytest.mark.parametrize(
    ("own_cpus", "busy_cpus"),
    [(4.0, 4.0), (3.8, 4.0), (1.0, 1.2), (0.5, 3.0), (1.0, None)],
    ids=["it filled them itself", "little beside it", "quiet", "room was left", "nothing was read"],
)
def test_commands_that_had_room_are_not_doubted(
    tmp_path: Path, own_cpus: float, busy_cpus: float | None
) -> None:
    ran = Ran(begin_s=0, end_s=20, own_cpus=own_cpus, busy_cpus=busy_cpus)
    assert doubts_of_times(evidence(tmp_path, [ran])) == {}


def test_one_at_a_time_is_not_told_to_run_one_at_a_time(tmp_path: Path) -> None:
    (doubt,) = all_doubts(evidence(tmp_path, [Ran(begin_s=0, end_s=20, own_cpus=1.0, busy_cpus=4.0)]))
    assert "at a time" not in doubt.reason + doubt.remedy

"""The scheduler against a launcher of the test's own: order, places, losses, retries, stops and ends."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from fake_launcher import FakeLauncher, Quiet
from gpuproof.campaign import launch_all
from gpuproof.errors import UsageError
from gpuproof.records.case import Case, Placement
from gpuproof.records.collected import CaseRecords
from gpuproof.records.run import Failure
from gpuproof.scheduler import MAX_ATTEMPTS
from gpuproof.store.run import RunDirectory
from gpuproof.suites.base import AfterFailure, HostPlace, LaunchKey, Remaining
from records_by_hand import CASE, with_work, write_run


def asked(name: str, *, after: Sequence[str] = (), **placement: Any) -> Case:
    order = tuple((other, 0) for other in after)
    return replace(CASE, case_id=name, after=order, placement=Placement(**placement))


class ListedSuite:
    """Asks for cases in order; counts those that it built."""

    name, summary, options = "listed", "a list", None
    scope = "whole"

    def __init__(self, cases: Sequence[Case], meaning: Mapping[str, AfterFailure] | None = None) -> None:
        self.cases = cases
        self.meaning = meaning or {}
        self.num_built = 0

    def begin(self, config: object, places: Sequence[HostPlace]) -> tuple[LaunchKey, ...]:
        return ()

    def settle(self, state: tuple[LaunchKey, ...], launch: CaseRecords) -> tuple[LaunchKey, ...]:
        return (*state, (launch.case.case_id, launch.case.replicate))

    def next(
        self, state: tuple[LaunchKey, ...], running: Mapping[LaunchKey, Case], time_left_s: float | None
    ) -> Iterator[Case]:
        for case in self.cases:
            if (case.case_id, 0) not in state and (case.case_id, 0) not in running:
                self.num_built += 1
                yield case

    def remaining(self, state: tuple[LaunchKey, ...]) -> Remaining:
        return Remaining(num_launches=len(self.cases) - len(state))

    def on_failure(self, launch: CaseRecords) -> AfterFailure:
        return self.meaning.get(launch.case.case_id, "skip")


def a_run(tmp_path: Path) -> RunDirectory:
    return write_run(tmp_path, [])


def launch(run: RunDirectory, suite: ListedSuite, launcher: FakeLauncher, **options: Any) -> Quiet:
    quiet = Quiet()
    launch_all(run, suite=suite, launcher=launcher, progress=quiet, **options)  # type: ignore[arg-type]  # fakes
    return quiet


def statuses(run: RunDirectory) -> dict[str, str]:
    return {records.case.case_id: records.status for records in run.cases()}


def messages(run: RunDirectory) -> dict[str, str]:
    return {r.case.case_id: r.of(Failure)[0].message for r in run.cases() if r.of(Failure)}


def without_data(*cases: Case) -> list[Case]:
    return [with_work(case, data=replace(case.work.data, file=None)) for case in cases]


def test_one_place_runs_one_after_the_other_and_builds_no_more_than_it_starts(tmp_path: Path) -> None:
    run, launcher = a_run(tmp_path), FakeLauncher()
    suite = ListedSuite(without_data(*(asked(f"c{i}") for i in range(50))))
    told = launch(run, suite, launcher)
    assert launcher.told[:4] == ["c0@a", "c0 done", "c1@a", "c1 done"]
    assert set(statuses(run).values()) == {"done"}
    assert suite.num_built == 50
    assert told.positions == [(n, 50) for n in range(1, 51)]


def test_pairs_share_no_host_and_what_does_not_fit_is_overtaken(tmp_path: Path) -> None:
    run, launcher = a_run(tmp_path), FakeLauncher("abcd")
    pairs = [asked(f"{p}", hosts=tuple(p), num_hosts=2) for p in ("ab", "bc", "cd", "da")]
    launch(run, ListedSuite(without_data(*pairs)), launcher)
    assert launcher.told[:2] == ["ab@a+b", "cd@c+d"]
    assert sorted(statuses(run).items()) == [(p, "done") for p in ("ab", "bc", "cd", "da")]
    placed = json.loads((run.root / "cases" / "da" / "0" / "placed.json").read_text())
    assert (placed["hosts"], placed["beside"]) == (["d", "a"], [])


def test_an_order_is_kept_and_one_that_cannot_be_is_a_failure(tmp_path: Path) -> None:
    run, launcher = a_run(tmp_path), FakeLauncher("ab")
    cases = [asked("late", after=["first"]), asked("first"), asked("never", after=["nobody"])]
    launch(run, ListedSuite(without_data(*cases)), launcher)
    assert launcher.told == ["first@a", "first done", "late@a", "late done"]
    assert "nothing of that is to come" in messages(run)["never"]


def test_a_lost_host_fails_the_cases_that_name_it_and_others_go_elsewhere(tmp_path: Path) -> None:
    run, launcher = a_run(tmp_path), FakeLauncher("ab", at_a="lost")
    cases = [asked("at_a", hosts=("a",)), asked("at_b", hosts=("b",)), asked("again_a", hosts=("a",))]
    cases += [asked("anywhere"), asked("both", num_hosts=2)]
    told = launch(run, ListedSuite(without_data(*cases)), launcher)
    assert statuses(run) == {
        "at_a": "unfinished",
        "at_b": "done",
        "again_a": "unfinished",
        "anywhere": "done",
        "both": "unfinished",
    }
    assert messages(run)["again_a"] == "setup: no answer"
    assert "a is lost: no answer" in messages(run)["both"]
    assert told.failed == ["a: setup: no answer."]
    assert [f.host for r in run.cases() if r.case.case_id == "at_a" for f in r.of(Failure)] == ["a"]


def test_where_all_places_are_lost_every_case_is_told_so(tmp_path: Path) -> None:
    run, launcher = a_run(tmp_path), FakeLauncher("a", c0="lost")
    launch(run, ListedSuite(without_data(asked("c0"), asked("c1"))), launcher)
    assert messages(run) == {
        "c0": "setup: no answer",
        "c1": "1 hosts are asked for, and there are 0; a is lost: no answer",
    }


def test_a_case_that_no_place_can_hold_says_so_and_the_others_run(tmp_path: Path) -> None:
    run, launcher = a_run(tmp_path), FakeLauncher("")
    launcher.names = [""]
    cases = [asked("big", num_hosts=2), asked("named", hosts=("x",)), asked("fits")]
    launch(run, ListedSuite(without_data(*cases)), launcher)
    assert messages(run) == {
        "big": "2 hosts are asked for, and there are 1",
        "named": "no such host is offered: x",
    }
    assert statuses(run)["fits"] == "done"


def test_what_a_failure_means_is_for_the_suite_to_say(tmp_path: Path) -> None:
    run, launcher = a_run(tmp_path), FakeLauncher(bad="exception", worse="exception", never="exception")
    meaning: dict[str, AfterFailure] = {"bad": "skip", "again": "retry", "worse": "stop"}
    cases = without_data(asked("bad"), asked("worse"), asked("after"))
    launch(run, ListedSuite(cases, meaning), launcher)
    assert statuses(run) == {"bad": "failed", "worse": "failed"}
    retried = ListedSuite(without_data(asked("never"), asked("good")), {"never": "retry"})
    launch(run, retried, launcher)
    assert launcher.told.count("never exception") == MAX_ATTEMPTS
    assert statuses(run)["good"] == "done"


def test_damaged_journals_are_set_aside_and_are_the_failure_of_their_case(tmp_path: Path) -> None:
    run, launcher = a_run(tmp_path), FakeLauncher(c0="damage")
    told = launch(run, ListedSuite(without_data(asked("c0"), asked("c1"))), launcher)
    assert statuses(run) == {"c0": "failed", "c1": "done"}
    assert (run.root / "cases" / "c0" / "0" / "rank-0.jsonl.damaged").exists()
    assert len(told.failed) == 1


def test_an_interruption_ends_all_that_runs_and_resume_launches_what_is_not_done(tmp_path: Path) -> None:
    run, launcher = a_run(tmp_path), FakeLauncher("ab", c1="interrupt")
    suite = ListedSuite(without_data(*(asked(f"c{i}") for i in range(4))))
    with pytest.raises(KeyboardInterrupt):
        launch(run, suite, launcher)
    assert statuses(run) == {"c0": "done", "c1": "unfinished", "c2": "unfinished"}
    assert {f.cause for r in run.cases() for f in r.of(Failure)} == {"interrupted"}
    again = FakeLauncher("ab")
    told = launch(run, suite, again)
    assert [line for line in again.told if "@" in line] == ["c1@a", "c2@b", "c3@a"]
    assert told.positions == [(1, 3), (2, 3), (3, 3)]


def test_failed_launches_are_settled_unless_they_are_to_be_retried(tmp_path: Path) -> None:
    run = a_run(tmp_path)
    meaning: dict[str, AfterFailure] = {"oom": "expected"}
    suite = ListedSuite(without_data(asked("bad"), asked("oom")), meaning)
    launch(run, suite, FakeLauncher(bad="exception", oom="out_of_memory"))
    again = FakeLauncher()
    launch(run, suite, again)
    assert again.told == []
    launch(run, suite, again, retry_failed=True)
    assert again.told == ["bad@a", "bad done"]


def test_data_that_is_not_there_is_refused_before_the_first_launch(tmp_path: Path) -> None:
    lacking = asked("lacking")
    data = replace(lacking.work.data, name="ImageFolder", file="data/x", path="/none")
    lacking = with_work(lacking, data=data)
    with pytest.raises(UsageError):
        launch(a_run(tmp_path), ListedSuite([lacking]), FakeLauncher())
    run = a_run(tmp_path / "second")
    launch(run, ListedSuite([*without_data(asked("first")), lacking]), FakeLauncher())
    assert statuses(run) == {"first": "done", "lacking": "unfinished"}

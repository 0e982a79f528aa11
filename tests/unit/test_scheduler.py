"""The scheduler against a launcher of the test's own: order, places, losses, retries, stops and ends."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from fake_launcher import FakeLaunch, FakeLauncher, Quiet
from gpuproof.base.errors import EnvironmentUnfitError, UsageError
from gpuproof.campaign.campaign import launch_all
from gpuproof.campaign.scheduler import CUT, CUT_SHORT_S, GRACE_S, LATE_GRACE_S, MAX_ATTEMPTS
from gpuproof.records.case import Case, Placed, Placement
from gpuproof.records.collected import CaseRecords
from gpuproof.records.run import Failure
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

    def planned(self, state: tuple[LaunchKey, ...]) -> Iterator[Case]:
        return iter(self.cases)

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
    return [with_work(case, data_file=None) for case in cases]


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
    assert "nothing of that is left to run" in messages(run)["never"]


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
        "c1": "1 hosts are requested, but only 0 are available; a is lost: no answer",
    }


def test_a_case_that_no_place_can_hold_says_so_and_the_others_run(tmp_path: Path) -> None:
    run, launcher = a_run(tmp_path), FakeLauncher("")
    launcher.names = [""]
    cases = [asked("big", num_hosts=2), asked("named", hosts=("x",)), asked("fits")]
    launch(run, ListedSuite(without_data(*cases)), launcher)
    assert messages(run) == {
        "big": "2 hosts are requested, but only 1 are available",
        "named": "no such host is available: x",
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
    data = replace(lacking.model_work.data, name="ImageFolder", path="/none")
    lacking = with_work(lacking, data=data, data_file="data/x")
    with pytest.raises(UsageError):
        launch(a_run(tmp_path), ListedSuite([lacking]), FakeLauncher())
    run = a_run(tmp_path / "second")
    launch(run, ListedSuite([*without_data(asked("first")), lacking]), FakeLauncher())
    assert statuses(run) == {"first": "done", "lacking": "unfinished"}


def most_at_once(told: Sequence[str]) -> int:
    """Return how many launches ran at the same time at most."""
    running = most = 0
    for line in told:
        running += 1 if "@" in line else -1
        most = max(most, running)
    return most


def test_hosts_are_held_whole_or_by_devices_as_the_case_says(tmp_path: Path) -> None:
    run, launcher = a_run(tmp_path), FakeLauncher("a")
    shared: dict[str, Any] = {"hosts": ("a",), "exclusive": "devices"}
    cases = [
        asked("gpu0", devices=(0,), **shared),
        asked("gpu0_again", devices=(0,), **shared),
        asked("gpu1", devices=(1,), **shared),
        asked("whole", hosts=("a",)),
    ]
    launch(run, ListedSuite(without_data(*cases)), launcher)
    assert launcher.told[:2] == ["gpu0@a", "gpu1@a"]  # beside each other, and what is in the way is overtaken
    assert launcher.told[-2:] == ["whole@a", "whole done"]
    assert most_at_once(launcher.told) == 2
    beside = json.loads((run.root / "cases" / "gpu1" / "0" / "placed.json").read_text())["beside"]
    assert beside == [["gpu0", 0]]
    assert set(statuses(run).values()) == {"done"}


def test_any_hosts_are_the_first_free_ones_in_the_order_of_the_places(tmp_path: Path) -> None:
    run, launcher = a_run(tmp_path), FakeLauncher("abcde")
    cases = [
        asked("two", num_hosts=2),
        asked("three", num_hosts=3),
        asked("all", num_hosts=5),
        asked("one"),
    ]
    launch(run, ListedSuite(without_data(*cases)), launcher)
    assert launcher.told[:2] == ["two@a+b", "three@c+d+e"]
    assert launcher.told[2:4] == ["two done", "one@a"]  # `all` has to wait for every host
    assert "all@a+b+c+d+e" in launcher.told
    assert set(statuses(run).values()) == {"done"}


def test_no_more_hosts_are_busy_than_the_launcher_allows(tmp_path: Path) -> None:
    run, launcher = a_run(tmp_path), FakeLauncher("abcd", max_busy=2)
    cases = [asked(f"c{i}") for i in range(6)] + [asked("wide", num_hosts=3)]
    launch(run, ListedSuite(without_data(*cases)), launcher)
    assert most_at_once(launcher.told) == 2
    assert launcher.told[:2] == ["c0@a", "c1@b"]
    assert launcher.told[-2:] == ["wide@a+b+c", "wide done"]  # alone, since it could not begin otherwise
    assert set(statuses(run).values()) == {"done"}


def test_a_case_waits_for_all_that_it_is_to_come_after_however_they_end(tmp_path: Path) -> None:
    run, launcher = a_run(tmp_path), FakeLauncher("abc", bad="exception", gone="lost")
    cases = [asked("last", after=["good", "bad", "gone"]), asked("good"), asked("bad"), asked("gone")]
    launch(run, ListedSuite(without_data(*cases)), launcher)
    assert launcher.told[:3] == ["good@a", "bad@b", "gone@c"]
    assert launcher.told[-2:] == ["last@a", "last done"]


class Settling(ListedSuite):
    """Remembers what it is told."""

    def __init__(self, cases: Sequence[Case], meaning: Mapping[str, AfterFailure] | None = None) -> None:
        super().__init__(cases, meaning)
        self.settled: list[tuple[str, str, str | None]] = []

    def settle(self, state: tuple[LaunchKey, ...], launch: CaseRecords) -> tuple[LaunchKey, ...]:
        told = launch.primary_failure
        self.settled.append((launch.case.case_id, launch.status, None if told is None else told.phase))
        return super().settle(state, launch)


def test_the_suite_is_told_of_every_case_of_a_lost_host_once(tmp_path: Path) -> None:
    launcher = FakeLauncher("ab", first="lost")
    pair = asked("pair", hosts=("b", "a"), num_hosts=2)
    suite = Settling(
        without_data(asked("first", hosts=("a",)), asked("on_a", hosts=("a",)), pair, asked("any"))
    )
    launch(a_run(tmp_path), suite, launcher)
    assert sorted(suite.settled) == [
        ("any", "done", None),
        ("first", "unfinished", "setup"),
        ("on_a", "unfinished", "setup"),
        ("pair", "unfinished", "setup"),
    ]
    assert [line for line in launcher.told if "@" in line] == ["first@a", "any@b"]


def test_a_launch_that_is_tried_again_is_settled_once_and_its_attempts_are_kept(tmp_path: Path) -> None:
    class Recovering(FakeLauncher):
        """A second attempt goes well."""

        def wait(self, timeout_s: float) -> None:
            super().wait(timeout_s)
            if "c0 exception" in self.told:
                self.script.clear()

    run, launcher = a_run(tmp_path), Recovering(c0="exception")
    suite = Settling(without_data(asked("c0"), asked("c1")), {"c0": "retry"})
    launch(run, suite, launcher)
    assert launcher.told == ["c0@a", "c0 exception", "c0@a", "c0 done", "c1@a", "c1 done"]
    assert suite.settled == [("c0", "done", None), ("c1", "done", None)]
    assert statuses(run) == {"c0": "done", "c1": "done"}
    kept = [path.read_text() for path in (run.root / "cases" / "c0").glob("*.attempt-*/rank-0.jsonl")]
    assert ["told of exception" in text for text in kept] == [True]


def test_a_stop_lets_what_runs_come_to_its_end(tmp_path: Path) -> None:
    run, launcher = a_run(tmp_path), FakeLauncher("abc", c0="disk_full")
    suite = Settling(without_data(*(asked(f"c{i}") for i in range(6))), {"c0": "stop"})
    launch(run, suite, launcher)
    assert [line for line in launcher.told if "@" in line] == ["c0@a", "c1@b", "c2@c"]
    assert [name for name, _, _ in suite.settled] == ["c0", "c1", "c2"]
    assert [status for _, status, _ in suite.settled[1:]] == ["done", "done"]


def test_a_stop_of_an_earlier_campaign_holds_unless_failures_are_retried(tmp_path: Path) -> None:
    run = a_run(tmp_path)
    suite = ListedSuite(without_data(asked("c0"), asked("c1")), {"c0": "stop"})
    launch(run, suite, FakeLauncher(c0="exception"))
    again = FakeLauncher()
    launch(run, suite, again)
    assert again.told == []
    launch(run, suite, again, retry_failed=True)
    assert again.told == ["c0@a", "c0 done", "c1@a", "c1 done"]


class Stubborn(FakeLauncher):
    """Launches that end only when they are told to a second time; the wait before that is interrupted."""

    def __init__(self, names: str) -> None:
        super().__init__(names)
        self.started: list[FakeLaunch] = []

    def start(self, case: Case, hosts: Sequence[str], folder: Path) -> FakeLaunch:
        launched = StubbornLaunch(placed=Placed(hosts=tuple(hosts), ranks_per_host=1))
        self.started.append(launched)
        return launched

    def wait(self, timeout_s: float) -> None:
        self.num_waits += 1
        assert self.num_waits < 10, "it waits for ever"
        if self.num_waits <= 2:  # Ctrl-C, and again while the ranks have their last words
            raise KeyboardInterrupt


class StubbornLaunch(FakeLaunch):
    def end(self, grace_s: float) -> None:
        self.ended.append(grace_s)
        self.is_over = len(self.ended) > 1


def test_a_second_interruption_cuts_the_time_for_last_words_short(tmp_path: Path) -> None:
    run, launcher = a_run(tmp_path), Stubborn("ab")
    with pytest.raises(KeyboardInterrupt):
        launch(run, ListedSuite(without_data(asked("c0"), asked("c1"), asked("c2"))), launcher)
    assert [launched.ended for launched in launcher.started] == [[GRACE_S, CUT_SHORT_S]] * 2
    assert {told.cause for records in run.cases() for told in records.of(Failure)} == {"interrupted"}
    assert statuses(run) == {"c0": "unfinished", "c1": "unfinished"}


def test_a_launch_that_cannot_be_ended_is_named_and_not_waited_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    class Undying(Stubborn):
        def wait(self, timeout_s: float) -> None:
            super().wait(timeout_s)
            self.started[0].ended.clear()  # none of them counts

    monkeypatch.setattr("gpuproof.campaign.scheduler.MOST_AFTER_GRACE_S", -1.0 - GRACE_S)
    run, launcher = a_run(tmp_path), Undying("a")
    with pytest.raises(KeyboardInterrupt):
        launch(run, ListedSuite(without_data(asked("c0"))), launcher)
    assert launcher.num_waits == 1
    assert "launch 1 of c0 has not ended" in caplog.text


def test_a_run_that_is_removed_under_way_ends_with_its_launches(tmp_path: Path) -> None:
    class Removing(Stubborn):
        def wait(self, timeout_s: float) -> None:
            shutil.rmtree(run.root, ignore_errors=True)
            for launched in self.started:
                launched.is_over = bool(launched.ended)

    run, launcher = a_run(tmp_path), Removing("ab")
    with pytest.raises(EnvironmentUnfitError, match=r"c0.0: it was removed during the run"):
        launch(run, ListedSuite(without_data(asked("c0"), asked("c1"), asked("c2"))), launcher)
    assert [launched.ended for launched in launcher.started] == [[GRACE_S]] * 2


def test_a_launch_over_its_time_is_ended_and_says_so(tmp_path: Path) -> None:
    run = write_run(tmp_path, [], run={"time_limit_s": 0.01})
    launcher = FakeLauncher(c0="hang")
    launch(run, ListedSuite(without_data(asked("c0"))), launcher)
    (records,) = run.cases()
    assert {told.cause for told in records.of(Failure)} == {"timeout"}


def test_a_queue_is_given_all_that_is_asked_for_up_to_its_limit(tmp_path: Path) -> None:
    run, launcher = a_run(tmp_path), FakeLauncher("", max_busy=3)
    cases = [asked(f"c{i}", num_hosts=500) for i in range(4)] + [asked("late", after=["c3"])]
    launch(run, ListedSuite(without_data(*cases)), launcher)
    assert launcher.told[:5] == ["c0@", "c1@", "c2@", "c0 done", "c3@"]
    assert launcher.told[-2:] == ["late@", "late done"]
    assert set(statuses(run).values()) == {"done"}


def test_what_a_launch_waits_for_is_said_once(tmp_path: Path) -> None:
    class Waiting(FakeLauncher):
        def start(self, case: Case, hosts: Sequence[str], folder: Path) -> FakeLaunch:
            launch = super().start(case, hosts, folder)
            launch.waits_for = "the queue: Priority"
            return launch

    told = launch(a_run(tmp_path), ListedSuite(without_data(asked("c0"), asked("c1"))), Waiting(""))
    assert sorted(told.said) == [f"c{i}, launch 1: waits for the queue: Priority" for i in range(2)]


def test_when_the_time_of_the_run_is_over_what_runs_is_cut_and_nothing_begins(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    now_s = 0.0

    class Passing(FakeLauncher):
        def wait(self, timeout_s: float) -> None:
            nonlocal now_s
            now_s += 1.0
            super().wait(timeout_s)

    monkeypatch.setattr("gpuproof.campaign.scheduler.time", SimpleNamespace(monotonic=lambda: now_s))
    run, launcher = a_run(tmp_path), Passing(a="hang")
    cases = without_data(asked("a"), asked("b"))
    launch(run, ListedSuite(cases), launcher, until_s=0.5)
    assert launcher.told[0] == "a@a"
    assert statuses(run) == {"a": "unfinished"}
    assert messages(run) == {"a": CUT}
    (ended,) = [following.ended for *_, following in launcher.running]
    assert ended == [LATE_GRACE_S]

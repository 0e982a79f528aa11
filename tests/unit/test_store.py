"""The run directory: whole files or none, nothing overwritten, every mistake one paragraph."""

from __future__ import annotations

import errno
import json
import os
import re
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

import pytest

from gpuproof.base.errors import EnvironmentUnfitError, RecordError, UsageError
from gpuproof.base.outside import parse_json
from gpuproof.campaign.campaign import run_campaign
from gpuproof.campaign.scheduler import UnheardProgress
from gpuproof.launchers.local.site import ThisMachine
from gpuproof.launchers.registry import open_launcher
from gpuproof.readings.parsing import fast_json
from gpuproof.records.case import Placed
from gpuproof.records.journal import encode
from gpuproof.records.result import Doubt, LaunchValue, Measure, MeasureInterval, Result
from gpuproof.records.run import Environment, Start
from gpuproof.report.formats import json_text
from gpuproof.store import layout
from gpuproof.store.run import RunDirectory, default_run_id, list_runs, read_case, write_whole
from gpuproof.store.versions import read_versioned
from records_by_hand import (
    Story,
    case,
    failure,
    one_rank,
    own_compute,
    result,
    setup,
    start,
    window,
    write_run,
)


def test_a_run_is_created_once(tmp_path: Path) -> None:
    run = RunDirectory.create(tmp_path, "exp", "one")
    assert (run.root / "cases").is_dir()
    with pytest.raises(UsageError, match=r"already exists, and is not a run.*Remove it"):
        RunDirectory.create(tmp_path, "exp", "one")
    run.write_description({})
    with pytest.raises(UsageError, match="there is already a run with that name") as caught:
        RunDirectory.create(tmp_path, "exp", "one")
    assert f"gpuproof run --resume {run.root}" in str(caught.value)
    with run.locked(), pytest.raises(UsageError, match="is in progress: another process is working on it"):
        RunDirectory.create(tmp_path, "exp", "one")


def test_a_place_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(EnvironmentUnfitError, match=r"cannot be written: Not a directory.*run\.save_dir"):
        RunDirectory.create(tmp_path / "file", "exp", "one")


def test_only_a_run_is_opened(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"contains no run\.json"):
        RunDirectory.open(tmp_path)
    run = write_run(tmp_path, [])
    assert RunDirectory.open(run.root).description()["run_id"] == "by-hand"


def test_a_run_is_described_once_from_its_beginning_to_its_result(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = RunDirectory.open(write_run(tmp_path, [one_rank().records()]).root)
    reads: list[str] = []

    def counted(path: Path, what: str, *, newest: int) -> dict[str, Any]:
        reads.append(path.name)
        return read_versioned(path, what, newest=newest)

    monkeypatch.setattr("gpuproof.store.run.read_versioned", counted)
    with open_launcher(ThisMachine()) as launcher:
        concluded = run_campaign(run, launcher=launcher, progress=UnheardProgress())
    assert concluded.result.num_launches == 1
    assert reads.count(layout.DESCRIPTION) == 1


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("{", "cannot be read"),
        ("[]", "not the description of a run"),
        ("{}", "it has no schema_version"),
        ('{"schema_version": "1"}', "it has no schema_version"),
        ('{"schema_version": 2}', "schema version 2, but this gpuproof supports up to 1"),
        ("\x80", "cannot be read"),
    ],
)
def test_a_damaged_description_is_an_error_that_names_it(text: str, expected: str, tmp_path: Path) -> None:
    (tmp_path / "run.json").write_bytes(text.encode("latin-1"))
    with pytest.raises(RecordError, match=expected) as caught:
        RunDirectory(tmp_path).description()
    assert str(tmp_path / "run.json") in str(caught.value)


def test_only_one_process_works_on_a_run(tmp_path: Path) -> None:
    run = RunDirectory.create(tmp_path, "exp", "one")
    with run.locked(), pytest.raises(UsageError, match="another process is working"), run.locked():
        pass
    with run.locked():
        pass


def test_a_run_is_locked_before_anybody_can_see_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[str] = []
    rename = Path.rename

    def look_then_rename(path: Path, target: Path) -> Path:
        with pytest.raises(UsageError, match="another process is working"), RunDirectory(path).locked():
            pass
        seen.append(target.name)
        return rename(path, target)

    with monkeypatch.context() as patched:
        patched.setattr(Path, "rename", look_then_rename)
        run = RunDirectory.create(tmp_path, "exp", "one", held=True)
    assert seen == ["one"]
    with pytest.raises(UsageError, match="a run with that name is in progress"):
        RunDirectory.create(tmp_path, "exp", "one")
    with run.locked():
        pass
    with RunDirectory(run.root).locked():
        pass
    assert [path.name for path in (tmp_path / "exp").iterdir()] == ["one"]


def test_an_attempt_is_moved_aside_and_never_overwritten(tmp_path: Path) -> None:
    run = write_run(tmp_path, [])
    for attempt in range(3):
        folder = run.begin_case(case())
        (folder / "stderr-0.txt").write_text(str(attempt))
    main = run.root / "cases" / "main"
    kept = {path.name: (path / "stderr-0.txt").read_text() for path in main.iterdir()}
    assert kept == {"0.attempt-1": "0", "0.attempt-2": "1", "0": "2"}
    (records,) = run.cases()
    assert records.case == case()


def test_launches_come_in_order_with_the_records_of_every_rank(tmp_path: Path) -> None:
    launches = [one_rank(replicate=replicate).records() for replicate in (10, 2)]
    run = write_run(tmp_path, launches)
    run.add_record(run.case_folder(launches[0].case), failure("timeout", rank=None))
    found = run.cases()
    assert [records.case.replicate for records in found] == [2, 10]
    assert found[0] == launches[1]
    assert found[1].records == (failure("timeout", rank=None), *launches[0].records)


def test_ranks_are_read_in_their_order_not_in_that_of_their_names(tmp_path: Path) -> None:
    run = write_run(tmp_path, [])
    folder = run.begin_case(case(nproc=11))
    launch = [
        record
        for rank in range(11)
        for record in (start(rank, world_size=11), setup(rank), window(rank), result(rank))
    ]
    for record in launch:
        with (folder / f"rank-{record.rank}.jsonl").open("a") as journal:
            journal.write(encode(record) + "\n")
    assert read_case(folder).records == tuple(launch)
    assert read_case(folder).status == "done"


def test_a_damaged_spec_or_line_is_named(tmp_path: Path) -> None:
    run = write_run(tmp_path, [one_rank().records()])
    folder = run.case_folder(case())
    journal = folder / "rank-0.jsonl"
    whole = journal.read_text()
    journal.write_text("rubbish\n" + whole)
    with pytest.raises(RecordError, match=r"rank-0\.jsonl:1: not a JSON record"):
        run.cases()
    journal.write_text(whole)
    (folder / "spec.json").write_text("{")
    with pytest.raises(RecordError, match=r"spec\.json: cannot be read"):
        run.cases()


@pytest.mark.parametrize(
    "change",
    [lambda _: 0.0, lambda s: s * 1e9, lambda s: s / 2, lambda s: -s],
    ids=["none took any time", "absurd", "half", "negative"],
)
def test_steps_that_are_not_those_of_their_window_are_no_launch(
    change: Callable[[float], float], tmp_path: Path
) -> None:
    run = write_run(tmp_path, [one_rank().records()])
    journal = run.case_folder(case()) / "rank-0.jsonl"
    lines = [json.loads(line) for line in journal.read_text().splitlines()]
    assert run.cases()[0].contradiction is None
    for line in lines:
        if line["kind"] == "steps" and line["phase"] == "measure":
            line["durations_s"] = [change(seconds) for seconds in line["durations_s"]]
    journal.write_text("".join(json.dumps(line) + "\n" for line in lines))
    with pytest.raises(RecordError, match=r"took .* s for its steps, but its window reports|is less than 0"):
        read_case(journal.parent)
    with suppress(RecordError):  # a negative time makes the file unreadable
        assert noted(run).startswith("records of main/0 contradict each other: rank 0 took ")


def noted(run: RunDirectory) -> str:
    """Return the note that takes the place of a launch's records."""
    (launch,) = run.cases()
    assert (launch.status, launch.records) == ("unfinished", ())
    (note,) = launch.torn
    return note


@pytest.mark.parametrize(
    ("extra", "reason"),
    [
        (own_compute(1, 0.01), "there is a record of rank 1, but ranks are 0 to 0"),
        (setup(precision="x"), "rank 0 reports precision 'x', but its case specifies fp32"),
        (window(items=0), "its windows count steps but contain no work"),
        (window(num_steps=10**10), "rank 0 took 1 s for 10000000000 steps"),
        (window(end_monotonic_s=49.0), r"window of rank 0 is from 50\.000 to 49\.000 s, but took 1 s"),
        (window(end_monotonic_s=50.1), r"window of rank 0 is from 50\.000 to 50\.100 s, but took 1 s"),
        (window(host="node2"), "window of rank 0 is from host node2, but the rank started on node1"),
        (window(begin_monotonic_s=30.0), r"starts at 30\.000 s, but the rank started at 40\.000 s"),
        (replace(result(), monotonic_s=39.0), "rank 0 ended before it started"),
        (Environment(host="node2", facts={}), "facts of host node2 are among the records of rank 0 on node1"),
    ],
)
def test_what_cannot_be_of_a_launch_takes_its_place_in_a_note(
    extra: Any, reason: str, tmp_path: Path
) -> None:
    told = one_rank().records()
    records = [extra if type(x) is type(extra) else x for x in told.records]
    records += [] if extra in records else [extra]
    run = write_run(tmp_path, [replace(told, records=tuple(records))], as_told=True)
    with pytest.raises(RecordError, match=reason):  # while it runs, its journals are set aside
        read_case(run.case_folder(case()))
    assert re.search(reason, noted(run))


@pytest.mark.parametrize(
    ("hosts", "ranks_per_host", "reason"),
    [
        (("node1",), 1, None),
        (("first of the inventory",), 1, None),
        (("node1",), 2, "it was scheduled with 2 ranks, but has 1"),
        (("node1", "node2"), 1, "it was scheduled with 2 ranks, but has 1"),
    ],
)
def test_where_a_launch_was_placed_and_where_its_ranks_ran(
    hosts: tuple[str, ...], ranks_per_host: int, reason: str | None, tmp_path: Path
) -> None:
    run = write_run(tmp_path, [one_rank().records()])
    run.write_placed(run.case_folder(case()), Placed(hosts=hosts, ranks_per_host=ranks_per_host))
    if reason is None:
        assert [launch.status for launch in run.cases()] == ["done"]
    else:
        assert reason in noted(run)


def test_a_launcher_of_the_user_s_names_the_host_of_rank_0_alone(tmp_path: Path) -> None:
    two = Story(windows=[window(rank) for rank in range(2)]).records()
    run = write_run(tmp_path, [two])
    (folder,) = (run.root / "cases").glob("*/*")
    run.write_placed(folder, Placed(hosts=("node1",), ranks_per_host=1))
    assert [launch.status for launch in run.cases()] == ["done"]
    run.write_placed(folder, Placed(hosts=("node1",), ranks_per_host=1, address="127.0.0.1", port=2000))
    assert "it was scheduled with 1 ranks, but has 2" in noted(run)


def test_a_name_that_is_a_host_s_own_is_that_host_s(tmp_path: Path) -> None:
    """Of two launches on node1 one says that it ran on node2: which of them is wrong is not known."""
    run = write_run(tmp_path, [one_rank(replicate=n).records() for n in range(2)])
    for number, host in enumerate(("node1", "node2")):
        folder = run.case_folder(replace(case(), replicate=number))
        run.write_placed(folder, Placed(hosts=(host,), ranks_per_host=1))
    good, bad = run.cases()
    assert (good.status, bad.status) == ("done", "unfinished")
    assert bad.torn == (
        "records of main/1 contradict each other: it was scheduled on node2, but its ranks ran on node1",
    )


def test_a_count_of_ranks_that_no_memory_holds_is_no_end(tmp_path: Path) -> None:
    told = one_rank().records()
    many = tuple(replace(x, world_size=2**40) if isinstance(x, Start) else x for x in told.records)
    assert replace(told, records=many).status == "unfinished"


@pytest.mark.parametrize(
    "text",
    [
        b'{"a": [1, -2.5e-7, 0.1, true, null], "b": {"a": "x"}}',
        b'{"a": NaN, "a": -0.0}',
        '{"a": "\u202eé\\u001b[31m \\ud800"}'.encode(),
        b"[" * 70 + b"]" * 70,
        b"[" * 5000 + b"]" * 5000,
        b'{"a": 1',
        b"\xff",
        b"",
    ],
)
def test_files_are_parsed_fast_as_everything_from_outside_is(text: bytes) -> None:
    def parsed(parse: Callable[[bytes], object]) -> str:
        try:
            return repr(parse(text))
        except ValueError as error:
            return f"refused: {error}"

    assert parsed(fast_json) == parsed(parse_json)


def test_a_file_is_written_whole_or_not_at_all(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "run.json"
    write_whole(path, "old")

    def full(_source: object, _target: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patched:
        patched.setattr(os, "replace", full)
        with pytest.raises(EnvironmentUnfitError, match=r"the disk is full.*--resume"):
            write_whole(path, "new")
    assert path.read_text() == "old"
    assert [found.name for found in tmp_path.iterdir()] == ["run.json"]


def test_a_run_of_somebody_else_s_cannot_be_written(tmp_path: Path) -> None:
    with pytest.raises(EnvironmentUnfitError, match=r"cannot be written: .*Copy the run"):
        write_whole(tmp_path / "gone" / "run_summary.json", "{}")


def test_runs_are_named_by_their_start_and_listed_newest_first(tmp_path: Path) -> None:
    assert default_run_id(datetime(2026, 11, 20, 13, 30, 12, tzinfo=timezone.utc)).startswith(
        "run_20261120T133012_"
    )
    assert list_runs(tmp_path / "absent") == []
    for age, name in ((20, "older"), (10, "newer")):
        path = write_run(tmp_path, [], run_id=name).root / "run.json"
        os.utime(path, (1_000_000 - age, 1_000_000 - age))
        assert json.loads(path.read_text())["run_id"] == name
    assert [run.root.name for run in list_runs(tmp_path)] == ["newer", "older"]


def test_a_result_is_read_back_as_it_was_written(tmp_path: Path) -> None:
    run = write_run(tmp_path, [])
    assert run.read_result() is None
    interval = MeasureInterval(low=1.0, high=3.0, level=0.95, kind="between_launches", method="Student's t")
    measure = Measure(
        name="throughput",
        value=2.0,
        unit="samples/s",
        text="2 samples/s",
        labels={"num_devices": 2},
        launches=(LaunchValue(replicate=0, order=1, value=2.0),),
        interval=interval,
    )
    result = Result(
        suite="recipe",
        run_id="by-hand",
        gpuproof_version="0",
        validity=None,
        verdict="NOTHING MEASURED",
        headline="",
        exit_code=4,
        num_launches=1,
        num_planned=2,
        conditions={"device": "CPU"},
        doubts=(Doubt(validity="SUSPECT", code="noise", reason="it was noisy", remedy="wait"),),
        failures=(failure("timeout"),),
        measures=(measure,),
    )
    run.write_text(layout.RESULT, json_text(result))
    assert run.read_result() == result
    run.write_text(layout.RESULT, '{"schema_version": 99}')
    with pytest.raises(RecordError, match="schema version 99, but this gpuproof supports up to 1"):
        run.read_result()

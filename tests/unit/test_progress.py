"""Progress, told from a launch's records: lines in a log, a bar on a terminal."""

from __future__ import annotations

import io
from typing import Any

import pytest
from rich.console import Console
from rich.progress import Progress, TextColumn

from gpuproof.cli.progress import BarProgress, CaseProgress, LineProgress, progress_on
from gpuproof.launchers.base import HostError
from gpuproof.records.collected import CaseRecords
from gpuproof.records.run import Phase
from gpuproof.records.run import Progress as StepsDone
from records_by_hand import case, failure, one_rank, setup, start, steps


def begin(name: Any, **expected: Any) -> Phase:
    return Phase(rank=0, name=name, event="begin", monotonic_s=0.0, **expected)


def test_a_launch_is_as_far_as_its_steps_are() -> None:
    progress = CaseProgress(case(), position=2, total=3)
    assert (progress.title, progress.phase, progress.fraction) == ("launch 2/3", "starting", None)
    progress.advance([begin("warmup", expected_steps=3), steps(0, 0.5, phase="warmup")])
    assert (progress.phase, progress.steps_done) == ("warming up", 1)
    assert progress.fraction == pytest.approx(1 / 3)
    progress.advance([setup(items_per_step=20), begin("measure", expected_steps=8), steps(0, 0.1, 0.3)])
    assert (progress.phase, progress.fraction) == ("measuring", 0.25)
    assert progress.speed == "100 samples/s"  # 2 steps of 20 in 0.4 s
    progress.advance([StepsDone(rank=0, phase="measure", steps_done=6, monotonic_s=1.0)])
    assert progress.fraction == 0.75


def test_what_is_timed_by_itself_need_be_no_gpu() -> None:
    shown = CaseProgress(case(), position=1, total=1)
    shown.advance([begin("own_compute")])
    assert shown.phase == "timing each device on its own"


def test_the_item_is_the_workload_s() -> None:
    progress = CaseProgress(case(), position=1, total=1)
    progress.advance([setup(item="tokens"), begin("measure"), steps(0, 0.1)])
    assert progress.speed == "100 tokens/s"
    assert progress.fraction is None


def test_a_window_by_seconds_is_as_far_as_the_clock(monkeypatch: pytest.MonkeyPatch) -> None:
    now = [100.0]
    monkeypatch.setattr("gpuproof.cli.progress.monotonic", lambda: now[0])
    progress = CaseProgress(case(), position=1, total=1)
    progress.advance([begin("measure", expected_s=5.0)])
    now[0] = 102.0
    progress.advance([])
    assert progress.fraction == pytest.approx(0.4)
    now[0] = 109.0
    progress.advance([])
    assert progress.fraction == 1.0


def test_a_log_gets_a_line_at_each_end_and_one_every_ten_seconds(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    now = [0.0]
    monkeypatch.setattr("gpuproof.cli.progress.monotonic", lambda: now[0])
    lines = LineProgress()
    lines.case_begins(case(), hosts=(), position=1, total=2)
    lines.case_advances(case(), [setup(), begin("measure", expected_steps=4)])
    now[0] = 9.0
    lines.case_advances(case(), [steps(0, 0.1)])
    now[0] = 10.0
    lines.case_advances(case(), [steps(0, 0.1)])
    lines.case_ends(one_rank().records())
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.splitlines() == [
        "launch 1/2: starting",
        "launch 1/2: measuring, 50 %, 100 samples/s",
        "launch 1/2: done, 1,000 samples/s",
    ]


@pytest.mark.parametrize(
    ("records", "word", "far"),
    [
        (one_rank().records(), "done", 1.0),
        (CaseRecords(case=case(), records=(start(), failure("exception"))), "failed", 0.0),
        (CaseRecords(case=case(), records=(start(),)), "unfinished", 0.0),
    ],
)
def test_a_bar_moves_with_the_steps_and_ends_as_the_launch_did(
    records: CaseRecords, word: str, far: float
) -> None:
    bars = Progress(
        TextColumn("{task.fields[phase]}"), console=Console(file=io.StringIO()), auto_refresh=False
    )
    bar = BarProgress(bars)
    bar.case_begins(case(), hosts=(), position=1, total=1)
    (task,) = bars.tasks
    assert (task.total, task.fields["phase"]) == (None, "starting")
    bar.case_advances(case(), [begin("measure", expected_steps=4), steps(0, 0.1)])
    assert (task.total, task.completed, task.fields["phase"]) == (1.0, 0.25, "measuring")
    bar.case_ends(records)
    assert (task.completed, task.fields["phase"]) == (far, word)


@pytest.mark.parametrize(("terminal", "kind"), [(False, LineProgress), (True, BarProgress)])
def test_a_terminal_gets_bars_and_a_log_lines(
    terminal: bool, kind: type, monkeypatch: pytest.MonkeyPatch
) -> None:
    stderr = io.StringIO()
    monkeypatch.setattr(stderr, "isatty", lambda: terminal)
    monkeypatch.setattr("sys.stderr", stderr)
    with progress_on() as progress:
        assert type(progress) is kind


def test_lines_of_hosts_begin_with_their_names_and_many_hosts_fill_no_log(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    now = [0.0]
    monkeypatch.setattr("gpuproof.cli.progress.monotonic", lambda: now[0])
    lines = LineProgress()
    lines.case_begins(case(), hosts=["node 1"], position=1, total=2)
    lines.case_begins(case(replicate=1), hosts=["node 2", "node 3", "node 4"], position=2, total=2)
    lines.case_advances(case(replicate=1), [begin("warmup")])
    now[0] = 10.0
    lines.case_advances(case(replicate=1), [begin("measure")])
    lines.host_failed(HostError("no answer", host="node 1", stage="setup"))
    assert capsys.readouterr().err.splitlines() == [
        "node 1: launch 1/2: starting",
        "node 2 and 2 more: launch 2/2: measuring",
        "node 1: failed at setup: no answer",
    ]


def test_where_more_launches_may_follow_the_fewest_are_named(capsys: pytest.CaptureFixture[str]) -> None:
    lines = LineProgress()
    lines.case_begins(case(), hosts=(), position=6, total=5, more=True)
    assert capsys.readouterr().err.splitlines() == ["launch 6, at least 5: starting"]


def test_a_share_of_no_percent_is_not_printed_to_two_digits(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    now = [100.0]
    monkeypatch.setattr("gpuproof.cli.progress.monotonic", lambda: now[0])
    lines = LineProgress()
    lines.case_begins(case(), hosts=(), position=1, total=1)
    lines.case_advances(case(), [begin("measure", expected_s=5e6)])
    now[0] = 110.0
    lines.case_advances(case(), [])
    assert capsys.readouterr().err.splitlines()[-1] == "launch 1/1: measuring"

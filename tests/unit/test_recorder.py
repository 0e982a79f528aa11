"""The recorder: a rank has one end, whoever says so first."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path
from time import monotonic

import pytest

from gpuproof.monitor.marks import MarkReader
from gpuproof.monitor.watch import MarksPipe
from gpuproof.records.journal import read_journal
from gpuproof.records.run import Failure, FailureCause
from gpuproof.worker.rank import watchdog
from gpuproof.worker.rank.recorder import Recorder, StepTimesWriter
from gpuproof.worker.rank.watchdog import Heartbeat


def failure(cause: FailureCause) -> Failure:
    return Failure(rank=0, host="here", phase="measure", cause=cause, message=cause, unix_s=1.0, steps_done=3)


def test_what_follows_the_first_last_words_is_not_another_end(tmp_path: Path) -> None:
    recorder = Recorder(tmp_path / "rank-0.jsonl", rank=0, heartbeat=Heartbeat())
    recorder.write_last_words(failure("hang"))
    recorder.write_last_words(failure("exception"))
    recorder.close()
    assert [record.cause for record in read_journal(recorder.path).records] == ["hang"]


def test_last_words_that_could_not_be_written_are_not_the_last(tmp_path: Path) -> None:
    recorder = Recorder(tmp_path / "rank-0.jsonl", rank=0, heartbeat=Heartbeat())
    unwritable = failure("hang")
    object.__setattr__(unwritable, "message", object())
    with pytest.raises(TypeError):
        recorder.write_last_words(unwritable)
    recorder.write_last_words(failure("exception"))
    recorder.close()
    assert [record.cause for record in read_journal(recorder.path).records] == ["exception"]


@pytest.mark.promise("S4.13")
@pytest.mark.parametrize(
    ("rank", "expected"),
    [(0, [{"epoch": 1, "batch": 2}, {"epoch": 1, "batch": 3}, {"epoch": 2, "batch": 2}]), (1, [])],
)
def test_a_monitor_learns_of_epoch_and_batch_from_the_first_rank(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, rank: int, expected: list[dict[str, int]]
) -> None:
    with closing(MarksPipe()) as marks:
        for name, value in marks.environment.items():
            monkeypatch.setenv(name, value)
        recorder = Recorder(tmp_path / f"rank-{rank}.jsonl", rank=rank, heartbeat=Heartbeat())
        writer = StepTimesWriter(recorder, "measure", keep_times=True, steps_of_epoch=3)
        for num_steps in (2, 0, 1, 2):
            writer([0.05] * num_steps)
        recorder.close()
        assert [mark for _, mark in MarkReader(marks.descriptor).take(monotonic())] == expected


def test_only_steps_that_are_done_are_progress(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    now_s = iter(range(1, 100))
    monkeypatch.setattr(watchdog, "monotonic", lambda: next(now_s))
    recorder = Recorder(tmp_path / "rank-0.jsonl", rank=0, heartbeat=Heartbeat())
    writer = StepTimesWriter(recorder, "measure", keep_times=True)
    writer([0.05, 0.05])
    assert (recorder.heartbeat.steps_done, recorder.heartbeat.at_s) == (2, 1)
    writer([])
    assert (recorder.heartbeat.steps_done, recorder.heartbeat.at_s) == (2, 1)
    writer([0.05])
    assert (recorder.heartbeat.steps_done, recorder.heartbeat.at_s) == (3, 2)

"""The queue of jobs against commands that a test answers for: arrays, polls, lost answers, ends."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from fakes.slurm_commands import FakeSlurm, fake_slurm
from gpuproof.base.errors import EnvironmentUnfitError
from gpuproof.launchers import queue as launch_queue
from gpuproof.launchers.slurm.commands import SlurmCommands, SlurmRefusalError
from gpuproof.launchers.slurm.options import SlurmOptions
from gpuproof.launchers.slurm.queue import SlurmLaunch, SlurmQueue
from gpuproof.launchers.slurm.text import SlurmNode
from gpuproof.records.case import Case
from gpuproof.records.run import Failure
from gpuproof.store.run import RunDirectory, read_case
from launching import finish, wait_until
from records_by_hand import case


@pytest.fixture
def slurm(tmp_path: Path) -> FakeSlurm:
    return fake_slurm(tmp_path / "slurm")


@pytest.fixture
def queue(slurm: FakeSlurm) -> Iterator[SlurmQueue]:
    with closing(opened(slurm)) as opened_queue:
        yield opened_queue


def opened(slurm: FakeSlurm, **options: Any) -> SlurmQueue:
    def node_for(run: Path) -> SlurmNode:
        return SlurmNode(python="python3", worker=("-m", "gpuproof.worker"), run=str(run))

    return SlurmQueue(SlurmOptions(**options), SlurmCommands(slurm.environment), node_for=node_for)


def start(queue: SlurmQueue, folder: Path, *cases: Case) -> list[SlurmLaunch]:
    run = RunDirectory(folder / "quick" / "run_1")
    return [queue.start(asked, (), run.begin_case(asked)) for asked in cases or (case(),)]


def failures(launch: SlurmLaunch) -> Sequence[Failure]:
    return read_case(launch.folder).of(Failure)


def test_launches_that_are_alike_are_one_array_and_others_jobs_of_their_own(
    queue: SlurmQueue, slurm: FakeSlurm, tmp_path: Path
) -> None:
    alike = [case(replicate=number) for number in range(3)]
    launches = start(queue, tmp_path, *alike, case(replicate=3, nproc=2))
    wait_until(queue, "all to be submitted", lambda: all(launch.job for launch in launches))
    assert [launch.job for launch in launches] == ["7_0", "7_1", "7_2", "7"]
    assert len(slurm.calls("sbatch")) == 2
    for number, launch in enumerate(launches[:3]):
        assert str(launch.folder) in launch.command.splitlines()
        assert json.loads((launch.folder / "slurm-job.json").read_text()) == {"job": f"7_{number}"}
    assert "#SBATCH --array=0-2" in launches[0].command
    assert "--array" not in launches[3].command


def test_a_job_is_followed_to_its_end(queue: SlurmQueue, slurm: FakeSlurm, tmp_path: Path) -> None:
    slurm.says("squeue", "7|7|PENDING||Priority\n")
    (launch,) = start(queue, tmp_path)
    wait_until(queue, "the queue's reason", lambda: launch.waits_for == "the queue: Priority")
    assert launch.placed is None
    slurm.says("scontrol", "n2\n")
    slurm.says("squeue", "7|7|RUNNING|n2|None\n")
    wait_until(queue, "its begin", lambda: launch.placed is not None)
    assert launch.placed is not None
    assert launch.placed.hosts == ("n2",)
    assert launch.waits_for is None
    (launch.folder / "rank-0.jsonl").touch()
    (launch.folder.parents[2] / "slurm-7.txt").write_text("slurmstepd: a word\n")
    slurm.says("squeue", "7|7|COMPLETED|n2|None\n")
    assert finish(queue, launch) == 0
    assert (launch.folder / "launcher-output.txt").read_text() == "slurmstepd: a word\n"
    assert not (launch.folder.parents[2] / "slurm-7.txt").exists()
    assert slurm.calls("scancel") == []


def test_files_that_a_shared_disk_shows_late_are_waited_for(
    queue: SlurmQueue, slurm: FakeSlurm, tmp_path: Path
) -> None:
    slurm.says("scontrol", "n2\n")
    slurm.says("squeue", "7|7|COMPLETED|n2|None\n")
    (launch,) = start(queue, tmp_path)
    wait_until(queue, "the files", lambda: launch.waits_for == "its files")
    assert not launch.is_over
    (launch.folder / "rank-0.jsonl").touch()
    assert finish(queue, launch) == 0


def test_a_job_that_nobody_knows_any_more_is_over(
    queue: SlurmQueue, slurm: FakeSlurm, tmp_path: Path
) -> None:
    slurm.says("scontrol", "n2\n")
    slurm.says("squeue", "7|7|RUNNING|n2|None\n")
    known, forgotten = start(queue, tmp_path, case(), case(replicate=1))
    slurm.says("sacct", "7_0|8|TIMEOUT|n2|None\n")
    slurm.says("squeue", "")
    assert [finish(queue, known), finish(queue, forgotten)] == [1, 1]
    (told,) = failures(known)
    assert told.message.startswith("time limit: job 7_0")
    (told,) = failures(forgotten)
    assert "ended as FORGOTTEN and wrote nothing" in told.message


def test_a_first_job_that_is_refused_ends_the_run_and_a_later_one_itself(
    queue: SlurmQueue, slurm: FakeSlurm, tmp_path: Path
) -> None:
    slurm.fails("sbatch", "sbatch: error: invalid partition specified: x\n")
    launches = start(queue, tmp_path / "a", case(), case(replicate=1, nproc=2))
    with pytest.raises(SlurmRefusalError, match="invalid partition"):
        wait_until(queue, "the refusal", lambda: False)
    assert all(launch.is_over for launch in launches)
    slurm.fails("sbatch", None)
    slurm.says("squeue", "7|7|PENDING||Priority\n")
    (taken,) = start(queue, tmp_path / "b")
    wait_until(queue, "a job", lambda: taken.job)
    slurm.fails("sbatch", "sbatch: error: QOSMaxSubmitJobPerUserLimit\n")
    (refused,) = start(queue, tmp_path / "c")
    assert finish(queue, refused) == 1
    assert not taken.is_over
    (told,) = failures(refused)
    assert (told.cause, told.message) == ("environment", "not submitted: QOSMaxSubmitJobPerUserLimit")
    assert "max_jobs" in str(told.next_step)


def test_a_launch_that_is_ended_at_once_is_not_submitted(
    queue: SlurmQueue, slurm: FakeSlurm, tmp_path: Path
) -> None:
    ended, other = start(queue, tmp_path, case(), case(replicate=1))
    ended.end(1.0)
    wait_until(queue, "the other's job", lambda: other.job)
    assert ended.is_over
    assert (other.job, ended.job) == ("7", "")


def test_a_controller_that_is_away_for_a_while_is_waited_for(
    queue: SlurmQueue, slurm: FakeSlurm, tmp_path: Path
) -> None:
    slurm.says("squeue", "7|7|RUNNING|n2|None\n")
    slurm.says("scontrol", "n2\n")
    (launch,) = start(queue, tmp_path)
    wait_until(queue, "its begin", lambda: launch.placed is not None)
    slurm.fails("squeue", "slurm_load_jobs error: Unable to contact slurm controller (connect failure)\n")
    num_calls = len(slurm.calls("squeue"))
    wait_until(queue, "polls without an answer", lambda: len(slurm.calls("squeue")) > num_calls + 1)
    assert not launch.is_over
    slurm.fails("squeue", None)
    (launch.folder / "rank-0.jsonl").touch()
    slurm.says("squeue", "7|7|COMPLETED|n2|None\n")
    assert finish(queue, launch) == 0


def test_a_controller_that_stays_away_ends_the_run_and_the_jobs_are_named(
    slurm: FakeSlurm, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(launch_queue, "SILENT_S", 0.0)
    with closing(opened(slurm)) as queue:
        slurm.says("squeue", "7|7|PENDING||Priority\n")
        (launch,) = start(queue, tmp_path)
        wait_until(queue, "a job", lambda: launch.job)
        for name in ("scancel", "squeue"):  # whose answers end the queue, which then cancels
            slurm.fails(name, f"{name} error: Unable to contact slurm controller (connect failure)\n")
        with pytest.raises(EnvironmentUnfitError, match="Unable to contact"):
            wait_until(queue, "the end", lambda: False)
        assert launch.is_over
        assert queue.notes() == ("jobs may be left in the queue: scancel 7",)


def test_jobs_are_cancelled_by_one_call_and_killed_when_asked_again(
    queue: SlurmQueue, slurm: FakeSlurm, tmp_path: Path
) -> None:
    slurm.says("squeue", "7_0|8|RUNNING|n2|None\n7_1|9|PENDING||Priority\n")
    slurm.says("scontrol", "n2\n")
    launches = start(queue, tmp_path, case(), case(replicate=1))
    wait_until(queue, "the begin", lambda: launches[0].placed is not None)
    for launch in launches:
        launch.end(10.0)
    wait_until(queue, "a call", lambda: slurm.calls("scancel"))
    launches[0].end(0.5)
    wait_until(queue, "a kill", lambda: any("--signal=KILL" in call for call in slurm.calls("scancel")))
    assert set(" ".join(slurm.calls("scancel")).split()) == {
        "scancel",
        "7_0",
        "7_1",
        "--signal=KILL",
        "--full",
    }
    slurm.says("squeue", "7_0|8|CANCELLED|n2|None\n7_1|9|CANCELLED||None\n")
    wait_until(queue, "the end", lambda: all(launch.is_over for launch in launches))
    assert [failures(launch) for launch in launches] == [(), ()]  # we asked for it


def test_a_job_that_waits_for_too_long_is_cancelled_and_says_why(slurm: FakeSlurm, tmp_path: Path) -> None:
    with closing(opened(slurm, pending_limit_s=0.01)) as queue:
        slurm.says("squeue", "7|7|PENDING||PartitionNodeLimit\n")
        (launch,) = start(queue, tmp_path)
        wait_until(queue, "the call", lambda: slurm.calls("scancel"))
        slurm.says("squeue", "7|7|CANCELLED||None\n")
        assert finish(queue, launch) == 1
    (told,) = failures(launch)
    assert told.message == "job 7 has not started within 0.01 s: the queue: PartitionNodeLimit"


def test_what_an_earlier_campaign_left_in_the_queue_is_cancelled_first(
    queue: SlurmQueue, slurm: FakeSlurm, tmp_path: Path
) -> None:
    slurm.says("squeue", "7|7|PENDING||Priority\n")
    (left,) = start(queue, tmp_path)
    wait_until(queue, "a job", lambda: left.job)
    slurm.says("sbatch", "8\n")
    (again,) = start(queue, tmp_path)
    wait_until(queue, "a job", lambda: again.job == "8")
    assert slurm.calls("scancel") == ["scancel 7"]
    assert slurm.calls().index("scancel 7") < len(slurm.calls()) - slurm.calls()[::-1].index(
        "sbatch --parsable"
    )


def test_a_suspended_job_is_told_of(queue: SlurmQueue, slurm: FakeSlurm, tmp_path: Path) -> None:
    slurm.says("scontrol", "n2\n")
    slurm.says("squeue", "7|7|SUSPENDED|n2|None\n")
    start(queue, tmp_path)
    wait_until(queue, "a note", queue.notes)
    assert queue.notes() == (
        "job 7 was suspended for a while: what it measured during that time is not valid",
    )

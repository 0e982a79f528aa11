"""Whatever ends a launch leaves readable records and says which end it was; --resume goes on from there."""

from __future__ import annotations

import os
import re
import shlex
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from gpuproof.records.run import Failure, Start, Steps, Window
from integration.conftest import Run, fingerprint
from running import LIGHT, MEASURED

LONG = 10_000
"""Steps of 20 ms that no test waits for."""
SHORT = 20
PATIENT = "--distributed.hang_timeout_s=40"
"""Preparing counts too, and importing torch has taken over 8 s on a busy machine; tests wait it out."""
GO = "go"
"""Where steps are held until a test has done what it has to do amid them, this file lets them go on."""


def only_failure(run: Run, *, replicate: int = 0) -> Failure:
    (failure,) = run.case(replicate).of(Failure)
    return failure


def let_go(run: Run) -> None:
    (run.command_line.folder / GO).touch()


def test_out_of_memory_names_the_remedy(a_run: Run) -> None:
    # 2^20 images of 3 × 4096 × 4096 floats are 211 TB: beyond the address space of any host of today.
    huge = ("--data.batch_size=1048576", "--data.samples_per_epoch=1048576", "--data.image_size=4096")
    ended = a_run.run("resnet18", *huge, steps=SHORT)
    assert ended.returncode == 3
    failure = only_failure(a_run)
    assert (failure.cause, failure.rank, failure.phase) == ("out_of_memory", 0, "prepare")
    assert "Lower data.batch_size" in (failure.next_step or "")
    assert a_run.statuses() == ["failed"]
    report = a_run.report()
    assert "out of memory rank 0" in report
    assert "Lower data.batch_size" in report


def test_an_exception_fails_its_launch_alone_and_only_retry_failed_repeats_it(a_run: Run) -> None:
    ended = a_run.run(
        "faulty", "--run.repeats=3", steps=SHORT, fault="raise", at_step=3, unless_file="struck"
    )
    assert ended.returncode == 3
    assert a_run.statuses() == ["failed", "done", "done"]
    failure = only_failure(a_run)
    assert (failure.cause, failure.phase, failure.message) == (
        "exception",
        "measure",
        "ValueError: the model broke in step 3",
    )
    assert "faulty_model.py" in (failure.traceback or "")
    assert "exception rank 0" in a_run.report()
    assert "the model broke in step 3" in a_run.report()

    before = fingerprint(a_run.root / "cases")
    again = a_run.resume()
    assert again.returncode == 3
    assert fingerprint(a_run.root / "cases") == before

    done = {replicate: fingerprint(a_run.folder(replicate)) for replicate in (1, 2)}
    retried = a_run.resume("--retry-failed")
    assert retried.returncode in MEASURED, retried.stderr
    assert a_run.statuses() == ["done"] * 3
    assert {replicate: fingerprint(a_run.folder(replicate)) for replicate in (1, 2)} == done
    assert [attempt.status for attempt in a_run.attempts()] == ["failed"]


@pytest.mark.parametrize("words", [[], ["--kind=inference"]])
def test_outputs_that_are_no_numbers_from_some_step_on_make_the_run_suspect(
    a_run: Run, words: list[str]
) -> None:
    ended = a_run.run("faulty", *words, steps=SHORT, fault="nan", at_step=15, step_s=0.05)
    assert ended.returncode in MEASURED, ended.stderr
    (window,) = a_run.case().of(Window)
    last, first = window.not_finite_after or (0, 0)
    assert 0 < last < first <= SHORT  # looks are some steps apart, however many
    assert last < 15
    assert f"infinities or NaN when checked after {first} of {SHORT} steps" in a_run.report()


def test_a_killed_rank_is_lost_and_resumed(a_run: Run) -> None:
    process = a_run.start("faulty", steps=SHORT, until_file=GO)
    a_run.record(Steps)
    os.kill(a_run.record(Start).pid, signal.SIGKILL)
    ended = a_run.command_line.finish(process)
    assert ended.returncode == 3
    failure = only_failure(a_run)
    assert failure.cause == "lost_rank"
    assert "rank 0 ended without an error message by SIGKILL" in failure.message
    assert a_run.statuses() == ["unfinished"]
    assert a_run.case().of(Steps)

    let_go(a_run)
    resumed = a_run.resume()
    assert resumed.returncode in MEASURED, resumed.stderr
    assert [attempt.status for attempt in a_run.attempts()] == ["unfinished"]


def test_a_killed_rank_of_two_is_named_and_the_other_is_not_blamed(a_run: Run) -> None:
    process = a_run.start("faulty", "--nproc=2", steps=SHORT, until_file=GO)
    a_run.record(Steps)
    os.kill(a_run.record(Start, rank=1).pid, signal.SIGKILL)
    ended = a_run.command_line.finish(process)
    assert ended.returncode == 3
    records = a_run.case()
    primary = records.primary_failure
    assert primary is not None
    assert (primary.cause, primary.rank) == ("lost_rank", None)
    assert "rank 1 ended without an error message" in primary.message
    assert {failure.rank for failure in records.of(Failure)} == {None, 0}
    assert "rank 1 ended without an error message" in a_run.report()
    assert a_run.all_gone()

    let_go(a_run)
    resumed = a_run.resume()
    assert resumed.returncode in MEASURED, resumed.stderr
    assert a_run.statuses() == ["done"]
    assert [attempt.status for attempt in a_run.attempts()] == ["unfinished"]


def test_when_the_agent_of_several_ranks_is_killed_the_ranks_end_too(a_run: Run) -> None:
    process = a_run.start("faulty", "--nproc=2", steps=LONG, step_s=0.02)
    for rank in (0, 1):
        a_run.record(Steps, rank=rank)
    os.kill(os_parent(a_run.record(Start).pid), signal.SIGKILL)
    ended = a_run.command_line.finish(process)
    assert ended.returncode == 3
    assert a_run.all_gone()
    # Whichever notices second may find the other gone before it finds the agent gone.
    said = [a_run.record(Failure, rank=rank).message for rank in (0, 1)]
    assert any("is gone" in message for message in said), said
    assert a_run.statuses() == ["unfinished"]


def os_parent(pid: int) -> int:
    return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])


def test_a_hung_rank_leaves_the_stack_of_each_rank(a_run: Run) -> None:
    ended = a_run.run("faulty", "--nproc=2", PATIENT, steps=SHORT, fault="sleep", on_rank=1)
    assert ended.returncode == 3
    by_rank = {failure.rank: failure for failure in a_run.case().of(Failure)}
    launch, *own = (by_rank[rank].cause for rank in (None, 0, 1))
    # Both give up at the same time: the end of the first may reach the other before its own words are out.
    assert (launch, "hang" in own) == ("hang", True)
    assert set(own) <= {"hang", "interrupted", "exception"}
    waits, sleeps = (by_rank[rank].stacks or by_rank[rank].traceback or "" for rank in (0, 1))
    assert "time.sleep(FOR_EVER_S)" in sleeps
    assert "backward" in waits
    assert "time.sleep(FOR_EVER_S)" not in waits
    assert a_run.statuses() == ["failed"]
    found = r"rank 0 on \S+ waits in \S+ of [\d,]+ elements \(number \d+\), which rank 1 on \S+ did not reach"
    assert re.fullmatch(found, by_rank[None].message)
    assert by_rank[None].message in " ".join(a_run.report().split())
    assert a_run.all_gone()


def test_a_hang_in_native_code_that_keeps_the_lock_still_ends_with_its_stack(a_run: Run) -> None:
    ended = a_run.run("faulty", PATIENT, steps=SHORT, fault="hold_lock")
    assert ended.returncode == 3
    failure = only_failure(a_run)
    assert failure.cause == "lost_rank"
    assert "stderr-0.txt" in (failure.next_step or "")
    printed = (a_run.folder() / "stderr-0.txt").read_text()
    assert "_go_wrong" in printed
    assert a_run.all_gone()


def test_a_time_out_ends_the_launch_with_last_words(a_run: Run) -> None:
    ended = a_run.run("faulty", "--timeout=40", steps=LONG, step_s=0.02)
    assert ended.returncode == 124
    own, launch = sorted(a_run.case().of(Failure), key=lambda failure: failure.rank is None)
    assert (launch.cause, launch.rank, launch.message) == ("timeout", None, "not finished within 40 s")
    assert (own.cause, own.rank) == ("interrupted", 0)
    assert own.stacks
    assert a_run.case().of(Steps)
    assert a_run.statuses() == ["failed"]
    assert "not finished within 40 s" in a_run.report()
    assert a_run.all_gone()


@pytest.mark.parametrize(
    ("number", "nproc", "repeats"), [(signal.SIGTERM, 2, 1), (signal.SIGINT, 1, 2), (signal.SIGQUIT, 1, 1)]
)
def test_an_interrupted_run_says_how_to_go_on(
    a_run: Run, number: signal.Signals, nproc: int, repeats: int
) -> None:
    process = a_run.start(
        "faulty", f"--nproc={nproc}", f"--run.repeats={repeats}", steps=SHORT, until_file=GO
    )
    for rank in range(nproc):
        a_run.record(Steps, rank=rank)
    process.send_signal(number)
    ended = a_run.command_line.finish(process)
    assert ended.returncode == 130
    assert a_run.all_gone()
    for rank in range(nproc):
        words = a_run.record(Failure, rank=rank)
        assert (words.cause, words.message) == ("interrupted", "ended by SIGTERM")
        assert words.stacks
    assert a_run.statuses() == ["unfinished"]

    program, *words_to_resume = shlex.split(ended.stderr.rpartition("resume with: ")[2])
    assert program == "gpuproof"
    let_go(a_run)
    resumed = a_run.command_line.run(*words_to_resume)
    assert resumed.returncode in MEASURED, resumed.stderr
    assert a_run.statuses() == ["done"] * repeats


def left_in(temporary: Path) -> list[Path]:
    """Return all but what torch's compiler keeps for later runs; where it keeps nothing, its folder, too."""
    return [p for p in temporary.iterdir() if not (p.name.startswith("torchinductor_") and any(p.iterdir()))]


def test_ranks_end_when_their_campaign_is_killed_and_the_next_run_sweeps(a_run: Run, tmp_path: Path) -> None:
    temporary = tmp_path / "temporary"
    temporary.mkdir()
    carried = f"--python={sys.executable}"  # the node side as one file, in a temporary folder
    words = a_run.words("faulty", "--nproc=2", carried, *LIGHT, steps=SHORT, until_file=GO)
    process = a_run.command_line.start(*words, TMPDIR=str(temporary))
    a_run.record(Steps, rank=0)
    a_run.record(Steps, rank=1)
    process.kill()
    # Not reaped yet: the ranks must not take the zombie for a living launcher.
    assert a_run.all_gone()
    for rank in (0, 1):
        assert f"the launcher (process {process.pid}) is gone" in a_run.record(Failure, rank=rank).message
    assert [path.name[:9] for path in left_in(temporary)] == ["gpuproof-"]
    process.wait()
    let_go(a_run)
    resumed = a_run.command_line.run("run", "--resume", str(a_run.root), carried, TMPDIR=str(temporary))
    assert resumed.returncode in MEASURED, resumed.stderr
    assert left_in(temporary) == []


def test_a_second_process_on_a_run_is_refused(a_run: Run) -> None:
    process = a_run.start("faulty", steps=LONG, step_s=0.02)
    a_run.record(Steps)
    second = a_run.resume()
    assert second.returncode == 2
    assert "another process is working on this run" in second.stderr
    assert "Traceback" not in second.stderr
    named_again = a_run.run("faulty", steps=SHORT)
    assert named_again.returncode == 2
    assert "a run with that name is in progress" in named_again.stderr
    assert process.poll() is None
    process.send_signal(signal.SIGTERM)
    assert a_run.command_line.finish(process).returncode == 130


@pytest.mark.parametrize("nproc", [1, 2])
def test_a_python_without_torch_is_an_unfit_environment(a_run: Run, tmp_path: Path, nproc: int) -> None:
    blocked = tmp_path / "blocked"
    blocked.mkdir()
    (blocked / "torch.py").write_text(
        'raise ModuleNotFoundError("No module named \'torch\'", name="torch")\n'
    )
    path = f"{blocked}{os.pathsep}{a_run.command_line.environment['PYTHONPATH']}"
    words = a_run.words("medium", f"--nproc={nproc}", "--run.repeats=2", steps=SHORT)
    ended = a_run.command_line.run(*words, PYTHONPATH=path)
    assert ended.returncode == 5
    failure = only_failure(a_run)
    assert failure.cause == "environment"
    assert "torch" in failure.message
    assert a_run.statuses() == ["unfinished"], "another launch would meet the same fate"
    assert "environment" in a_run.report()
    if nproc > 1:
        return

    resumed = a_run.resume()
    assert resumed.returncode in MEASURED, resumed.stderr
    assert a_run.statuses() == ["done", "done"]


@pytest.fixture
def small_disk(weird_tmp_path: Path) -> Iterator[Path]:
    """A file system of 2 MiB where runs are kept."""
    folder = weird_tmp_path / "results"
    folder.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=2m,nr_inodes=400", "tmpfs", str(folder)]
    if os.geteuid() != 0 or subprocess.run(mount, capture_output=True).returncode != 0:
        pytest.skip("needs root, and leave to mount a small file system")
    yield folder
    subprocess.run(["umount", "--lazy", str(folder)], check=True)


def fill(disk: Path) -> Path:
    filler = disk / "filler"
    with filler.open("ab", buffering=0) as file, suppress(OSError):
        while file.write(b"\1" * 4_096):  # the page of a tmpfs
            pass
    return filler


def test_a_full_disk_leaves_a_failure_record_in_the_room_kept_for_it(a_run: Run, small_disk: Path) -> None:
    # Without the sampler, whose own last words would give room back to the rank.
    alone = "--monitoring.enabled=false"
    process = a_run.start("faulty", "--run.repeats=2", alone, steps=2_000, step_s=0.001, until_file=GO)
    a_run.record(Steps)
    filler = fill(small_disk)
    let_go(a_run)
    ended = a_run.command_line.finish(process)
    assert ended.returncode == 5
    assert "Traceback" not in ended.stderr
    failure = only_failure(a_run)
    assert (failure.rank, failure.phase) == (0, "measure")
    # Who writes first meets the full disk: the rank, or its launcher, which then ends the rank.
    assert failure.cause in ("disk_full", "interrupted")
    assert failure.cause == "interrupted" or "Free up space on the disk" in (failure.next_step or "")
    # The results are said on the page where the rank's last words left them room, else there is no page.
    assert "the disk is full" in ended.stderr or "disk full" in ended.stdout, ended.stdout
    records = a_run.case()
    assert records.torn == ()
    written = [steps.first_step for steps in records.of(Steps) if steps.phase == "measure"]
    assert written == sorted(written)
    assert not records.of(Window)
    assert a_run.statuses() == ["unfinished"]

    fill(small_disk)
    before = fingerprint(a_run.folder())
    still_full = a_run.resume()
    assert still_full.returncode == 5
    assert "the disk is full" in still_full.stderr
    assert "Traceback" not in still_full.stderr
    filler.unlink()
    resumed = a_run.resume()
    assert resumed.returncode in MEASURED, resumed.stderr
    assert a_run.statuses() == ["done", "done"]
    assert before in [fingerprint(folder) for folder in a_run.root.glob("cases/main/0.attempt-*")]

"""Slurm's commands as scripts: what they say becomes states, names of nodes, and errors with a next step."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from fakes.slurm_commands import FakeSlurm, fake_slurm
from gpuproof.base.errors import EnvironmentUnfitError, ExitCode, UsageError
from gpuproof.launchers.slurm.commands import JobState, SlurmCommands, SlurmRefusalError, job_failure
from gpuproof.launchers.slurm.site import allocated_nodes
from gpuproof.worker.launched.slurm_task import node_facts


@pytest.fixture
def slurm(tmp_path: Path) -> FakeSlurm:
    return fake_slurm(tmp_path / "slurm")


VIOLATES = (
    "Batch job submission failed: Job violates accounting/QOS policy (job submit limit, user's size and/or "
    "time limits)"
)


def state(name: str, *, nodes: str = "n[1-2]") -> JobState:
    return JobState(job="7_1", number="9", name=name, nodes=nodes, reason="")


def test_all_jobs_are_asked_for_by_one_call(slurm: FakeSlurm) -> None:
    commands = SlurmCommands(slurm.environment)
    slurm.says("squeue", "7_0|8|PENDING||Resources\n7_1|9|RUNNING|n[1-2]|None\n12|12|COMPLETED|n3|None\n")
    states = commands.states(["7_0", "7_1", "12"])
    assert states["7_0"] == JobState(job="7_0", number="8", name="PENDING", nodes="", reason="Resources")
    slurm.says("squeue", "8|8|PENDING||not permitted (closed allows nobody)\n")
    assert commands.states(["8"])["8"].reason == "not permitted (closed allows nobody)"
    assert states["7_1"] == JobState(job="7_1", number="9", name="RUNNING", nodes="n[1-2]", reason="")
    assert slurm.calls("squeue")[1:2] == [
        "squeue --jobs=12,7 --states=all --noheader --array --format=%i|%A|%T|%N|%r"
    ]


def test_a_job_that_the_queue_has_forgotten_is_no_error(slurm: FakeSlurm) -> None:
    slurm.fails("squeue", "slurm_load_jobs error: Invalid job id specified\n")
    assert SlurmCommands(slurm.environment).states(["7"]) == {}


def test_the_accounting_is_asked_where_there_is_one(slurm: FakeSlurm) -> None:
    commands = SlurmCommands(slurm.environment)
    slurm.says("sacct", "7_1|9|CANCELLED by 1000|n[1-2]|None\n8|8|TIMEOUT|None assigned|None\n")
    known = commands.accounted(["7_1", "8"])
    assert (known["7_1"].name, known["7_1"].nodes, known["8"].nodes) == ("CANCELLED", "n[1-2]", "")
    assert commands.accounted([]) == {}
    slurm.fails("sacct", "Slurm accounting storage is disabled\n")
    assert commands.accounted(["7_1"]) == {}
    assert commands.accounted(["7_1"]) == {}
    assert len(slurm.calls("sacct")) == 2  # that there is none is asked once


def test_a_machine_without_slurm_or_without_its_controller_is_unfit(tmp_path: Path) -> None:
    some = fake_slurm(tmp_path / "some", without=("sbatch", "scontrol"))
    with pytest.raises(EnvironmentUnfitError, match="no sbatch, scontrol here") as caught:
        SlurmCommands({"PATH": str(some.folder / "bin")})
    assert caught.value.exit_code == ExitCode.UNFIT_ENVIRONMENT
    silent = fake_slurm(tmp_path / "silent")
    silent.fails("squeue", "slurm_load_jobs error: Unable to contact slurm controller (connect failure)\n")
    with pytest.raises(EnvironmentUnfitError, match="Unable to contact slurm controller") as caught:
        SlurmCommands(silent.environment)
    assert "scontrol ping" in str(caught.value)


@pytest.mark.parametrize(
    ("words", "next_step"),
    [
        (
            "invalid partition specified: x\nsbatch: error: Batch job submission failed: Invalid",
            "`sinfo` lists",
        ),
        ("Batch job submission failed: Invalid account or account/partition combination", "`sacctmgr"),
        ("Batch job submission failed: Invalid qos specification", "Set qos"),
        ("Invalid generic resource (gres) specification", "gpus_per_node: 0"),
        ("QOSMaxSubmitJobPerUserLimit", "max_jobs"),
        (f"AssocMaxSubmitJobLimit\nsbatch: error: {VIOLATES}", "max_jobs"),
        (VIOLATES, "`sacctmgr show qos`"),
        ("Batch job submission failed: something new", "--dry-run"),
    ],
)
def test_what_sbatch_refuses_is_told_in_its_words(slurm: FakeSlurm, words: str, next_step: str) -> None:
    slurm.fails("sbatch", f"sbatch: error: {words}\n")
    with pytest.raises(SlurmRefusalError) as caught:
        SlurmCommands(slurm.environment).submit("#!/bin/bash\n")
    assert isinstance(caught.value, UsageError)
    assert next_step in str(caught.value)
    assert words.partition("\n")[0] in str(caught.value)


def test_the_id_of_a_job_is_without_its_cluster(slurm: FakeSlurm) -> None:
    slurm.says("sbatch", "7;green\n")
    assert SlurmCommands(slurm.environment).submit("#!/bin/bash\necho $x\n") == "7"
    assert (slurm.folder / "script-1").read_text() == "#!/bin/bash\necho $x\n"


def test_variables_that_would_move_what_a_job_writes_are_laid_aside(slurm: FakeSlurm) -> None:
    commands = SlurmCommands({**slurm.environment, "SBATCH_OUTPUT": "/x", "SBATCH_PARTITION": "gpu"})
    slurm.folder.joinpath("bin/sbatch").write_text("#!/bin/sh\nenv | grep ^SBATCH_\n")
    assert commands.submit("") == "SBATCH_PARTITION=gpu"


def test_nodes_that_died_are_named_with_slurms_reason(slurm: FakeSlurm) -> None:
    slurm.says(
        "sinfo", "n1|allocated|none\nn2|down*|Not responding\nn2|down*|Not responding\nn3|idle*|none\n"
    )
    down = SlurmCommands(slurm.environment).down("n[1-3]")
    assert down == {"n2": "down: Not responding", "n3": "idle: none"}


@pytest.mark.parametrize(
    ("name", "cause", "begins"),
    [
        ("TIMEOUT", "interrupted", "time limit: job 7_1 on n[1-2]"),
        ("PREEMPTED", "interrupted", "preempted: job 7_1 on n[1-2]"),
        ("CANCELLED", "interrupted", "cancelled: "),
        ("NODE_FAIL", "lost_rank", "node failure: "),
        ("OUT_OF_MEMORY", "out_of_memory", "job 7_1 on n[1-2] used more of its host's memory"),
        ("BOOT_FAIL", "environment", "job 7_1 on n[1-2] did not start"),
        ("FAILED", "environment", "job 7_1 on n[1-2] ended as FAILED and wrote nothing to "),
    ],
)
def test_a_jobs_end_is_a_failure_with_its_reason(tmp_path: Path, name: str, cause: str, begins: str) -> None:
    failure = job_failure(state(name), folder=tmp_path, down={})
    assert failure is not None
    assert (failure.cause, failure.rank) == (cause, None)
    assert failure.message.startswith(begins)
    assert failure.next_step


REFUSED_IMAGE = """\
pyxis: importing docker image: nvcr.io#nvidia/none:1
slurmstepd: error: pyxis: child 12 failed with error code: 1
slurmstepd: error: pyxis: failed to import docker image
slurmstepd: error: pyxis:     [INFO] Fetching image manifest
slurmstepd: error: pyxis:     [ERROR] URL https://nvcr.io/v2 returned error code: 401 Unauthorized
slurmstepd: error: pyxis: couldn't start container
srun: error: n1: task 0: Exited with exit code 1
"""
NO_PYXIS = """\
srun: unrecognized option '--container-image=nvcr.io#nvidia/none:1'
Try "srun --help" for more information
"""


@pytest.mark.parametrize(
    ("said", "message", "next_step"),
    [
        (REFUSED_IMAGE, "[ERROR] URL https://nvcr.io/v2 returned error code: 401", "credentials"),
        (
            "slurmstepd: error: pyxis: failed to import docker image\nslurmstepd: error: pyxis: x\n",
            "failed to import docker image",
            "container_image",
        ),
        (
            NO_PYXIS,
            "this Slurm does not support containers: srun: unrecognized option",
            "remove container_image from",
        ),
    ],
)
def test_an_image_that_cannot_be_had_is_told_in_the_words_of_pyxis(
    said: str, message: str, next_step: str, tmp_path: Path
) -> None:
    (tmp_path / "launcher-output.txt").write_text(said)
    failure = job_failure(state("FAILED"), folder=tmp_path, down={})
    assert failure is not None
    assert (failure.cause, failure.host) == ("environment", "n[1-2]")
    assert message in failure.message
    assert next_step in str(failure.next_step)
    (tmp_path / "rank-0.jsonl").touch()
    assert job_failure(state("FAILED"), folder=tmp_path, down={}) is None  # its ranks know better


def test_where_the_ranks_know_better_a_job_says_nothing(tmp_path: Path) -> None:
    assert job_failure(state("COMPLETED"), folder=tmp_path, down={}) is None
    (tmp_path / "launcher-output.txt").touch()
    assert job_failure(state("FAILED"), folder=tmp_path, down={}) is None
    assert job_failure(state("FORGOTTEN", nodes=""), folder=tmp_path, down={}) is None


def test_a_node_that_died_comes_before_what_slurm_made_of_it(tmp_path: Path) -> None:
    failure = job_failure(state("FAILED"), folder=tmp_path, down={"n2": "down: Not responding"})
    assert failure is not None
    assert (failure.cause, failure.host) == ("lost_rank", "n2")
    assert failure.message == "node failure: job 7_1 on n[1-2] lost n2 (down: Not responding)"


def test_an_allocation_is_seen_and_several_of_us_in_it_refused() -> None:
    inside = {"SLURM_JOB_ID": "7", "SLURM_JOB_NODELIST": "n[1-2]"}
    assert allocated_nodes({}) is None
    assert allocated_nodes(inside) == "n[1-2]"
    assert allocated_nodes({**inside, "SLURM_STEP_NUM_TASKS": "1"}) == "n[1-2]"
    with pytest.raises(UsageError, match="srun started 2 copies of this command"):
        allocated_nodes({**inside, "SLURM_STEP_NUM_TASKS": "2"})


def test_node_ranks_are_slurms_unless_an_order_is_given() -> None:
    environment = {"SLURM_NODEID": "0", "SLURMD_NODENAME": "n1", "GPUPROOF_ADDRESS": "10.0.0.1", "HOME": "/x"}
    known = node_facts(environment, folder="/f", nodes=None)
    assert known["SLURM_NODEID"] == "0"
    assert node_facts(environment, folder="/f", nodes="n2,n1")["SLURM_NODEID"] == "1"
    assert known["GPUPROOF_ADDRESS"] == "10.0.0.1"
    assert "HOME" not in known
    with pytest.raises(EnvironmentUnfitError, match="not a task of the intended job"):
        node_facts(environment, folder="/f", nodes="n2,n3")
    with pytest.raises(EnvironmentUnfitError, match="SLURM_NODEID"):
        node_facts({}, folder="/f", nodes=None)


def start_task(folder: str, *command: str) -> subprocess.Popen[str]:
    words = [sys.executable, "-m", "gpuproof.worker", "slurm-task", f"--folder={folder}"]
    return subprocess.Popen(
        [*words, "--", *command, "--", "sleep", "600"],
        env={**os.environ, "SLURM_NODEID": "3"},
        stderr=subprocess.PIPE,
        text=True,
    )


def test_a_task_fills_in_what_the_node_knows_and_nothing_else() -> None:
    said = ["$GPUPROOF_FOLDER", "$SLURM_NODEID", "$GPUPROOF_HOST", "$$HOME `x` \"'", "$GPUPROOF_PID"]
    task = start_task("/it's $HOME", "sh", "-c", 'printf "%s|" "$$@" >&2; exit 3', "sh", *said)
    _, errors = task.communicate(timeout=300)
    assert errors == f"/it's $HOME|3|{socket.gethostname()}|$HOME `x` \"'|{task.pid}|"
    assert task.returncode == 3


def test_a_task_that_is_told_to_end_ends_what_it_started() -> None:
    task = start_task("/f", "sh", "-c", 'trap "echo bye >&2; exit 4" TERM; echo on >&2; sleep 600 & wait')
    assert task.stderr is not None
    assert task.stderr.readline() == "on\n"
    task.send_signal(signal.SIGTERM)
    _, errors = task.communicate(timeout=300)
    assert errors.splitlines()[-1] == "bye"
    assert task.returncode == 4

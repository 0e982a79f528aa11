"""Steps inside an allocation, against commands that a test answers for: lost nodes, the wrong nodes."""

from __future__ import annotations

import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from fakes.slurm_commands import FakeSlurm, fake_slurm
from gpuproof.base.errors import UsageError
from gpuproof.launchers.base import Launcher
from gpuproof.launchers.failures import host_failure
from gpuproof.launchers.registry import open_launcher
from gpuproof.launchers.slurm.options import SlurmOptions
from gpuproof.launchers.slurm.site import SlurmSite
from gpuproof.records.run import Failure
from gpuproof.store.run import RunDirectory, read_case
from launching import finish
from records_by_hand import case


@pytest.fixture
def slurm(tmp_path: Path) -> FakeSlurm:
    fake = fake_slurm(tmp_path / "slurm")
    fake.says("scontrol", "n1\nn2\n")
    return fake


@contextmanager
def opened(slurm: FakeSlurm, *hosts: str, python: str | None = None) -> Iterator[Launcher]:
    inside = {"SLURM_JOB_ID": "7", "SLURM_JOB_NODELIST": "n[1-2]"}
    site = SlurmSite(options=SlurmOptions(python=python), hosts=hosts)
    with open_launcher(site, environment={**slurm.environment, **inside}) as launcher:
        yield launcher


def test_a_step_goes_to_its_nodes_in_their_order(slurm: FakeSlurm, tmp_path: Path) -> None:
    asked = case(nproc=2, placement={"num_hosts": 2})
    folder = RunDirectory(tmp_path / "quick" / "run_1").begin_case(asked)
    with opened(slurm, "n1", "n2") as launcher:
        assert [place.name for place in launcher.places()] == ["n1", "n2"]
        launched = launcher.start(asked, ["n2", "n1"], folder)
        assert finish(launcher, launched) == 0
    (call,) = slurm.calls("srun")
    assert "--nodelist=n2,n1 --overlap" in call
    assert " --nodes=n2,n1 --folder=" in call
    assert slurm.calls("sbatch") == []
    assert launched.placed is not None
    assert launched.placed.hosts == ("n2", "n1")


def test_a_step_that_lost_a_node_names_it_and_the_node_is_out(slurm: FakeSlurm, tmp_path: Path) -> None:
    slurm.fails("srun", "srun: error: Node failure on n2\n")
    slurm.says("sinfo", "n1|allocated|none\nn2|down*|Not responding\n")
    folder = RunDirectory(tmp_path / "quick" / "run_1").begin_case(case())
    with opened(slurm, "n1", "n2") as launcher:
        launched = launcher.start(case(), ["n2"], folder)
        assert finish(launcher, launched) == 1
        assert list(launcher.lost()) == ["n2"]
    (told,) = read_case(folder).of(Failure)
    assert (told.cause, told.host) == ("lost_rank", "n2")
    assert told.message == "node failure: the step on n2 lost n2 (down: Not responding)"


def test_another_python_takes_the_node_side_as_a_file_of_the_run(slurm: FakeSlurm, tmp_path: Path) -> None:
    run = tmp_path / "quick" / "run_1"
    folder = RunDirectory(run).begin_case(case())
    (run / "gpuproof-node.pyz").write_text("of an older version")
    with opened(slurm, "n1", python="/opt/python") as launcher:
        launched = launcher.start(case(), ["n1"], folder)
        assert finish(launcher, launched) == 0
    assert f"/opt/python {run}/gpuproof-node.pyz slurm-task" in launched.command
    assert zipfile.is_zipfile(run / "gpuproof-node.pyz")


def test_a_run_of_other_nodes_is_refused_with_the_way_to_have_them(slurm: FakeSlurm) -> None:
    with pytest.raises(UsageError) as caught, opened(slurm, "n2", "n3", "n4"):
        pass
    assert "n3, n4 are not in this one" in str(caught.value)
    assert "salloc --nodelist=n2,n3,n4" in str(caught.value)


def test_an_allocation_that_ended_interrupts_its_launch_and_has_no_place_left(
    slurm: FakeSlurm, tmp_path: Path
) -> None:
    slurm.fails("srun", "srun: Check SLURM_JOB_ID environment variable. Expired or invalid job 7\n")
    slurm.says("squeue", "7|7|TIMEOUT|n[1-2]|TimeLimit\n")
    folder = RunDirectory(tmp_path / "quick" / "run_1").begin_case(case())
    with opened(slurm, "n1", "n2") as launcher:
        launched = launcher.start(case(), ["n1"], folder)
        assert finish(launcher, launched) == 1
        assert list(launcher.lost()) == ["n1", "n2"]
        not_begun = host_failure(launcher.lost()["n2"])
    assert (not_begun.cause, not_begun.host) == ("interrupted", "n2")  # nothing is wrong with the node
    assert "salloc --nodelist" in str(not_begun.next_step)
    (told,) = read_case(folder).of(Failure)
    assert (told.cause, told.host) == ("interrupted", "n1")
    assert told.message == "the allocation, job 7, ended TIMEOUT: no further step can start in it"
    assert "--resume" in str(told.next_step)


def test_a_step_that_fails_by_itself_leaves_the_allocation_as_it_is(slurm: FakeSlurm, tmp_path: Path) -> None:
    slurm.fails("srun", "srun: error: n1: task 0: Exited with exit code 1\n")
    slurm.says("squeue", "7|7|RUNNING|n[1-2]|None\n")
    folder = RunDirectory(tmp_path / "quick" / "run_1").begin_case(case())
    with opened(slurm, "n1", "n2") as launcher:
        assert finish(launcher, launcher.start(case(), ["n1"], folder)) == 1
        assert not launcher.lost()
    assert not read_case(folder).of(Failure)

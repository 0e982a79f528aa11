"""What the container's entry point starts: every visible GPU is tested, and a pod without a rank fails."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from gpuproof.cli.main import cli

ENTRYPOINT = Path(__file__).resolve().parents[2] / "containers/entrypoint.sh"
MODEL = ("--model", "resnet50", "--batch-size", "64")
IN_SLURM = {"SLURM_STEP_ID": "0", "SLURM_STEP_NUM_TASKS": "16", "SLURM_STEP_TASKS_PER_NODE": "8(x2)"}


@pytest.fixture
def programs(tmp_path: Path) -> Path:
    """Stand-ins: a torch that sees as many GPUs as GPUS says, and a gpuproof that says what it was asked."""
    for name, text in (
        ("python3", 'echo "$GPUS"'),
        ("gpuproof", 'echo "gpuproof $*"'),
        ("all_perf", "echo perf $*"),
    ):
        path = tmp_path / name
        path.write_text(f"#!/bin/sh\n{text}\n")
        path.chmod(0o755)
    return tmp_path


@pytest.mark.promise("S3.6")
def test_the_dockerfile_has_no_findings() -> None:
    linter = Path(sys.executable).with_name("hadolint")
    found = subprocess.run([linter, ENTRYPOINT.with_name("Dockerfile")], capture_output=True, text=True)
    assert (found.returncode, found.stdout) == (0, "")


@pytest.mark.promise("S3.6")
def test_the_apptainer_recipe_copies_what_is_there_and_its_scripts_are_shell() -> None:
    recipe = ENTRYPOINT.with_name("gpuproof.def").read_text()
    head, *sections = re.split(r"^%", recipe, flags=re.MULTILINE)
    told = {name: body for name, _, body in (section.partition("\n") for section in sections)}
    assert set(told) == {"arguments", "files", "post", "runscript"}
    assert "From: {{ BASE }}" in head
    assert "BASE=" in told["arguments"]
    copied = [line.split() for line in told["files"].splitlines() if line.strip()]
    assert all((ENTRYPOINT.parents[1] / source).exists() for source, _ in copied)
    for script in (told["post"], told["runscript"]):
        assert subprocess.run(["sh", "-n", "-c", script], capture_output=True, text=True).stderr == ""
    assert told["runscript"].split()[1] in {Path(target).name for _, target in copied}


def start(programs: Path, *words: str, **variables: str) -> subprocess.CompletedProcess[str]:
    environment = {"PATH": f"{programs}:{os.defpath}", "GPUS": "8", **variables}
    return subprocess.run(["bash", str(ENTRYPOINT), *words], env=environment, capture_output=True, text=True)


@pytest.mark.promise("S3.7")
def test_options_alone_validate_with_a_process_a_visible_gpu(programs: Path) -> None:
    assert start(programs, *MODEL).stdout == f"gpuproof validate --nproc=8 {' '.join(MODEL)}\n"
    assert start(programs).stdout == "gpuproof validate --nproc=8\n"
    assert start(programs, GPUS="0").stdout == "gpuproof validate\n"
    assert start(programs, "--nproc=8").returncode == 0


@pytest.mark.parametrize(
    ("words", "variables"),
    [
        (("--nproc=4",), {}),
        (("--nproc", "8"), {}),
        (("--devices=0,1",), {}),
        ((), {"RANK": "0", "WORLD_SIZE": "2"}),
        ((), {**IN_SLURM, "SLURM_STEP_TASKS_PER_NODE": "4(x4)"}),
    ],
)
@pytest.mark.promise("S3.10")
def test_gpus_that_would_be_left_unused_fail(
    programs: Path, words: tuple[str, ...], variables: dict[str, str]
) -> None:
    ended = start(programs, *words, **variables)
    assert (ended.returncode, ended.stdout) == (5, "")
    assert "GPUs" in ended.stderr


@pytest.mark.promise("S3.8")
def test_a_launcher_s_ranks_start_one_process_each(programs: Path) -> None:
    ranks = {"RANK": "3", "WORLD_SIZE": "16", "LOCAL_WORLD_SIZE": "8"}
    assert start(programs, *MODEL, **ranks).stdout == f"gpuproof validate {' '.join(MODEL)}\n"
    assert start(programs, **IN_SLURM).stdout == "gpuproof validate\n"
    assert start(programs, GPUS="1", **IN_SLURM).stdout == "gpuproof validate\n"  # --gpus-per-task=1
    assert start(programs, RANK="3").returncode == 5


@pytest.mark.promise("S3.8")
def test_a_pod_that_does_not_know_its_rank_fails(programs: Path) -> None:
    inside = {"KUBERNETES_SERVICE_HOST": "10.0.0.1"}
    ended = start(programs, **inside)
    assert (ended.returncode, ended.stdout) == (5, "")
    assert "does not know its rank" in ended.stderr
    assert start(programs, **inside, NNODES="1").stdout == "gpuproof validate --nproc=8\n"
    assert start(programs, **inside, NNODES="2").returncode == 5


def test_commands_are_run_as_they_stand(programs: Path) -> None:
    assert start(programs, "run", "quick").stdout == "gpuproof run quick\n"
    assert start(programs, "all_perf", "-b", "8").stdout == "perf -b 8\n"


def test_the_base_is_one_digest_and_what_it_lacks_comes_in_tested_versions(tmp_path: Path) -> None:
    folder = ENTRYPOINT.parent
    bases = {
        found
        for name in ("Dockerfile", "gpuproof.def")
        for found in re.findall(r"^(?:ARG|) *BASE=(\S+)", (folder / name).read_text(), flags=re.MULTILINE)
    }
    (base,) = bases
    assert re.search(r"@sha256:[0-9a-f]{64}$", base)
    for name in ("Dockerfile", "gpuproof.def"):
        assert re.search(r"pip install .*-c /opt/gpuproof/constraints-free\.txt", (folder / name).read_text())
    # of numpy, which this Python has, the version is the base's own
    (tmp_path / "c.txt").write_text("numpy==0.1\nno_such.package==1.2\nnvidia_ml_py==0.1\n")
    script = [sys.executable, str(folder / "free_constraints.py"), str(tmp_path / "c.txt")]
    assert subprocess.check_output(script, text=True) == "no_such.package==1.2\n"


def test_documented_commands_keep_results_and_give_shared_memory() -> None:
    text = (ENTRYPOINT.parents[1] / "docs" / "guides" / "kubernetes.md").read_text()
    commands = re.findall(r"docker run [^`\n]*--model[^`\n]*", text)
    assert commands
    for command in commands:
        assert "-v gpuproof-results:/home/gpuproof/results" in command
        assert "--shm-size=" in command
    assert "VOLUME /home/gpuproof/results" in ENTRYPOINT.with_name("Dockerfile").read_text()


def test_commands_of_gpuproof_come_before_programs_of_the_same_name(programs: Path) -> None:
    for command in (*cli.commands, "test"):
        (programs / command).write_text("#!/bin/sh\necho another program\n")
        (programs / command).chmod(0o755)
        assert start(programs, command, "load").stdout == f"gpuproof {command} load\n"


@pytest.mark.promise("S3.6")
def test_what_the_dockerfile_copies_is_in_its_context() -> None:
    root = ENTRYPOINT.parents[1]
    ignored = (root / ".dockerignore").read_text().split()
    assert ignored[0] == "*"
    kept = {line.removeprefix("!") for line in ignored[1:]}
    copies = re.findall(r"^COPY (.+) \S+$", (root / "containers/Dockerfile").read_text(), flags=re.MULTILINE)
    sources = {source for line in copies for source in line.split()}
    assert {source.partition("/")[0] for source in sources} <= kept
    assert all((root / source).exists() for source in sources)

"""What Slurm is given, word by word: a job of one rank, of several nodes, an array in a container, a step."""

from __future__ import annotations

import shlex
import subprocess
from collections.abc import Callable
from dataclasses import replace

import pytest

from gpuproof.launchers.slurm.options import SlurmOptions
from gpuproof.launchers.slurm.text import SlurmNode, gpus_per_node, job_text, step_words
from gpuproof.records.work.window import MonitorSpec
from records_by_hand import case

INSTALLED = SlurmNode(python="/venv/bin/python", worker=("-m", "gpuproof.worker"), run="/shared/quick/run_1")
CARRIED = SlurmNode(python="/opt/$py", worker=("/a b/gpuproof-node.pyz",), run="/a b/100%/it's")
MONITORED = replace(case(placement={"device": "cuda"}), monitor=MonitorSpec(interval_s=0.5))
TWO_NODES = case(nproc=8, placement={"num_hosts": 2, "device": "cuda"})
NAMED = case(nproc=2, placement={"num_hosts": 2, "hosts": ("n2", "n1"), "device": "cuda"})
EVERYTHING = SlurmOptions(
    partition="gpu,big",
    account="lab",
    qos="high",
    reservation="tests",
    constraint="a100&ib",
    exclude="node[03,07]",
    gres="gpu:a100:8",
    cpus_per_task=96,
    mem="0",
    time="1:30:00",
    interface="ib0",
    setup=["module load cuda", 'source "$HOME/env"'],
    extra=["--comment=a test's job", "--contiguous"],
)
IN_CONTAINER = SlurmOptions(
    container_image="nvcr.io#nvidia/pytorch:24.07-py3", container_mounts=["/data:/data:ro"], exclusive=False
)
TEXTS = {
    "one_rank": (SlurmOptions(), MONITORED, INSTALLED, ["/shared/quick/run_1/cases/main/0"]),
    "two_nodes_with_everything": (EVERYTHING, TWO_NODES, INSTALLED, ["/shared/quick/run_1/cases/main/0"]),
    "array_in_container": (IN_CONTAINER, MONITORED, CARRIED, ["/a b/100%/it's/0", "/a b/100%/it's/1"]),
    "named_nodes": (SlurmOptions(gpus_per_node=0), NAMED, INSTALLED, ["/shared/quick/run_1/cases/pair/0"]),
}


@pytest.mark.parametrize("name", TEXTS)
def test_the_script_of_a_job(name: str, golden: Callable[[str, str], None]) -> None:
    options, asked, node, folders = TEXTS[name]
    text = job_text(options, asked, node, name="gpuproof-run_1", folders=folders, port=25000)
    golden(f"slurm/{name}.sh", text)
    subprocess.run(["bash", "-n"], input=text, text=True, check=True)


def test_a_step_inside_an_allocation(golden: Callable[[str, str], None]) -> None:
    words = step_words(
        SlurmOptions(), TWO_NODES, INSTALLED, name="gpuproof-7-1", hosts=["n2", "n1"], folder="/shared/x y"
    )
    golden("slurm/step.txt", f"{shlex.join(words)}\n")


@pytest.mark.parametrize(
    ("asked_for", "placement", "expected"),
    [
        (None, {"device": "auto"}, 4),
        (None, {"device": "cuda", "devices": (0, 1, 2, 5)}, 6),
        (None, {"device": "cpu"}, 0),
        (8, {"device": "cpu"}, 8),
        (0, {"device": "cuda"}, 0),
    ],
)
def test_gpus_are_as_many_as_the_ranks_need_unless_said(
    asked_for: int | None, placement: dict[str, object], expected: int
) -> None:
    options = SlurmOptions(gpus_per_node=asked_for)
    assert gpus_per_node(options, case(nproc=4, placement=placement)) == expected

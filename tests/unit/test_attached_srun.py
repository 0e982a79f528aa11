"""Ranks that srun started, a task each: what Slurm says becomes RANK and its like, unless those say it."""

from __future__ import annotations

import pytest

from gpuproof.launchers.surroundings import first_node, is_follower, ranks_of_srun, tasks_per_node

BATCH = {
    "SLURM_JOB_ID": "12",
    "SLURM_PROCID": "0",
    "SLURM_LOCALID": "0",
    "SLURM_NODEID": "0",
    "SLURM_NTASKS": "6",
}
TASK = {
    **BATCH,
    **{"SLURM_PROCID": "5", "SLURM_LOCALID": "1", "SLURM_NODEID": "2"},
    **{"SLURM_STEP_ID": "3", "SLURM_STEP_NUM_TASKS": "6", "SLURM_STEP_TASKS_PER_NODE": "2(x3)"},
    "SLURM_STEP_NODELIST": "node[07,09-10]",
}


def test_a_task_of_srun_is_a_rank() -> None:
    ranks = ranks_of_srun(TASK)
    assert ranks == {
        **{"RANK": "5", "WORLD_SIZE": "6", "LOCAL_RANK": "1", "LOCAL_WORLD_SIZE": "2", "NODE_RANK": "2"},
        **{"MASTER_ADDR": "node07", "MASTER_PORT": "20087"},
    }
    assert is_follower(ranks)


def test_all_tasks_of_a_step_meet_at_one_place_and_other_steps_elsewhere() -> None:
    other = ranks_of_srun({**TASK, "SLURM_PROCID": "0", "SLURM_LOCALID": "0", "SLURM_NODEID": "0"})
    assert (other["MASTER_ADDR"], other["MASTER_PORT"]) == ("node07", "20087")
    assert ranks_of_srun({**TASK, "SLURM_STEP_ID": "4"})["MASTER_PORT"] != "20087"


def test_where_ranks_meet_can_be_said() -> None:
    ranks = ranks_of_srun({**TASK, "MASTER_ADDR": "10.0.0.1"})
    assert "MASTER_ADDR" not in ranks
    assert ranks["MASTER_PORT"] == "20087"


@pytest.mark.parametrize(
    "environment",
    [
        {},
        BATCH,
        {**TASK, "SLURM_STEP_NUM_TASKS": "1"},
        {**TASK, "RANK": "0", "WORLD_SIZE": "2"},
        {**TASK, "WORLD_SIZE": "1"},
    ],
    ids=["no Slurm", "a batch script", "one task", "torchrun in a task", "set by hand"],
)
def test_others_are_none(environment: dict[str, str]) -> None:
    assert ranks_of_srun(environment) == {}


@pytest.mark.parametrize(
    ("nodes", "first"),
    [("node[01-04,07]", "node01"), ("a,b[1-2]", "a"), ("r[2-3]n[08,10],x", "r2n08"), ("gpu-7", "gpu-7")],
)
def test_the_first_node_of_a_list(nodes: str, first: str) -> None:
    assert first_node(nodes) == first


def test_numbers_of_tasks_are_written_out() -> None:
    assert tasks_per_node("8(x2),4,1(x2)") == [8, 8, 4, 1, 1]
    assert tasks_per_node("") == []

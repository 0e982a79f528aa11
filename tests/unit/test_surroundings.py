"""Who started a process and as which of how many: a table of launchers, and of what contradicts itself."""

from __future__ import annotations

import pytest

from gpuproof.base.errors import UsageError
from gpuproof.launchers.surroundings import ranks_around, take_ranks

SLURM = {
    **{"SLURM_JOB_ID": "12", "SLURM_PROCID": "1", "SLURM_LOCALID": "1", "SLURM_NODEID": "0"},
    **{"SLURM_STEP_ID": "0", "SLURM_STEP_NUM_TASKS": "2", "SLURM_STEP_TASKS_PER_NODE": "2"},
    "SLURM_STEP_NODELIST": "node1",
}
OPEN_MPI = {
    **{"OMPI_COMM_WORLD_RANK": "3", "OMPI_COMM_WORLD_SIZE": "4"},
    **{"OMPI_COMM_WORLD_LOCAL_RANK": "1", "OMPI_COMM_WORLD_LOCAL_SIZE": "2"},
}
ONE_HOST_MPI = {**OPEN_MPI, "OMPI_COMM_WORLD_LOCAL_RANK": "3", "OMPI_COMM_WORLD_LOCAL_SIZE": "4"}
MPICH = {"PMI_RANK": "0", "PMI_SIZE": "2", "MPI_LOCALRANKID": "0", "MPI_LOCALNRANKS": "2"}
POD = {"KUBERNETES_SERVICE_HOST": "10.0.0.1", "HOSTNAME": "check-7d9f6c5b8-x2x9z"}
STATEFUL = {**POD, "HOSTNAME": "validate-2"}
INDEXED = {**POD, "JOB_COMPLETION_INDEX": "1"}
MASTER = {"MASTER_ADDR": "validate-0.validate"}
TORCHRUN = {"TORCHELASTIC_RUN_ID": "none"}
BARE: tuple[str | None, ...] = (None, None, None)


@pytest.mark.parametrize(
    ("environment", "expected"),
    [
        ({}, BARE),
        ({"RANK": "1", "WORLD_SIZE": "4"}, BARE),  # explicit: kept as they are
        ({**SLURM, **TORCHRUN, "RANK": "3", "WORLD_SIZE": "16"}, BARE),  # torchrun in each of two tasks
        ({**SLURM, **TORCHRUN, "RANK": "0", "WORLD_SIZE": "2"}, BARE),  # which numbers nodes as they come
        ({**SLURM, "RANK": "3", "WORLD_SIZE": "16", "LOCAL_WORLD_SIZE": "8"}, BARE),  # as many on each
        ({**OPEN_MPI, "RANK": "3", "WORLD_SIZE": "4"}, BARE),  # the same twice
        (
            {**SLURM, "SLURM_STEP_NUM_TASKS": "1", "RANK": "0", "WORLD_SIZE": "2"},
            BARE,
        ),  # in a shell of srun's
        (
            {"SLURM_NTASKS": "4", **TORCHRUN, "RANK": "1", "WORLD_SIZE": "2"},
            BARE,
        ),  # torchrun in a job of four
        (
            {"SLURM_NTASKS": "2", "SLURM_PROCID": "0", "RANK": "1", "WORLD_SIZE": "2"},
            BARE,
        ),  # by a batch script
        (
            {**SLURM, "SLURM_NTASKS": "4", "RANK": "1", "WORLD_SIZE": "2"},
            BARE,
        ),  # a step of two in a job of four
        ({"SLURM_NTASKS": "4"}, BARE),
        (SLURM, ("1", "2", "1")),
        ({**SLURM, **POD}, ("1", "2", "1")),  # Slurm before Kubernetes
        ({**SLURM, "PMI_RANK": "1", "PMI_SIZE": "2"}, ("1", "2", "1")),  # srun --mpi=pmi2 says the same twice
        ({**SLURM, "SLURM_STEP_NUM_TASKS": "1"}, BARE),
        ({**STATEFUL, **MASTER, "WORLD_SIZE": "4"}, ("2", "4", "0")),
        ({**INDEXED, **MASTER, "WORLD_SIZE": "2"}, ("1", "2", "0")),
        ({**INDEXED, **MASTER, "WORLD_SIZE": "2", "HOSTNAME": "validate-7"}, ("1", "2", "0")),
        ({**POD, "RANK": "0", "WORLD_SIZE": "2"}, BARE),  # PyTorchJob
        (POD, BARE),  # a pod by itself
        ({**STATEFUL, "WORLD_SIZE": "1"}, BARE),
        ({**OPEN_MPI, **MASTER}, ("3", "4", "1")),
        ({**OPEN_MPI, **POD, **MASTER}, ("3", "4", "1")),  # an MPIJob
        (ONE_HOST_MPI, ("3", "4", "3")),
        (MPICH, ("0", "2", "0")),
        ({**OPEN_MPI, "OMPI_COMM_WORLD_SIZE": "1"}, BARE),
    ],
)
@pytest.mark.promise("S3.9")
def test_ranks_come_from_the_first_launcher_that_has_them(
    environment: dict[str, str], expected: tuple[str | None, ...]
) -> None:
    found = ranks_around(environment)

    assert (found.get("RANK"), found.get("WORLD_SIZE"), found.get("LOCAL_RANK")) == expected


@pytest.mark.parametrize(
    ("environment", "cause"),
    [
        ({"RANK": "3"}, "RANK=3 is set but WORLD_SIZE is not"),
        ({**SLURM, "WORLD_SIZE": "1"}, "WORLD_SIZE=1 is set, but Slurm's SLURM_STEP_NUM_TASKS is 2"),
        ({**SLURM, "RANK": "0"}, "WORLD_SIZE=1 is set"),
        (
            {"SLURM_NTASKS": "4", "RANK": "0", "WORLD_SIZE": "2"},
            "SLURM_NTASKS is 4: some .* unset SLURM_NTASKS",
        ),
        (
            {"SLURM_NTASKS": "2", "RANK": "0", "WORLD_SIZE": "4"},
            "SLURM_NTASKS is 2: ranks would wait for others",
        ),
        ({**OPEN_MPI, "RANK": "0", "WORLD_SIZE": "2"}, "Open MPI's OMPI_COMM_WORLD_SIZE is 4"),
        (
            {**SLURM, "RANK": "1", "WORLD_SIZE": "16"},
            "SLURM_STEP_NUM_TASKS is 2: ranks would wait for others",
        ),
        ({**OPEN_MPI, "RANK": "3", "WORLD_SIZE": "8", "LOCAL_WORLD_SIZE": "1"}, "WORLD_SIZE=8 is set"),
        ({**OPEN_MPI, "RANK": "0", "WORLD_SIZE": "4"}, "RANK=0 is set, but Open MPI's .* is 3"),
        ({**SLURM, "RANK": "0", "WORLD_SIZE": "2"}, "RANK=0 is set, but Slurm's SLURM_PROCID is 1"),
        ({**SLURM, **OPEN_MPI}, "Slurm reports rank 1 of 2, but Open MPI reports 3 of 4"),
        (STATEFUL, "this pod has index 2 in a job, but WORLD_SIZE is not set"),
        ({**STATEFUL, "HOSTNAME": "validate-0"}, "this pod has index 0"),
        (INDEXED, "this pod has index 1"),
        ({**POD, **MASTER, "WORLD_SIZE": "2"}, "nothing indicates which of the pods"),
        ({**INDEXED, "WORLD_SIZE": "2"}, "MASTER_ADDR is not set"),
        (OPEN_MPI, "MASTER_ADDR is not set"),
        ({"PMI_RANK": "0"}, "PMI_SIZE is not set"),
        ({"PMI_RANK": "1", "PMI_SIZE": "2"}, "does not assign GPUs to ranks"),
        ({"WORLD_SIZE": "two"}, "is not an integer"),
    ],
)
def test_a_contradiction_is_no_world_of_one(environment: dict[str, str], cause: str) -> None:
    with pytest.raises(UsageError, match=cause):
        ranks_around(environment)


def test_where_ranks_meet_is_kept() -> None:
    assert ranks_around(ONE_HOST_MPI)["MASTER_ADDR"] == "127.0.0.1"
    found = ranks_around({**ONE_HOST_MPI, "MASTER_ADDR": "10.0.0.1", "MASTER_PORT": "4000"})
    assert not {"MASTER_ADDR", "MASTER_PORT"} & found.keys()


@pytest.mark.parametrize(
    ("environment", "is_told"),
    [
        (POD, True),
        ({**POD, "WORLD_SIZE": "1"}, False),
        ({**POD, "RANK": "0", "WORLD_SIZE": "2"}, False),
        ({**STATEFUL, **MASTER, "WORLD_SIZE": "4"}, False),
        ({}, False),
    ],
)
def test_a_pod_that_nobody_gave_a_rank_is_told_that_it_is_alone(
    environment: dict[str, str], is_told: bool, capsys: pytest.CaptureFixture[str]
) -> None:
    expected = {**environment, **ranks_around(environment)}
    around = dict(environment)
    take_ranks(around)
    assert around == expected
    assert ("this pod is assumed to be alone" in capsys.readouterr().err) is is_told

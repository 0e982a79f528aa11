"""What is asked of Slurm for a run, apart from what the recipe says: partition, time, containers and so on.

In: a YAML file (`--on slurm:FILE`). Out: `SlurmOptions`, or one `ConfigError` with every mistake by line.
How many nodes and ranks a job has is the recipe's (`distributed.nodes`, `distributed.nproc`).
"""

from __future__ import annotations

from typing import Annotated

from pydantic import Field, field_validator

from gpuproof.config.entries import StrictModel, Text, open_document, read_as

Word = Annotated[str, Field(min_length=1, max_length=200, pattern=r"^[^\s\x00-\x1f\x7f-]\S*$")]
"""One word that no option parser takes for an option."""
SbatchOption = Annotated[str, Field(max_length=1000, pattern=r"^--[a-z][a-z-]*(=[^\x00-\x1f\x7f]+)?$")]
OURS = frozenset(
    {
        *("nodes", "ntasks", "ntasks-per-node", "array", "output", "error", "open-mode", "job-name", "wrap"),
        *("requeue", "no-requeue", "chdir", "parsable", "wait", "test-only", "input", "export", "nodelist"),
    }
)
"""Options of sbatch that are decided by the recipe, or that the launcher works by."""


class SlurmOptions(StrictModel):
    """Options of every job of a run; null leaves it to the cluster."""

    partition: Word | None = None
    """Partition, or several with commas between."""
    account: Word | None = None
    """Account that is charged."""
    qos: Word | None = None
    """Quality of service."""
    reservation: Word | None = None
    """Reservation to run in."""
    constraint: Text | None = None
    """Features that nodes must have, as in a100&ib."""
    exclude: Word | None = None
    """Nodes not to run on, as in node[03,07]."""
    nodelist: Word | None = None
    """Nodes that each job is to have, as many as it asks for (distributed.nodes), as in node[01-04]."""
    nodes: int | None = Field(default=None, ge=1, le=100_000)
    """Nodes of the allocation that gpuproof validate takes; for other jobs distributed.nodes says it."""
    gpus_per_node: int | None = Field(default=None, ge=0, le=1024)
    """GPUs of each node; null is one a rank (none under distributed.device: cpu), 0 asks for none."""
    gres: Word | None = None
    """Generic resources of each node in Slurm's words, as in gpu:a100:8; then gpus_per_node is not used."""
    cpus_per_task: int | None = Field(default=None, ge=1, le=4096)
    """Processors of each node; null is all of them where exclusive is true."""
    mem: Word | None = None
    """Memory of each node, as in 64G; 0 is all of it."""
    time: Word | None = None
    """Time limit of each job, as in 30, 1:30:00 or 1-0; one that reaches it can be resumed."""
    exclusive: bool = True
    """Whether a job has its nodes to itself; with other jobs beside it the figures are doubtful."""
    interface: Word | None = None
    """Network interface for gloo and NCCL, as in GLOO_SOCKET_IFNAME."""
    python: Text | None = None
    """The Python with torch on the nodes; null is --python, else the one that runs gpuproof, or python3 in a
    container."""
    container_image: Text | None = None
    """Image to run in, by Pyxis and Enroot (srun --container-image)."""
    container_mounts: list[Text] = Field(default_factory=list)
    """What the container sees besides the run's directory, each as FROM:TO or FROM:TO:ro."""
    setup: list[Text] = Field(default_factory=list)
    """Lines of shell before the ranks are started, such as module load cuda."""
    max_jobs: int = Field(default=100, ge=1, le=100_000)
    """Jobs in the queue at the same time; elements of an array count."""
    pending_limit_s: float | None = Field(default=None, gt=0)
    """Seconds after which a job that has not begun is cancelled and counts as failed; null waits on."""
    extra: list[SbatchOption] = Field(default_factory=list)
    """Further options of sbatch, each as --name=value."""

    @field_validator("time", "mem", mode="before")
    @classmethod
    def _take_numbers(cls, value: object) -> object:
        """Take `time: 30` and `mem: 0` as Slurm does."""
        is_number = isinstance(value, int) and not isinstance(value, bool)
        return str(value) if is_number else value

    @field_validator("extra")
    @classmethod
    def _leave_ours_alone(cls, options: list[str]) -> list[str]:
        for option in options:
            name = option[2:].partition("=")[0]
            if name in OURS:
                raise ValueError(f"--{name} is set by the recipe or by gpuproof itself")
            if name.replace("-", "_") in cls.model_fields:
                raise ValueError(f"--{name} has a key of its own")
        return options


def load_slurm_options(path: str) -> SlurmOptions:
    """Read a file of options; an empty one changes nothing.

    Raises:
        ConfigError: it cannot be read, or is wrong; every mistake with its line.
    """
    document = open_document(path, what="Slurm options")
    return SlurmOptions() if document.data is None else read_as(SlurmOptions, document)

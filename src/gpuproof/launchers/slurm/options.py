"""What a run requests from Slurm, in addition to the recipe: partition, time, containers and so on.

In: a YAML file (`--on slurm:FILE`). Out: `SlurmOptions`, or one `ConfigError` that lists every mistake with
its line. The recipe defines how many nodes and ranks a job has (`distributed.nodes`, `distributed.nproc`).
"""

from __future__ import annotations

from typing import Annotated

from pydantic import Field, field_validator

from gpuproof.config.entries import StrictModel, Text, open_document, read_as

Word = Annotated[str, Field(min_length=1, max_length=200, pattern=r"^[^\s\x00-\x1f\x7f-]\S*$")]
"""A single word that no option parser mistakes for an option."""
SbatchOption = Annotated[str, Field(max_length=1000, pattern=r"^--[a-z][a-z-]*(=[^\x00-\x1f\x7f]+)?$")]
OURS = frozenset(
    {
        *("nodes", "ntasks", "ntasks-per-node", "array", "output", "error", "open-mode", "job-name", "wrap"),
        *("requeue", "no-requeue", "chdir", "parsable", "wait", "test-only", "input", "export", "nodelist"),
    }
)
"""sbatch options that are set by the recipe, or on which the launcher depends."""


class SlurmOptions(StrictModel):
    """Options for every job in a run; null uses the cluster's default."""

    partition: Word | None = None
    """Partition, or several separated by commas."""
    account: Word | None = None
    """Account to be charged."""
    qos: Word | None = None
    """Quality of service."""
    reservation: Word | None = None
    """Reservation to run in."""
    constraint: Text | None = None
    """Features that the nodes must have, e.g. a100&ib."""
    exclude: Word | None = None
    """Nodes to avoid, e.g. node[03,07]."""
    nodelist: Word | None = None
    """Nodes for each job, exactly as many as it requests (distributed.nodes), e.g. node[01-04]."""
    nodes: int | None = Field(default=None, ge=1, le=100_000)
    """Number of nodes in the allocation that gpuproof validate uses; other jobs use distributed.nodes."""
    gpus_per_node: int | None = Field(default=None, ge=0, le=1024)
    """GPUs per node; null requests one per rank (none with distributed.device: cpu), 0 requests none."""
    gres: Word | None = None
    """Generic resources per node in Slurm's notation, e.g. gpu:a100:8; gpus_per_node is then ignored."""
    cpus_per_task: int | None = Field(default=None, ge=1, le=4096)
    """CPUs per node; null means all of them when exclusive is true."""
    mem: Word | None = None
    """Memory per node, e.g. 64G; 0 means all of it."""
    time: Word | None = None
    """Time limit of each job, e.g. 30, 1:30:00 or 1-0; a job that reaches it can be resumed."""
    exclusive: bool = True
    """Whether a job has its nodes to itself; if it shares them with other jobs, results are unreliable."""
    interface: Word | None = None
    """Network interface for gloo and NCCL, as in GLOO_SOCKET_IFNAME."""
    python: Text | None = None
    """The Python on the nodes that has torch; null uses --python, else the Python that runs gpuproof, or
    python3 in a container."""
    container_image: Text | None = None
    """Container image to run in, with Pyxis and Enroot (srun --container-image)."""
    container_mounts: list[Text] = Field(default_factory=list)
    """Paths that the container can access in addition to the run directory, each as FROM:TO or FROM:TO:ro."""
    setup: list[Text] = Field(default_factory=list)
    """Shell lines to run before the ranks start, such as module load cuda."""
    max_jobs: int = Field(default=100, ge=1, le=100_000)
    """Maximum number of jobs in the queue at the same time; each array element counts as one."""
    pending_limit_s: float | None = Field(default=None, gt=0)
    """Seconds after which a job that has not started is cancelled and counts as failed; null sets no
    limit."""
    extra: list[SbatchOption] = Field(default_factory=list)
    """Additional sbatch options, each as --name=value."""

    @field_validator("time", "mem", mode="before")
    @classmethod
    def _take_numbers(cls, value: object) -> object:
        """Accept `time: 30` and `mem: 0`, as Slurm does."""
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
                raise ValueError(f"--{name} has its own key")
        return options


def load_slurm_options(path: str) -> SlurmOptions:
    """Read an options file; an empty one changes nothing.

    Raises:
        ConfigError: the file cannot be read, or is wrong; lists every mistake with its line.
    """
    document = open_document(path, what="Slurm options")
    return SlurmOptions() if document.data is None else read_as(SlurmOptions, document)

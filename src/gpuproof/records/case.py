"""The case: the workload of one worker launch, and where it runs, as immutable JSON.

A suite creates a case on the control side, where it is validated; every rank reads it. It is a worker's
entire input: no other flag, environment variable or file changes what is measured. Where the launch actually
ran, and which device it was assigned, is stored next to its spec (`placed.json`).
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

from gpuproof.records.codec import Host, Positive
from gpuproof.records.journal import record_kind
from gpuproof.records.work.collective import CollectiveSpec
from gpuproof.records.work.command import CommandSpec
from gpuproof.records.work.data import OWN_MODULE, DataSpec, InferenceSpec, ModelSpec
from gpuproof.records.work.parallel import ParallelSpec
from gpuproof.records.work.probe import ProbeSpec
from gpuproof.records.work.serving import ServingSpec
from gpuproof.records.work.training import (
    STORED_TYPES,
    Checkpointing,
    Graphs,
    StoredType,
    TrainingSpec,
    Weights,
)
from gpuproof.records.work.window import BATCHES_VARY, MonitorSpec, ProfilingSpec, WindowSpec

CASE_SCHEMA_VERSION = 5
"""2: `placement` replaces `host` and `nproc`, `nodes`, `device` and `devices` of `parallel` (2026-11). 3:
`work` replaces `kind` and everything that describes what is run; `monitor` replaces its two intervals
(2026-11). 4: recipe blocks are stored unchanged, for probes, collectives and serving (2026-11). 5:
`inference.weights`, and `inference` of serving; weights were fp32 before (2026-11)."""

WorkKind = Literal["training", "inference", "serving", "collective", "probe", "command"]
StartMode = Literal["exec", "fork"]
OWN_DEVICE_TYPES = ("cuda", "xpu", "mps", "cpu")
"""Device types that the worker itself supports; packages may add more, named as in torch."""
Exclusive = Literal["hosts", "devices", "nothing"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Placement:
    """Where a case should run; `placed.json` next to its spec records where it actually ran."""

    hosts: tuple[Host, ...] = ()
    """Host names in order of node rank; if empty, any `num_hosts` hosts may be used."""
    num_hosts: Positive = 1
    """Number of hosts for this one job; each runs `ranks_per_host` ranks."""
    ranks_per_host: Positive = 1
    device: str = "auto"
    """A device type, or auto: the first available of CUDA, XPU and MPS, else the CPU."""
    devices: tuple[int, ...] | None = None
    """The devices on each host, in the order in which its ranks use them; None means the first ones."""
    exclusive: Exclusive = "hosts"
    """Whether the job has exclusive use of its hosts, exclusive use of its devices only, or shares both with
    other jobs of its kind."""
    share: DeviceShare | None = None
    """How the device is selected on the host; with None, only `devices` and the rank are used."""

    def __post_init__(self) -> None:
        if self.devices is not None and len(self.devices) < self.ranks_per_host:
            raise ValueError(
                f"ranks per host: {self.ranks_per_host}, but devices listed: {len(self.devices)}"
            )

    @property
    def num_ranks(self) -> int:
        """Total number of ranks on all hosts."""
        return self.num_hosts * self.ranks_per_host

    @property
    def gpus_per_host(self) -> int:
        """Number of GPUs needed on each host: one per listed device, or else one per rank; 0 on CPUs."""
        if self.device == "cpu":
            return 0
        return self.ranks_per_host if self.devices is None else max(self.devices) + 1

    @property
    def host(self) -> str | None:
        """The only host; None if no host or several are listed."""
        return self.hosts[0] if len(self.hosts) == 1 else None


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelWork:
    """Options shared by every kind of workload that runs a model."""

    kind: WorkKind
    model: ModelSpec
    data: DataSpec
    training: TrainingSpec
    window: WindowSpec
    profiling: ProfilingSpec
    data_file: str | None = None
    """Input that the control side prepared (a tensor file, a listing of images or of tokens), relative to the
    run directory; None means that samples are generated."""
    parallel: ParallelSpec

    @property
    def trains(self) -> bool:
        """Whether a step has a backward pass and updates weights."""
        return False

    @property
    def _how(self) -> TrainingSpec | InferenceSpec:
        block: InferenceSpec | None = getattr(self, "inference", None)
        return self.training if block is None else block

    @property
    def weights(self) -> Weights:
        """How weights are stored."""
        return self._how.weights

    @property
    def stored_type(self) -> StoredType:
        """Type of the stored weights; with fp8, the type of the weights that are not used in fp8 matmuls."""
        is_own = self.model.name.startswith(OWN_MODULE)
        lowered = self.weights == "precision" and not (is_own and not self.trains)
        return STORED_TYPES.get(self.training.precision, "float32") if lowered else "float32"

    @property
    def measures_latency(self) -> bool:
        """Whether to wait for each step; its time is then a latency, and its rate is not a throughput."""
        return False

    @property
    def generates(self) -> bool:
        """Whether text is generated with a key-value cache: in prefill, decode, or both for requests."""
        return False

    @property
    def steps_of_a_generation(self) -> int | None:
        """Number of steps that add a token to the cache before its reset to the prompt; None if none do."""
        return None

    @property
    def reason_steps_vary(self) -> str | None:
        """Why no single step represents all steps, as a captured one must; None if all are identical."""
        return None

    @property
    def cuda_graphs(self) -> Graphs:
        """Whether steps should be captured."""
        return (self._how if self.generates else self.training).cuda_graphs

    @property
    def graphs_key(self) -> str:
        """The recipe key that controls this."""
        return "inference.cuda_graphs" if self.generates else "training.cuda_graphs"

    @property
    def micro_batches(self) -> int:
        """Batches per step: the number between two weight updates, or 1."""
        return 1

    @property
    def activation_checkpointing(self) -> Checkpointing:
        """The activations that are recomputed in the backward pass."""
        return "none"


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainingWork(ModelWork):
    """Train a model, and measure its steps."""

    kind: Literal["training"] = "training"

    @property
    def num_replicas(self) -> int:
        """Number of devices on which one process trains, each with a copy of the model, as in TensorFlow."""
        return self.parallel.nproc if self.training.framework == "tensorflow" else 1

    @property
    def trains(self) -> bool:
        """Whether a step has a backward pass and updates weights: always true."""
        return True

    @property
    def micro_batches(self) -> int:
        """Number of batches between two weight updates."""
        return self.parallel.gradient_accumulation_steps

    @property
    def activation_checkpointing(self) -> Checkpointing:
        """The activations that are recomputed in the backward pass."""
        return self.training.activation_checkpointing


@dataclass(frozen=True, slots=True, kw_only=True)
class InferenceWork(ModelWork):
    """Run a model's forward pass, and measure its steps."""

    kind: Literal["inference"] = "inference"
    inference: InferenceSpec

    @property
    def measures_latency(self) -> bool:
        """Whether to wait for each step; its time is then a latency, and its rate is not a throughput."""
        return self.inference.mode == "latency"

    @property
    def generates(self) -> bool:
        """Whether a step is prefill or decode."""
        return self.inference.phase != "forward"

    @property
    def steps_of_a_generation(self) -> int | None:
        """Number of decode steps that each add a token to the cache before it is reset to the prompt."""
        return self.inference.new_tokens if self.inference.phase == "decode" else None


@dataclass(frozen=True, slots=True, kw_only=True)
class ServingWork(ModelWork):
    """Send requests and measure the responses, from the worker's own model or from an endpoint."""

    kind: Literal["serving"] = "serving"
    serving: ServingSpec
    inference: InferenceSpec = field(default_factory=InferenceSpec)
    """Settings for running the worker's own model; its phases are the same as for `serving`."""
    arrival_seed: int | None = None
    """Seed for this launch's arrivals and prompts; different for each launch of the run.

    None in runs older than 2026-12, when each rate was evaluated with a single launch.
    """

    def seed_of(self, replicate: int) -> int:
        """Return the seed of a launch's arrivals and prompts."""
        return self.training.seed + replicate if self.arrival_seed is None else self.arrival_seed

    @property
    def generates(self) -> bool:
        """Whether requests are prompts for which this case's own model generates new tokens."""
        return self.serving.makes_text

    @property
    def reason_steps_vary(self) -> str | None:
        """The reason why requests vary, unless there is a graph for each batch size."""
        return None if self.generates else BATCHES_VARY


@dataclass(frozen=True, slots=True, kw_only=True)
class CollectiveWork:
    """Measure collective operations over all ranks, without a model."""

    kind: Literal["collective"] = "collective"
    collective: CollectiveSpec
    parallel: ParallelSpec


@dataclass(frozen=True, slots=True, kw_only=True)
class ProbeWork:
    """Measure one property of devices, links or a disk, without a model."""

    kind: Literal["probe"] = "probe"
    probe: ProbeSpec
    parallel: ParallelSpec


@dataclass(frozen=True, slots=True, kw_only=True)
class CommandWork:
    """Run a user's command under the sampler, and track all the processes that it starts."""

    kind: Literal["command"] = "command"
    command: CommandSpec
    parallel: ParallelSpec


Work = TrainingWork | InferenceWork | ServingWork | CollectiveWork | ProbeWork | CommandWork
"""The workload of a launch; in JSON, `kind` distinguishes the types."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """One launch: a replicate of one point of a suite."""

    schema_version: int
    case_id: str
    replicate: int
    capture_env: bool
    placement: Placement = field(default_factory=Placement)
    monitor: MonitorSpec | None = None
    """Monitoring settings; None disables monitoring of devices and host during the launch."""
    start: StartMode = "exec"
    """How the process is created: from scratch, or forked from one that has already imported torch."""
    after: tuple[tuple[str, int], ...] = ()
    """Launches (case and replicate) that must finish before this one starts."""
    work: Work

    @property
    def kind(self) -> WorkKind:
        """The kind of workload of this case."""
        return self.work.kind

    @property
    def command(self) -> CommandSpec | None:
        """The command that the launch runs; None if it does other work."""
        return getattr(self.work, "command", None)

    @property
    def model_work(self) -> ModelWork:
        """The workload of a case that runs a model.

        Raises:
            TypeError: the case does not run a model.
        """
        if not isinstance(self.work, ModelWork):
            raise TypeError(f"{self.case_id} is {self.kind}, which does not run a model")
        return self.work

    @property
    def measures_latency(self) -> bool:
        """Whether to wait for each step; its time is then a latency, and its rate is not a throughput."""
        return isinstance(self.work, ModelWork) and self.work.measures_latency

    @property
    def data_file(self) -> str | None:
        """Data file that the control side writes to the run directory for the case; None if not needed."""
        return self.work.data_file if isinstance(self.work, ModelWork) else None


@dataclass(frozen=True, slots=True, kw_only=True)
class Placed:
    """Where a launch actually ran."""

    hosts: tuple[Host, ...]
    """Hosts in order of node rank: this machine with its own name, other hosts with their inventory names."""
    ranks_per_host: Positive
    address: str | None = None
    """The address and port for the rendezvous of the ranks; None for a single rank."""
    port: int | None = None
    beside: tuple[tuple[str, int], ...] = ()
    """Launches that were running on the same hosts when this one started."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceShare:
    """How a case's device is selected at start: the free one with the most free memory."""

    cases_at_once: int = 1
    """Number of cases of this run that run concurrently on the host; each device gets one before any gets a
    second."""
    min_free_bytes: int | None = None
    """Free memory that the device must have beyond what other cases will still use; None means no
    requirement."""
    wait_s: float = 300.0
    """How long to wait, before the case fails, for memory in use by something other than this run's cases."""


@record_kind("device_taken")
@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceTaken:
    """The device assigned to a case, and the facts known about it at that time."""

    rank: int
    physical_index: int
    framework_index: int | None
    name: str
    uuid: str | None
    free_bytes: int | None
    """Free memory of the device; None if the driver does not report it."""
    cases_per_device: int
    """Maximum number of cases of this run that the device may run concurrently."""
    beside: int
    """Number of cases that the device was already running."""
    waited_s: float
    monotonic_s: float

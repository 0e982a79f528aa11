"""The case: what one launch of a worker is asked to do, and where it ran, as immutable JSON.

A case is made by a suite on the control side, checked there, and read by every rank. It is the whole of a
worker's input: no other flag, environment variable or file changes what is measured. Where the launch really
ran, and which device it was given among others, stands beside its spec (`placed.json`).
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
"""2: `placement` for `host` and for `nproc`, `nodes`, `device` and `devices` of `parallel` (2026-11).
3: `work` for `kind` and all that says what is run; `monitor` for its two intervals (2026-11).
4: blocks of the recipe as they are, for probes, collectives and serving (2026-11).
5: `inference.weights`, and `inference` of serving; weights were fp32 before (2026-11)."""

WorkKind = Literal["training", "inference", "serving", "collective", "probe", "command"]
StartMode = Literal["exec", "fork"]
OWN_DEVICE_TYPES = ("cuda", "xpu", "mps", "cpu")
"""Types of device that the worker knows by itself; packages may bring others, named as torch names them."""
Exclusive = Literal["hosts", "devices", "nothing"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Placement:
    """Where a case is to run; `placed.json` beside its spec says where it did."""

    hosts: tuple[Host, ...] = ()
    """Hosts by name, in the order of node ranks; empty where any `num_hosts` will do."""
    num_hosts: Positive = 1
    """Hosts over which this is one job, with `ranks_per_host` ranks on each."""
    ranks_per_host: Positive = 1
    device: str = "auto"
    """A type of device, or auto: the first of CUDA, XPU and MPS that is there, else the processor."""
    devices: tuple[int, ...] | None = None
    """Devices of each host as its ranks count them; None is the first ones."""
    exclusive: Exclusive = "hosts"
    """Whether its hosts run nothing else meanwhile, only its devices do, or others of its kind share both."""
    share: DeviceShare | None = None
    """How its device is found on the host; None is by `devices` and rank alone."""

    @property
    def num_ranks(self) -> int:
        """Ranks on all hosts together."""
        return self.num_hosts * self.ranks_per_host

    @property
    def gpus_per_host(self) -> int:
        """GPUs that each host needs: as many as are named, else one a rank; none on processors."""
        if self.device == "cpu":
            return 0
        return self.ranks_per_host if self.devices is None else max(self.devices) + 1

    @property
    def host(self) -> str | None:
        """The one host that it names; None where it names none or several."""
        return self.hosts[0] if len(self.hosts) == 1 else None


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelWork:
    """What every kind of work that runs a model is asked."""

    kind: WorkKind
    model: ModelSpec
    data: DataSpec
    training: TrainingSpec
    window: WindowSpec
    profiling: ProfilingSpec
    data_file: str | None = None
    """What the control side prepared (a tensor file, a listing of images or of tokens), relative to the run
    directory; None means that samples are drawn."""
    parallel: ParallelSpec

    @property
    def trains(self) -> bool:
        """Whether a step runs backwards and updates weights."""
        return False

    @property
    def _how(self) -> TrainingSpec | InferenceSpec:
        block: InferenceSpec | None = getattr(self, "inference", None)
        return self.training if block is None else block

    @property
    def weights(self) -> Weights:
        """How weights are to be stored."""
        return self._how.weights

    @property
    def stored_type(self) -> StoredType:
        """The type of stored weights; under fp8, of those that no product in fp8 reads."""
        is_own = self.model.name.startswith(OWN_MODULE)
        lowered = self.weights == "precision" and not (is_own and not self.trains)
        return STORED_TYPES.get(self.training.precision, "float32") if lowered else "float32"

    @property
    def measures_latency(self) -> bool:
        """Whether each step is waited for, so that its time is a latency and its rate no throughput."""
        return False

    @property
    def generates(self) -> bool:
        """Whether text is made with a key-value cache: prefill, decode, or both to answer requests."""
        return False

    @property
    def steps_of_a_generation(self) -> int | None:
        """Steps that each add a token to the cache before it goes back to the prompt; None where none do."""
        return None

    @property
    def reason_steps_vary(self) -> str | None:
        """Why one step cannot stand for all, as a captured one would; None where steps are alike."""
        return None

    @property
    def cuda_graphs(self) -> Graphs:
        """Whether steps are to be captured."""
        return (self._how if self.generates else self.training).cuda_graphs

    @property
    def graphs_key(self) -> str:
        """The key of a recipe that says so."""
        return "inference.cuda_graphs" if self.generates else "training.cuda_graphs"

    @property
    def micro_batches(self) -> int:
        """Batches of one step: those between two updates of the weights, or one."""
        return 1

    @property
    def activation_checkpointing(self) -> Checkpointing:
        """Which activations are computed again for the backward pass."""
        return "none"


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainingWork(ModelWork):
    """Train a model, and measure its steps."""

    kind: Literal["training"] = "training"

    @property
    def num_replicas(self) -> int:
        """Devices on which one process trains a copy of the model each, as TensorFlow's does."""
        return self.parallel.nproc if self.training.framework == "tensorflow" else 1

    @property
    def trains(self) -> bool:
        """Whether a step runs backwards and updates weights: always."""
        return True

    @property
    def micro_batches(self) -> int:
        """Batches between two updates of the weights."""
        return self.parallel.gradient_accumulation_steps

    @property
    def activation_checkpointing(self) -> Checkpointing:
        """Which activations are computed again for the backward pass."""
        return self.training.activation_checkpointing


@dataclass(frozen=True, slots=True, kw_only=True)
class InferenceWork(ModelWork):
    """Run a model forward, and measure its steps."""

    kind: Literal["inference"] = "inference"
    inference: InferenceSpec

    @property
    def measures_latency(self) -> bool:
        """Whether each step is waited for, so that its time is a latency and its rate no throughput."""
        return self.inference.mode == "latency"

    @property
    def generates(self) -> bool:
        """Whether a step is prefill or decode."""
        return self.inference.phase != "forward"

    @property
    def steps_of_a_generation(self) -> int | None:
        """Steps that each add a token to the cache before it goes back to the prompt: of decode."""
        return self.inference.new_tokens if self.inference.phase == "decode" else None


@dataclass(frozen=True, slots=True, kw_only=True)
class ServingWork(ModelWork):
    """Send requests, and measure how they are answered: by a model of the worker's, or by an endpoint."""

    kind: Literal["serving"] = "serving"
    serving: ServingSpec
    inference: InferenceSpec = field(default_factory=InferenceSpec)
    """How the worker's own model is run; phases are those of `serving`."""
    arrival_seed: int | None = None
    """What this launch's arrivals and prompts are drawn from, unlike those of any other launch of the run.

    None in runs of before 2026-12, which judged a rate by one launch.
    """

    def seed_of(self, replicate: int) -> int:
        """Return what a launch's arrivals and prompts are drawn from."""
        return self.training.seed + replicate if self.arrival_seed is None else self.arrival_seed

    @property
    def generates(self) -> bool:
        """Whether requests are prompts, and this case's own model makes new tokens for each."""
        return self.serving.makes_text

    @property
    def reason_steps_vary(self) -> str | None:
        """Requests, unless there is a graph for each size of their batches."""
        return None if self.generates else BATCHES_VARY


@dataclass(frozen=True, slots=True, kw_only=True)
class CollectiveWork:
    """Measure collective operations over all ranks, with no model."""

    kind: Literal["collective"] = "collective"
    collective: CollectiveSpec
    parallel: ParallelSpec


@dataclass(frozen=True, slots=True, kw_only=True)
class ProbeWork:
    """Measure one property of devices, links or a disk, with no model."""

    kind: Literal["probe"] = "probe"
    probe: ProbeSpec
    parallel: ParallelSpec


@dataclass(frozen=True, slots=True, kw_only=True)
class CommandWork:
    """Run a command of the user's beside the sampler, and follow all that it starts."""

    kind: Literal["command"] = "command"
    command: CommandSpec
    parallel: ParallelSpec


Work = TrainingWork | InferenceWork | ServingWork | CollectiveWork | ProbeWork | CommandWork
"""What a launch does; JSON tells the kinds apart by `kind`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """One launch: a replicate of one point of a suite."""

    schema_version: int
    case_id: str
    replicate: int
    capture_env: bool
    placement: Placement = field(default_factory=Placement)
    monitor: MonitorSpec | None = None
    """None reads neither devices nor host beside the launch."""
    start: StartMode = "exec"
    """How its process is to come to be: afresh, or forked from one that has torch imported."""
    after: tuple[tuple[str, int], ...] = ()
    """Launches (case and replicate) that must have ended before this one begins."""
    work: Work

    @property
    def kind(self) -> WorkKind:
        """What kind of work it is."""
        return self.work.kind

    @property
    def model_work(self) -> ModelWork:
        """The work of a case that runs a model.

        Raises:
            TypeError: it runs none.
        """
        if not isinstance(self.work, ModelWork):
            raise TypeError(f"{self.case_id} is {self.kind}, which runs no model")
        return self.work

    @property
    def measures_latency(self) -> bool:
        """Whether each step is waited for, so that its time is a latency and its rate no throughput."""
        return isinstance(self.work, ModelWork) and self.work.measures_latency

    @property
    def data_file(self) -> str | None:
        """What the control side prepares for it in the run directory; None where it needs nothing."""
        return self.work.data_file if isinstance(self.work, ModelWork) else None


@dataclass(frozen=True, slots=True, kw_only=True)
class Placed:
    """Where a launch really ran."""

    hosts: tuple[Host, ...]
    """In the order of node ranks; this machine by its own name, others by the inventory's."""
    ranks_per_host: Positive
    address: str | None = None
    """Where the ranks met, and at which port; None where one rank is alone."""
    port: int | None = None
    beside: tuple[tuple[str, int], ...] = ()
    """Launches that ran on the same hosts when it began."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceShare:
    """How a case's device is found where it starts: the one with the most free memory that is not taken."""

    cases_at_once: int = 1
    """Cases of this run that run on the host at the same time; each device has one before any has two."""
    min_free_bytes: int | None = None
    """Free memory that the device must have, beside what other cases have yet to take; None asks for none."""
    wait_s: float = 300.0
    """How long to wait for memory that no case of this run holds; the case fails then."""


@record_kind("device_taken")
@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceTaken:
    """The device that a case was given, and what was known of it then."""

    rank: int
    physical_index: int
    framework_index: int | None
    name: str
    uuid: str | None
    free_bytes: int | None
    """None where the driver does not say."""
    cases_per_device: int
    """Cases of this run that it may have at the same time."""
    beside: int
    """Those that it had already."""
    waited_s: float
    monotonic_s: float

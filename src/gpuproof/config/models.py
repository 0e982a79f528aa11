"""The run's configuration: every key, its type, its bounds and its default.

Plain values come in (from YAML, the command line or Python); a frozen, checked `RunConfig` comes out, or
pydantic's `ValidationError`. Types are strict: a quoted "32" is text and no number, true is no 1, and 3.0
is no whole number. The descriptions are what the JSON Schema and the error messages say of each key.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, JsonValue, model_validator
from pydantic_core import PydanticCustomError

from gpuproof.config.contradictions import find_contradictions
from gpuproof.records.case import Backend, CaseKind, CompileMode, DeviceChoice, OptimizerName, Precision

DatasetName = Literal["synthetic", "digits", "CIFAR100"]
_DATASETS: dict[str, DatasetName] = {
    "synthetic": "synthetic",
    "digits": "digits",
    "cifar100": "CIFAR100",
}
MAX_SECONDS = 7 * 86_400
"""A week: longer than any benchmark that somebody still waits for."""

Seconds = Annotated[float, Field(gt=0, le=MAX_SECONDS)]
Text = Annotated[str, Field(min_length=1, max_length=4096, pattern=r"^[^\x00-\x1f\x7f]+$")]
FileName = Annotated[
    str,
    Field(
        pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]*$",
        max_length=100,
        json_schema_extra={"format": "file-name"},
    ),
]
CommitHash = Annotated[
    str, Field(pattern=r"^(auto|[0-9a-fA-F]{4,64})$", json_schema_extra={"format": "commit"})
]
DeviceIndices = Annotated[  # not strict, so that a list will do
    tuple[Annotated[int, Field(ge=0, le=1023)], ...], Field(min_length=1, max_length=1024, strict=False)
]


def _canonical_dataset(name: Any) -> Any:
    return _DATASETS.get(name.casefold(), name) if isinstance(name, str) else name


class Section(BaseModel):
    """What all sections share: immutable, strict types, no unknown keys, finite numbers."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True, allow_inf_nan=False)


class DataConfig(Section):
    """Where the samples come from."""

    name: Annotated[DatasetName, BeforeValidator(_canonical_dataset)] = Field(
        default="synthetic",
        description="The data set, upper or lower case; synthetic is drawn on the device.",
    )
    path: Text | None = Field(
        default=None, description="The folder that holds the data set; CIFAR100 needs one."
    )
    batch_size: int = Field(default=256, ge=1, le=2**20, description="Samples per rank in one micro-batch.")
    num_workers: int = Field(default=8, ge=0, le=1024, description="Processes per rank that load data.")
    pin_memory: bool = Field(
        default=True, description="Load into page-locked memory, which copies faster to a GPU."
    )
    prefetch_factor: int | None = Field(
        default=4, ge=1, le=1024, description="Batches that each loading process keeps ready."
    )
    persistent_workers: bool = Field(
        default=True, description="Keep the loading processes from epoch to epoch."
    )
    samples_per_epoch: int = Field(
        default=10_000,
        ge=1,
        le=10**9,
        description="Samples that one epoch of the endless synthetic stream counts.",
    )
    image_size: int | None = Field(
        default=None,
        ge=8,
        le=4096,
        description="Edge of the square images in pixels; null is the model's own.",
    )


class ModelConfig(Section):
    """What is trained or run."""

    name: Text = Field(default="resnet50", description="The registered name of the workload.")
    num_classes: int | None = Field(
        default=None,
        ge=2,
        le=10**6,
        description="Classes that the model tells apart; null is its own number.",
    )
    channels_last: bool = Field(default=True, description="Lay images out as NHWC in memory (CUDA only).")
    options: dict[str, JsonValue] = Field(
        default_factory=dict, description="The workload's own options, checked by the workload."
    )


class CompileConfig(Section):
    """Whether torch.compile is used."""

    enabled: bool = Field(
        default=False, description="Compile the model with torch.compile before the warm-up."
    )
    mode: CompileMode = Field(default="default", description="The mode that torch.compile is given.")


class TrainingConfig(Section):
    """Optimisation and precision."""

    epochs: int = Field(
        default=3, ge=1, le=10**6, description="Epochs at most; the measured window may end sooner."
    )
    precision: Precision = Field(
        default="amp", description="fp32; amp is fp16 with a gradient scaler; bf16 is bfloat16 autocast."
    )
    optimizer: OptimizerName = Field(default="SGD", description="The optimizer.")
    learning_rate: float = Field(
        default=0.1, gt=0, le=1000, description="The learning rate, constant over the run."
    )
    weight_decay: float = Field(default=0.0, ge=0, le=10, description="The optimizer's weight decay.")
    momentum: float = Field(default=0.9, ge=0, lt=1, description="Momentum of SGD; not applied by Adam.")
    grad_clip_norm: float | None = Field(
        default=None, gt=0, le=1e6, description="Largest norm of the gradients; null clips nothing."
    )
    compile: CompileConfig = Field(default_factory=CompileConfig, description="torch.compile.")
    seed: int = Field(
        default=1337, ge=0, lt=2**32, description="Seed of weights and data, offset by the rank."
    )
    cudnn_benchmark: bool = Field(
        default=True, description="Let cuDNN time its algorithms and take the fastest."
    )


class BenchmarkConfig(Section):
    """What is warmed up, measured and written down."""

    enabled: bool = Field(default=True, description="Measure; false only trains.")
    warmup_steps: int = Field(
        default=100, ge=0, le=10**6, description="Steps before the window, once per run."
    )
    measure_by: Literal["steps", "time"] = Field(
        default="steps", description="What ends the measured window."
    )
    measure_steps: int | None = Field(
        default=2000, ge=1, le=10**8, description="Steps in the window when measure_by is steps."
    )
    measure_seconds: Seconds | None = Field(
        default=None, description="Length of the window in seconds when measure_by is time."
    )
    log_step_times: bool = Field(default=True, description="Record every step's time.")
    sync_cuda: bool = Field(
        default=False, description="Synchronise after every step: strict step times, but slower."
    )
    evaluate_after: bool = Field(default=False, description="Evaluate the model after the window.")


class DistributedConfig(Section):
    """How many ranks, on which devices, talking how."""

    backend: Backend = Field(
        default="auto", description="The process group; auto is nccl with CUDA, else gloo."
    )
    gradient_accumulation_steps: int = Field(
        default=1, ge=1, le=65_536, description="Micro-batches that make one optimizer step."
    )
    nproc: int = Field(default=1, ge=1, le=1024, description="Ranks to start on this host.")
    device: DeviceChoice = Field(
        default="auto", description="The kind of device; auto is CUDA where there is one."
    )
    devices: DeviceIndices | None = Field(
        default=None,
        description="Indices of the devices to use, as the driver counts them; null is all in order.",
    )
    threads_per_rank: int | None = Field(
        default=None, ge=1, le=1024, description="CPU threads of each rank; null shares the cores out evenly."
    )
    timeout_s: Seconds = Field(
        default=600.0, description="Seconds that a collective may take to start or finish."
    )
    hang_timeout_s: Seconds = Field(
        default=300.0, description="Seconds without a step after which a rank hangs."
    )
    world_size: int | None = Field(
        default=None,
        ge=1,
        le=10**6,
        description="Ranks in all: null, or a fact that must agree with the launch.",
    )
    local_rank: int | None = Field(
        default=None,
        ge=0,
        le=1023,
        description="Rank on this host: null, or a fact that must agree with the launch.",
    )
    node_rank: int | None = Field(
        default=None,
        ge=0,
        le=65_535,
        description="This host's rank: null, or a fact that must agree with the launch.",
    )


class RunSection(Section):
    """Names, places and how often."""

    experiment_name: FileName = Field(
        default="benchmark", description="The folder of this run under save_dir."
    )
    run_id: FileName | None = Field(
        default=None, description="The run's own folder; null makes one from the time."
    )
    save_dir: Text = Field(default="./results", description="The folder of all results.")
    repeats: int = Field(
        default=1, ge=1, le=1000, description="Fresh launches; three or more give an interval."
    )
    capture_env: bool = Field(
        default=True, description="Record host, devices, versions and NCCL's variables."
    )
    commit_hash: CommitHash | None = Field(default="auto", description="The commit measured; auto asks git.")
    notes: Annotated[str, Field(max_length=10_000)] | None = Field(
        default=None, description="Anything to remember about this run."
    )
    time_limit_s: Seconds | None = Field(
        default=None, description="Seconds that one launch may take in all; null sets no limit."
    )


class ProfilingConfig(Section):
    """Whether a trace is taken after the window."""

    enabled: bool = Field(default=False, description="Trace some steps after the window, on rank 0.")


class MonitoringConfig(Section):
    """What is read of devices and host beside the work."""

    enabled: bool = Field(default=True, description="Record devices and host beside each launch.")
    interval_s: float = Field(default=0.2, ge=0.01, le=3600, description="Seconds between two readings.")


class RunConfig(Section):
    """Everything that one run is asked to do."""

    kind: CaseKind = Field(default="training", description="Train the model, or run it forward only.")
    data: DataConfig = Field(default_factory=DataConfig, description="Where the samples come from.")
    model: ModelConfig = Field(default_factory=ModelConfig, description="What is trained or run.")
    training: TrainingConfig = Field(
        default_factory=TrainingConfig, description="Optimisation and precision."
    )
    benchmark: BenchmarkConfig = Field(default_factory=BenchmarkConfig, description="What is measured.")
    distributed: DistributedConfig = Field(
        default_factory=DistributedConfig, description="Ranks and devices."
    )
    run: RunSection = Field(default_factory=RunSection, description="Names, places and how often.")
    profiling: ProfilingConfig = Field(
        default_factory=ProfilingConfig, description="A trace after the window."
    )
    monitoring: MonitoringConfig = Field(
        default_factory=MonitoringConfig, description="What is read beside the work."
    )

    @model_validator(mode="after")
    def _refuse_contradictions(self) -> RunConfig:
        found = find_contradictions(self)
        if found:
            text = " ".join(f"{c.keys[0]}: {c.cause}. {c.next_step}." for c in found)
            raise PydanticCustomError("contradiction", "{text}", {"text": text, "contradictions": found})
        return self

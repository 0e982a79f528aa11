"""The run's configuration: every key with its type, bounds and default.

Plain values come in (from YAML, the command line or Python); a frozen, validated `RunConfig` comes out, or
pydantic's `ValidationError`. Types are strict: a quoted "32" is text, not a number; true is not 1; 3.0 is not
a whole number. The descriptions here are used in the JSON Schema and in error messages. Blocks that are sent
to the node with a case are defined in `records/work/`; blocks that only the control side reads are defined
here.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Annotated, Any, Literal

from pydantic import Field, JsonValue, model_validator
from pydantic_core import PydanticCustomError

from gpuproof.config.entries import StrictModel
from gpuproof.config.rules import check_recipe
from gpuproof.config.rules.base import Refusal
from gpuproof.config.suite_options import is_suite, resolve_block
from gpuproof.records.case import WorkKind
from gpuproof.records.work.collective import CollectiveSpec
from gpuproof.records.work.data import DataSpec, InferenceSpec, ModelSpec
from gpuproof.records.work.options import Bytes, CommitHash, FileName, Limits, Options, Seconds, Seed, Text
from gpuproof.records.work.parallel import ParallelSpec
from gpuproof.records.work.probe import ProbeSpec
from gpuproof.records.work.serving import ServingSpec
from gpuproof.records.work.training import TrainingSpec
from gpuproof.records.work.window import MonitorSpec, ProfilingSpec, WindowSpec

Word = Annotated[str, Limits(max_length=32_768)] | int | float | bool
Variable = Annotated[str, Limits(pattern=r"^[A-Za-z_][A-Za-z0-9_]*$")]


@dataclass(frozen=True, slots=True, kw_only=True)
class RunSection(Options):
    """Name, location and repeats."""

    experiment_name: FileName = "benchmark"
    """The folder for this run, under save_dir."""
    run_id: FileName | None = None
    """The run's own folder; null creates one named after the current time."""
    save_dir: Text = "./results"
    """The folder that contains all results."""
    repeats: Annotated[int, Limits(ge=1, le=1000)] = 1
    """Number of launches, each of which repeats the whole measurement in fresh processes; three or more give
    an interval."""
    target_precision: Annotated[float, Limits(gt=0, lt=1)] | None = None
    """For a single recipe with 5 or more repeats: keep launching until the 95% interval of the result is
    within ± this fraction of it; null: no more than run.repeats."""
    target_time_s: Seconds = 60.0
    """With target_precision: total time for launches, in seconds; beyond run.repeats, a launch that would
    finish later is not started."""
    capture_env: bool = True
    """Record the host, devices, versions and NCCL variables."""
    commit_hash: CommitHash | None = "auto"
    """The commit being measured; auto queries git."""
    summary_csv: Literal["launches", "epochs"] = "launches"
    """What each row of summary.csv represents: one launch, one point of a sweep, or one epoch (as in
    metrics_epoch.jsonl)."""
    notes: Annotated[str, Limits(max_length=10_000)] | None = None
    """A comment to store with the run."""
    time_limit_s: Seconds | None = None
    """Maximum total time of one launch, in seconds; null sets no limit."""
    start: Literal["auto", "exec", "fork"] = "auto"
    """How launches start: exec starts a fresh process for each; fork copies a process that has already
    imported torch (one rank only, no interval between launches); auto is fork if a sweep or a search launches
    each point once, with one rank, torch and no torch.compile, else exec."""
    order_seed: Seed = 0
    """Seed of the random order in which a sweep launches its points."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SearchConfig(Options):
    """Which value to search for, and in which range."""

    kind: Literal["batch_size"] | None = None
    """batch_size: raise data.batch_size until memory runs out, then find the largest that fits."""
    start: Annotated[int, Limits(ge=1, le=2**20)] = 16
    """The first batch size to try."""
    factor: Annotated[float, Limits(ge=1.1, le=16)] = 2.0
    """Factor between successive batch sizes, as long as they fit."""
    up_to: Annotated[int, Limits(ge=1, le=2**20)] = 65_536
    """Largest batch size to try."""
    step: Annotated[int, Limits(ge=1, le=2**20)] | None = None
    """Find the largest batch that fits, to within this many samples; null means search.start."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadConfig(Options):
    """The length of the load suite, which has its own models and batch sizes (kind: load)."""

    num_epochs: Annotated[int, Limits(ge=1, le=1000)] = 3
    """Epochs per training test; inference tests have one."""
    num_batches: Annotated[int, Limits(ge=1, le=100_000)] = 200
    """Batches per epoch; each is one step."""
    metrics_sample_rate_s: Annotated[float, Limits(ge=0.01, le=3600)] = 5.0
    """Maximum time between two readings of devices and host; tests that may be short are sampled more often.
    The results state the interval used."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CommandConfig(Options):
    """A command to run while monitoring; fields in braces are filled in from matrix and cases.fields."""

    argv: Annotated[tuple[Word, ...], Limits(max_length=10_000, strict=False)] = ()
    """The program and its arguments, as a list; no shell interprets them. `command: [python, train.py]` is a
    shorthand. {output_dir} is a separate folder for each launch, {python} the Python that runs gpuproof."""
    cwd: Text | None = None
    """The working directory; null means where gpuproof was started."""
    env: dict[Variable, str | int | float | bool | None] = field(default_factory=dict)
    """Additional environment variables. Use null for secrets: the variable must then be set where the command
    runs, and its value is never stored."""
    collect: Annotated[tuple[Text, ...], Limits(max_length=100, strict=False)] = ()
    """Patterns for files to store with the launch, from {output_dir} or else from cwd."""
    metrics: Text | None = None
    """The command's own results file (JSON, JSON Lines or CSV), in {output_dir} or else in cwd."""
    time_limit_s: Seconds | None = None
    """Seconds after which the command is stopped (its output is kept); null sets no limit."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CasesConfig(Options):
    """How to run and compare the cases of a matrix."""

    name: Annotated[str, Limits(max_length=1000)] | None = None
    """Template for case names, such as {model}_{optimizer}; null uses all fields."""
    fields: dict[str, JsonValue] = field(default_factory=dict)
    """Fields in the command's template that have the same value in every case."""
    only: Annotated[tuple[Text, ...], Limits(max_length=1000, strict=False)] = ()
    """Run only the cases that match all of these conditions: optimizer=adam,sgd."""
    parallel: Annotated[int, Limits(ge=1, le=1024)] = 1
    """Number of cases that run concurrently on each host: at first one per GPU, then several per GPU. On a
    queue it is the total, and 1 means no limit unless stop_on_failure is set."""
    wait_for_memory: Bytes | None = None
    """Free memory that a GPU must have before a case starts on it, e.g. 18G; null disables the check."""
    memory_wait_timeout_s: Seconds = 300.0
    """Maximum time that a case waits for a GPU, and for its memory; time while other cases of this run use a
    GPU does not count."""
    stop_on_failure: bool = False
    """Do not start any more cases once one has failed."""
    keep_going: bool = False
    """Start the remaining cases even if the first three all failed for the same reason."""
    seed: Text = "seed"
    """The field that distinguishes repeats of the same configuration, such as seed."""
    metric: Text | None = None
    """Metric by which configurations are compared; null means accuracy, else throughput, else the mean GPU
    memory, else run time."""
    better: Literal["higher", "lower"] | None = None
    """Which direction is better; null means lower for times, losses, perplexity, errors and bytes, and higher
    for everything else."""


class RunConfig(StrictModel):
    """Everything that one run is configured to do."""

    kind: WorkKind | Literal["load"] = "training"
    """Train the model, run only its forward pass, serve requests with it, measure collective operations
    across all ranks, probe one property of devices, links or a disk, run a command, or run the twelve tests
    of the load suite."""
    data: DataSpec = Field(default_factory=DataSpec)
    """Where the samples come from."""
    model: ModelSpec = Field(default_factory=ModelSpec)
    """Which model to train or run."""
    training: TrainingSpec = Field(default_factory=TrainingSpec)
    """Optimiser settings and precision."""
    benchmark: WindowSpec = Field(default_factory=WindowSpec)
    """What to measure."""
    distributed: ParallelSpec = Field(default_factory=ParallelSpec)
    """Ranks and devices."""
    run: RunSection = Field(default_factory=RunSection)
    """Name, location and repeats."""
    profiling: ProfilingSpec = Field(default_factory=ProfilingSpec)
    """A trace and ceilings, measured after the window."""
    monitoring: MonitorSpec = Field(default_factory=MonitorSpec)
    """What to monitor while the workload runs."""
    inference: InferenceSpec = Field(default_factory=InferenceSpec)
    """What to measure in a run of kind inference; weights and cuda_graphs also apply to kind serving."""
    matrix: dict[str, JsonValue] = Field(default_factory=dict)
    """Keys to sweep, each with a list of values: every combination is a point, which is launched run.repeats
    times; the order is shuffled with run.order_seed. exclude is a list of combinations to skip, include a
    list of combinations to add. For a command, the keys are fields of its template."""
    search: SearchConfig = Field(default_factory=SearchConfig)
    """Points that are chosen based on the results of earlier points."""
    serving: ServingSpec = Field(default_factory=ServingSpec)
    """Serving requests under load, for kind serving."""
    load: LoadConfig = Field(default_factory=LoadConfig)
    """The load suite, for kind load."""
    collective: CollectiveSpec = Field(default_factory=CollectiveSpec)
    """Operations and sizes, for kind collective."""
    probe: ProbeSpec = Field(default_factory=ProbeSpec)
    """One property of devices, links or a disk, for kind probe."""
    command: CommandConfig = Field(default_factory=CommandConfig)
    """What to run, for kind command."""
    cases: CasesConfig = Field(default_factory=CasesConfig)
    """How to run the cases of a matrix, for `gpuproof matrix`."""

    suite: Annotated[str, Field(max_length=100)] | None = None
    """The suite that plans and evaluates the run; null selects it by kind, matrix and search. The options of
    a suite from another package are in a section of the same name."""
    suite_options: dict[str, Any] = Field(default_factory=dict)
    """Suite → its options with defaults filled in; set by the suites' sections."""

    @model_validator(mode="before")
    @classmethod
    def _resolve_suite_options(cls, values: Any) -> Any:
        """Move the suites' blocks into `suite_options`; keep existing entries, as in run.json."""
        if not isinstance(values, dict):
            return values
        options = dict(values.get("suite_options") or {})
        blocks = {name: values[name] for name in values if name not in cls.model_fields and is_suite(name)}
        chosen = values.get("suite")
        names = {*options, *blocks, *cls.model_fields}
        if isinstance(chosen, str) and chosen not in names and is_suite(chosen):
            blocks[chosen] = {}
        refusals = []
        for name, block in blocks.items():
            resolved, wrong = resolve_block(name, {**options.get(name, {}), **block})
            options |= {name: resolved} if resolved else {}
            refusals += wrong
        _refuse(refusals)
        return {**{k: v for k, v in values.items() if k not in blocks}, "suite_options": options}

    @model_validator(mode="after")
    def _refuse_contradictions(self) -> RunConfig:
        _refuse(check_recipe(self))
        return self


def _refuse(refusals: Sequence[Refusal]) -> None:
    if refusals:
        text = " ".join(f"{r.keys[0]}: {r.cause}. {r.next_step}." for r in refusals)
        raise PydanticCustomError("refusal", "{text}", {"text": text, "refusals": refusals})

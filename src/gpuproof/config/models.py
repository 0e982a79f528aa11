"""The run's configuration: every key, its type, its bounds and its default.

Plain values come in (from YAML, the command line or Python); a frozen, checked `RunConfig` comes out, or
pydantic's `ValidationError`. Types are strict: a quoted "32" is text and no number, true is no 1, and 3.0 is
no whole number. The descriptions are what the JSON Schema and the error messages say of each key. Blocks that
cases carry to the node are those of `records/work/`; blocks that only the control side reads are defined
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
    """Names, places and how often."""

    experiment_name: FileName = "benchmark"
    """The folder of this run under save_dir."""
    run_id: FileName | None = None
    """The run's own folder; null makes one from the time."""
    save_dir: Text = "./results"
    """The folder of all results."""
    repeats: Annotated[int, Limits(ge=1, le=1000)] = 1
    """Launches, which repeat the whole measurement in fresh processes; three or more give an interval."""
    target_precision: Annotated[float, Limits(gt=0, lt=1)] | None = None
    """Of one recipe, where repeats are 5 or more: launch on until the 95% interval of its figure is ± this
    share of it or narrower; null stops at repeats."""
    target_time_s: Seconds = 60.0
    """With target_precision: launches may take so many seconds in all; none that would end later is begun."""
    capture_env: bool = True
    """Record host, devices, versions and NCCL's variables."""
    commit_hash: CommitHash | None = "auto"
    """The commit measured; auto asks git."""
    summary_csv: Literal["launches", "epochs"] = "launches"
    """Rows of summary.csv: a launch each, in a sweep a point; or an epoch each, as in metrics_epoch.jsonl."""
    notes: Annotated[str, Limits(max_length=10_000)] | None = None
    """A comment, kept with the run."""
    time_limit_s: Seconds | None = None
    """Seconds that one launch may take in all; null sets no limit."""
    start: Literal["auto", "exec", "fork"] = "auto"
    """How launches start: exec is a fresh process each; fork copies one that has torch imported (one rank
    only, no interval between launches); auto is fork where a sweep or a search launches each point once, else
    exec."""
    order_seed: Seed = 0
    """Seed of the order in which a sweep launches its points."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SearchConfig(Options):
    """Which value is searched for, and where."""

    kind: Literal["batch_size"] | None = None
    """batch_size: raise data.batch_size until memory runs out, then find the largest that fits."""
    start: Annotated[int, Limits(ge=1, le=2**20)] = 16
    """The first batch size that is tried."""
    factor: Annotated[float, Limits(ge=1.1, le=16)] = 2.0
    """Each batch is so many times the one before, while they fit."""
    up_to: Annotated[int, Limits(ge=1, le=2**20)] = 65_536
    """No larger batch is tried."""
    step: Annotated[int, Limits(ge=1, le=2**20)] | None = None
    """Find the largest batch that fits to within so many samples; null is search.start."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadConfig(Options):
    """The lengths of the load suite, which brings its own models and batch sizes (kind: load)."""

    num_epochs: Annotated[int, Limits(ge=1, le=1000)] = 3
    """Epochs of each training test; inference has one."""
    num_batches: Annotated[int, Limits(ge=1, le=100_000)] = 200
    """Batches of an epoch, a step each."""
    metrics_sample_rate_s: Annotated[float, Limits(ge=0.01, le=3600)] = 5.0
    """Longest time between two readings of devices and host; a test that may be short is read more often. The
    interval that was used is in the results."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CommandConfig(Options):
    """A command that is run beside the monitor; fields in braces are filled from matrix and cases.fields."""

    argv: Annotated[tuple[Word, ...], Limits(max_length=10_000, strict=False)] = ()
    """The program and its arguments, each a word of its own; no shell reads it. `command: [python, train.py]`
    is short for it. {output_dir} is a folder of each launch's own, {python} the Python that runs gpuproof."""
    cwd: Text | None = None
    """The folder in which it runs; null is the one in which gpuproof was started."""
    env: dict[Variable, str | int | float | bool | None] = field(default_factory=dict)
    """Variables beside those that there are. null is for secrets: it must be set where the command runs, and
    its value is kept nowhere."""
    collect: Annotated[tuple[Text, ...], Limits(max_length=100, strict=False)] = ()
    """Patterns of files to keep with the launch, from {output_dir} or else from cwd."""
    metrics: Text | None = None
    """The file of its own figures (JSON, JSON Lines or CSV), in {output_dir} or else in cwd."""
    time_limit_s: Seconds | None = None
    """Seconds after which the command is ended (what it wrote is kept); null sets no limit."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CasesConfig(Options):
    """How the cases of a matrix are run and compared."""

    name: Annotated[str, Limits(max_length=1000)] | None = None
    """The name of a case from its fields, such as {model}_{optimizer}; null lists them all."""
    fields: dict[str, JsonValue] = field(default_factory=dict)
    """Fields of the command's template that are the same in every case."""
    only: Annotated[tuple[Text, ...], Limits(max_length=1000, strict=False)] = ()
    """Run only the cases for which all of these hold: optimizer=adam,sgd."""
    parallel: Annotated[int, Limits(ge=1, le=1024)] = 1
    """Cases that run at the same time, one on each GPU and then several on each."""
    wait_for_memory: Bytes | None = None
    """Free memory that a GPU must have before a case begins on it, as 18G; null asks for none."""
    memory_wait_timeout_s: Seconds = 300.0
    """How long a case waits for a GPU, and for its memory."""
    stop_on_failure: bool = False
    """Begin no other case once one has failed."""
    keep_going: bool = False
    """Begin the other cases even where the first three failed, all for the same reason."""
    seed: Text = "seed"
    """The field that distinguishes repetitions of one configuration, such as seed."""
    metric: Text | None = None
    """Metric that compares configurations; null takes the accuracy, else throughput, else the time taken."""
    better: Literal["higher", "lower"] | None = None
    """Which way is better; null is lower for times and losses, higher for all else."""


class RunConfig(StrictModel):
    """Everything that one run is asked to do."""

    kind: WorkKind | Literal["load"] = "training"
    """Train the model, run it forward only, serve requests with it, measure collective operations over all
    ranks, probe one property of devices, links or a disk, run a command, or run the
    twelve tests of the load suite."""
    data: DataSpec = Field(default_factory=DataSpec)
    """Where the samples come from."""
    model: ModelSpec = Field(default_factory=ModelSpec)
    """What is trained or run."""
    training: TrainingSpec = Field(default_factory=TrainingSpec)
    """Optimisation and precision."""
    benchmark: WindowSpec = Field(default_factory=WindowSpec)
    """What is measured."""
    distributed: ParallelSpec = Field(default_factory=ParallelSpec)
    """Ranks and devices."""
    run: RunSection = Field(default_factory=RunSection)
    """Names, places and how often."""
    profiling: ProfilingSpec = Field(default_factory=ProfilingSpec)
    """A trace and ceilings, after the window."""
    monitoring: MonitorSpec = Field(default_factory=MonitorSpec)
    """What is read beside the work."""
    inference: InferenceSpec = Field(default_factory=InferenceSpec)
    """What a run of kind inference measures."""
    matrix: dict[str, JsonValue] = Field(default_factory=dict)
    """Keys to sweep, each with a list of values: every combination is a point, launched run.repeats times in
    an order shuffled by run.order_seed. exclude is a list of combinations to leave out, include one of those
    to add. Of a command the keys are fields of its template."""
    search: SearchConfig = Field(default_factory=SearchConfig)
    """Points chosen by what those before them gave."""
    serving: ServingSpec = Field(default_factory=ServingSpec)
    """Requests under load, for the kind serving."""
    load: LoadConfig = Field(default_factory=LoadConfig)
    """The load suite, for the kind load."""
    collective: CollectiveSpec = Field(default_factory=CollectiveSpec)
    """Operations and sizes, for the kind collective."""
    probe: ProbeSpec = Field(default_factory=ProbeSpec)
    """One property of devices, links or a disk, for the kind probe."""
    command: CommandConfig = Field(default_factory=CommandConfig)
    """What is run, for the kind command."""
    cases: CasesConfig = Field(default_factory=CasesConfig)
    """How the cases of a matrix are run, for `gpuproof matrix`."""

    suite: Annotated[str, Field(max_length=100)] | None = None
    """The suite that plans and concludes the run; null is chosen by kind, matrix and search. A suite of
    another package has its options in a section of its name."""
    suite_options: dict[str, Any] = Field(default_factory=dict)
    """Suite → its options with the defaults filled in; set by sections."""

    @model_validator(mode="before")
    @classmethod
    def _resolve_suite_options(cls, values: Any) -> Any:
        """Turn the blocks of suites into `suite_options`; what is there already, as in run.json, is kept."""
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

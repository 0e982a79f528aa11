"""The run's configuration: every key, its type, its bounds and its default.

Plain values come in (from YAML, the command line or Python); a frozen, checked `RunConfig` comes out, or
pydantic's `ValidationError`. Types are strict: a quoted "32" is text and no number, true is no 1, and 3.0
is no whole number. The descriptions are what the JSON Schema and the error messages say of each key.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Any, Literal

from pydantic import Field, JsonValue, model_validator
from pydantic_core import PydanticCustomError

from gpuproof.config.entries import StrictModel
from gpuproof.config.rules import check_recipe
from gpuproof.config.rules.base import Refusal
from gpuproof.config.sections import CasesConfig, CommandConfig, LoadConfig, RunSection, SearchConfig
from gpuproof.config.suite_options import is_suite, resolve_block
from gpuproof.records.case import WorkKind
from gpuproof.records.work.collective import CollectiveSpec
from gpuproof.records.work.data import DataSpec
from gpuproof.records.work.model import InferenceSpec, ModelSpec
from gpuproof.records.work.parallel import ParallelSpec
from gpuproof.records.work.probe import ProbeSpec
from gpuproof.records.work.serving import ServingSpec
from gpuproof.records.work.training import TrainingSpec
from gpuproof.records.work.window import MonitorSpec, ProfilingSpec, WindowSpec


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

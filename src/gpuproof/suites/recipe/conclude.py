"""Evaluate one recipe's launches: metrics, warnings, and a description of what actually ran.

Precision, layout, compilation and optimizer come from the first launch, since ranks and repeats are built the
same way.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from gpuproof.base import units
from gpuproof.base.units import significant
from gpuproof.hardware.boards import find_peak
from gpuproof.launches.explanations import (
    LaunchExplanation,
    RunEnergy,
    energy_of_run,
    explain_launches,
    highest_clock_mhz,
    readings_by_launch,
)
from gpuproof.launches.launch import Launch
from gpuproof.launches.limits import limits_of
from gpuproof.launches.point_measures import PointMeasures
from gpuproof.launches.power_cap import resolution_text
from gpuproof.readings.evidence import Evidence
from gpuproof.readings.limits import LaunchLimits
from gpuproof.records.case import InferenceWork
from gpuproof.records.codec import to_json
from gpuproof.records.collected import CaseRecords
from gpuproof.records.result import WHOLE
from gpuproof.records.run import ProfileTrace, Setup
from gpuproof.records.what_ran import Compilation, Effective, StepOptions, share_of_flops
from gpuproof.records.work.parallel import plain_copies
from gpuproof.suites.base import Conclusion, launch_key
from gpuproof.suites.cases import CASE_ID
from gpuproof.suites.recipe.exports import recipe_exports
from gpuproof.suites.recipe.measures import recipe_measures, total_measures
from gpuproof.suites.recipe.ranks import RanksShown, ranks_shown
from gpuproof.suites.results import benchmark_result, rates_of_launches
from gpuproof.suites.sections import Common, notes_of_setup, read_during, torn_notes, without_effect
from gpuproof.verdict.doubts.rules import doubts_about_readings
from gpuproof.verdict.summary import RunSummary, summarize

if TYPE_CHECKING:
    from gpuproof.suites.recipe.profile import Profiled

SHARES_SHOWN = 3
BREAKS_SHOWN = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class RecipeDetail:
    """Data for the recipe page that is not part of the result."""

    common: Common
    points: tuple[PointMeasures, ...]
    """The recipe itself as a single point, in the form shared by all suites of recipes."""
    num_shown: int
    """Number of measures that are among the page's results, which come first."""
    options: OptionsInEffect | None
    """Options of the steps that ran; None if nothing was measured."""
    profile: Mapping[str, Any] | None
    """Summary of the traced steps, separate from all results: `Profiled` as JSON, parsed when shown."""
    ranks: RanksShown | None = None
    """Results by rank; None if launches have a single rank."""


def conclude(evidence: Evidence) -> Conclusion:
    """Return the result of a recipe and its files."""
    config = evidence.config
    explanations = explain_launches(evidence)
    summary = summarize(
        evidence.launches,
        num_planned=max(config.run.repeats, len(evidence.launches)),
        find_peak=find_peak,
        observed=doubts_about_readings(explanations),
        clock_max_mhz=highest_clock_mhz(explanations),
        readings=readings_by_launch(explanations),
    )
    profile = _profile(evidence)
    first = summary.launches[0] if summary.launches else None
    options = options_in_effect(first) if first else None
    energy = _energy(summary, explanations)
    rates = rates_of_launches(evidence.launches, summary.launches)
    measures = recipe_measures(summary, rates, energy)
    ranks, rank_figures = ranks_shown(summary.launches)
    detail = RecipeDetail(
        common=_common(evidence, summary, options, explanations),
        points=(_point(evidence, summary),),
        num_shown=sum(measure.subject == WHOLE for measure in measures),
        options=options,
        profile=None if profile is None else to_json(profile),
        ranks=ranks,
    )
    result = benchmark_result(
        "recipe",
        evidence,
        measures=[*measures, *total_measures(summary, rates, energy), *rank_figures],
        limits=_limits(summary, explanations),
        doubts=summary.doubts,
        failures=summary.failures,
        num_launches=len(summary.launches),
        num_planned=summary.num_planned,
        conditions=_conditions(config, first),
        detail=to_json(detail),
    )
    return Conclusion(result=result, exports=tuple(recipe_exports(evidence, summary, profile)))


def _energy(summary: RunSummary, explanations: Sequence[LaunchExplanation]) -> RunEnergy | None:
    """Return the total energy of all launches."""
    item = summary.launches[0].setup.item if summary.launches else ""
    return energy_of_run(explanations, num_launches=len(summary.launches), item=item)


def _limits(summary: RunSummary, explanations: Sequence[LaunchExplanation]) -> list[LaunchLimits]:
    read = readings_by_launch(explanations)
    return [
        limits_of(
            launch,
            readings=read.get(launch_key(launch.case), ()),
            peak=summary.peak,
            memory_peak=summary.memory_peak,
        )
        for launch in summary.launches
    ]


def _profile(evidence: Evidence) -> Profiled | None:
    """Return the summary of the traced steps; None if nothing was traced."""
    if not any(launch.of(ProfileTrace) for launch in evidence.launches):
        return None
    from gpuproof.suites.recipe.profile import profile_of

    return profile_of(evidence)


def _common(
    evidence: Evidence,
    summary: RunSummary,
    options: OptionsInEffect | None,
    explanations: Sequence[LaunchExplanation],
) -> Common:
    config = evidence.config
    return Common(
        title=_title(summary, config),
        work=f"{config.model.name} {config.kind} on {config.data.name}",
        not_applied=without_effect([x.setup for x in summary.launches], evidence.description["origins"]),
        notes=tuple(_notes(summary, options, evidence.launches)),
        **read_during(explanations),
    )


def _point(evidence: Evidence, summary: RunSummary) -> PointMeasures:
    config = evidence.config
    first = summary.launches[0] if summary.launches else None
    return PointMeasures(
        case_id=evidence.launches[0].case.case_id if evidence.launches else CASE_ID,
        assignment={},
        kind=config.kind,
        model=config.model.name,
        batch_size=config.data.batch_size,
        item=first.setup.item if first else "",
        items_per_sample=first.setup.items_per_sample if first else 1,
        device=first.setup.device.name if first else None,
        num_devices=first.num_devices if first else None,
        num_launches=len(summary.launches),
        num_planned=summary.num_planned,
        validity=summary.validity,
        failures=summary.failures,
    )


def _conditions(config: Any, first: Launch | None) -> Mapping[str, Any]:
    """Report the conditions under which the results apply."""
    return {
        "kind": config.kind,
        "model": config.model.name,
        "data": config.data.name,
        "batch_size": config.data.batch_size,
        "precision": config.training.precision,
        "device": first.setup.device.name if first else None,
        "num_devices": first.num_devices if first else None,
        **_framework(first),
    }


def _framework(first: Launch | None) -> dict[str, str]:
    """Return the framework, if it is not torch, and how it sums gradients."""
    replicas = None if first is None else first.setup.replicas
    if replicas is None:
        return {}
    summed = {} if replicas.reduction is None else {"reduction": replicas.reduction}
    return {"framework": replicas.framework, **summed}


def _title(summary: RunSummary, config: Any) -> str:
    parts = [f"{config.model.name} {_kind(summary, config)} on {config.data.name}"]
    if summary.launches:
        launch = summary.launches[0]
        ranks = f"{launch.num_devices} × " if launch.num_devices > 1 else ""
        parts.append(f"{ranks}{launch.setup.device.name}")
        if (shared := launch.setup.parallelism) is not None and shared != plain_copies(launch.world_size):
            parts.append(shared.describe())
        if launch.setup.device.kind == "cpu":
            threads = launch.setup.threads
            parts.append(f"{threads} thread{'s' * (threads != 1)}")
        parts.append(launch.setup.precision)
        parts.append(_batch(launch))
    return ", ".join(parts)


def _kind(summary: RunSummary, config: Any) -> str:
    """Return what ran: training or inference; for inference also the phase and mode, if known."""
    kind = str(config.kind)
    work = summary.launches[0].case.work if summary.launches else None
    if not isinstance(work, InferenceWork):
        return kind
    inference = work.inference
    phase = "" if inference.phase == "forward" else f" ({inference.phase})"
    return f"{kind}{phase}{' in latency mode' if inference.mode == 'latency' else ''}"


def _batch(launch: Launch) -> str:
    batch, per_sample = f"batch {launch.samples_per_step_total}", launch.setup.items_per_sample
    return batch if per_sample == 1 else f"{batch} × {per_sample} {launch.setup.item}"


def _notes(
    summary: RunSummary, options: OptionsInEffect | None, records: Iterable[CaseRecords]
) -> Iterator[str]:
    if summary.launches:
        first = summary.launches[0]
        yield from first.setup.notes
        yield from options.notes if options else ()
        yield from _data(first)
        shown = [resolution_text(window) for window in summary.power_caps if window is not None]
        yield from [text for text in shown if text is not None][:1]
        if len(summary.launches) == 1:
            more = "to compare, set run.repeats to 3 or more"
            yield f"one launch: differences between launches are not in its interval; {more}"
        yield from (note for note in notes_of_setup(summary.launches) if note not in first.setup.notes)
        if first.flops_per_step is None:
            yield f"no FLOP/s: {first.setup.flops_not_counted}"
    yield from torn_notes(records)


def _data(launch: Launch) -> Iterator[str]:
    """Report which samples were used, if they come from a data set."""
    used = launch.setup.data_used
    if used is None or used.num_samples is None:
        return
    part = f", {used.split} part" if used.split else ""
    place = f" from {used.source}" if used.source else ""
    checksum = f", SHA-256 {used.sha256[:12]}… of {used.sha256_of}" if used.sha256 else ""
    yield f"data: {launch.setup.data}{part}{place}, {units.count(used.num_samples)} samples{checksum}"


@dataclass(frozen=True, slots=True, kw_only=True)
class OptionsInEffect:
    """The workload of a run's steps, and the options in effect."""

    summary: str
    """Summary of all options in one line."""
    observed: str
    """Lines on the precisions used by the kernels of one step, or on why they are unknown."""
    notes: tuple[str, ...]


def options_in_effect(launch: Launch) -> OptionsInEffect | None:
    """Describe a launch; None if the gpuproof version that ran it did not record its options."""
    options = launch.setup.options
    if options is None:
        return None
    effective = launch.effective[0] if launch.effective else None
    compilation = launch.compilations[0] if launch.compilations else None
    return OptionsInEffect(
        summary=", ".join(_options(launch.setup, options, compilation)),
        observed=_effect_text(effective),
        notes=tuple(_effect_notes(effective, compilation)),
    )


def _options(setup: Setup, options: StepOptions, compilation: Compilation | None) -> Iterator[str]:
    yield _precision(setup, options)
    if options.weights is not None:
        yield f"weights in {options.weights}"
    yield "eager" if compilation is None else _compilation_text(compilation)
    yield _graphs(options)
    if options.optimizer is not None:
        yield f"{options.optimizer} ({(options.optimizer_implementation or 'unknown').replace('_', '-')})"
        yield _checkpointing(options)
    yield "deterministic" if options.deterministic else "not deterministic"


def _precision(setup: Setup, options: StepOptions) -> str:
    if setup.precision == "fp8":
        return f"fp8 in {options.fp8_linear_layers} of {options.linear_layers} linear layers"
    if setup.precision in ("fp32", "tf32") and options.tf32 is not None:
        return f"{setup.precision} (TF32 {options.tf32})"
    return setup.precision


def _graphs(options: StepOptions) -> str:
    if options.graph_ends and options.cuda_graphs:
        ends = ", ".join(map(str, options.graph_ends))
        return f"{_many(len(options.graph_ends), 'CUDA graph')} of decoding (attention to place {ends})"
    return "one CUDA graph" if options.cuda_graphs else "no captured CUDA graph"


def _compilation_text(compilation: Compilation) -> str:
    graphs, breaks = compilation.num_graphs, sum(x.times for x in compilation.graph_breaks)
    eager = f", {compilation.eager_frames} functions uncompiled" if compilation.eager_frames else ""
    return f"torch.compile {compilation.mode} ({_many(graphs, 'graph')}, {_many(breaks, 'break')}{eager})"


def _many(number: int, noun: str) -> str:
    return f"{number} {noun}{'' if number == 1 else 's'}"


def _checkpointing(options: StepOptions) -> str:
    if not options.checkpointed_modules:
        return "no checkpointing"
    modules = _many(options.checkpointed_modules, "module")
    return f"checkpointing {options.activation_checkpointing} ({modules})"


def _effect_text(effective: Effective | None) -> str:
    if effective is None:
        return "unknown: not recorded"
    if not effective.work:
        return f"unknown: {effective.missing}"
    kinds = sorted({work.operation for work in effective.work})
    parts = [f"{', '.join(kinds)}: {_shares(effective)} of the FLOPs"]
    if "convolution" in kinds:
        layouts = dict.fromkeys(work.layout for work in effective.work if work.layout is not None)
        shares = [
            (share_of_flops(effective, lambda work, x=layout: work.layout == x, images=True), layout)  # type: ignore[misc]
            for layout in layouts
        ]
        parts.append(", ".join(f"{layout} {_percent(part)}" for part, layout in sorted(shares, reverse=True)))
    return "; ".join(parts)


def _shares(effective: Effective) -> str:
    dtypes = dict.fromkeys(work.dtype for work in effective.work)
    shares = [
        (share_of_flops(effective, lambda work, x=dtype: work.dtype == x), dtype)  # type: ignore[misc]
        for dtype in dtypes
    ]
    largest = sorted(shares, reverse=True)[:SHARES_SHOWN]
    return ", ".join(f"{dtype} {_percent(part)}" for part, dtype in largest)


def _percent(part: float) -> str:
    return f"{significant(part * 100, 3)} %"


def _effect_notes(effective: Effective | None, compilation: Compilation | None) -> Iterator[str]:
    if effective is not None and effective.uncounted:
        yield f"no FLOP formula, so omitted from these percentages: {', '.join(effective.uncounted)}"
    if compilation is None:
        return
    for graph_break in compilation.graph_breaks[:BREAKS_SHOWN]:
        yield f"torch.compile broke the graph {_many(graph_break.times, 'time')}: {graph_break.reason}"
    if compilation.cuda_graph_skips:
        yield f"torch.compile skipped CUDA graphs {_many(compilation.cuda_graph_skips, 'time')}"

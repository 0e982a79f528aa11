"""What really ran, in words and in full: precision, layout, compilation, optimizer, and what else was chosen.

In: the first launch of a run, whose ranks and repeats are built alike.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from gpuproof.base.units import significant
from gpuproof.launches.launch import Launch
from gpuproof.records.run import Setup
from gpuproof.records.what_ran import Compilation, Effective, StepOptions, share_of_flops

SHARES_SHOWN = 3
BREAKS_SHOWN = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class OptionsInEffect:
    """What the steps of a run were made of."""

    summary: str
    """All options in one line."""
    observed: str
    """What the kernels of one step were given, or why that is not known."""
    notes: tuple[str, ...]


def options_in_effect(launch: Launch) -> OptionsInEffect | None:
    """Describe a launch; None for one of a version that did not write it down."""
    options = launch.setup.options
    if options is None:
        return None
    effective = launch.effective[0] if launch.effective else None
    compilation = launch.compilations[0] if launch.compilations else None
    return OptionsInEffect(
        summary=", ".join(_options(launch.setup, options, compilation)),
        observed=_effect_text(effective),
        notes=tuple(_notes(effective, compilation)),
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
        return "not known: not recorded"
    if not effective.work:
        return f"not known: {effective.missing}"
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


def _notes(effective: Effective | None, compilation: Compilation | None) -> Iterator[str]:
    if effective is not None and effective.uncounted:
        yield f"left out of these shares, having no FLOP formula: {', '.join(effective.uncounted)}"
    if compilation is None:
        return
    for graph_break in compilation.graph_breaks[:BREAKS_SHOWN]:
        yield f"torch.compile broke the graph {_many(graph_break.times, 'time')}: {graph_break.reason}"
    if compilation.cuda_graph_skips:
        yield f"torch.compile went without a CUDA graph {_many(compilation.cuda_graph_skips, 'time')}"

"""Did what ran fit what was asked? Arithmetic, layout, compilation: from records of the kernels' operands.

A figure carries the name of its precision, so a figure whose FLOPs ran in another one is named wrongly.
INVALID where that is most of them; SUSPECT from a share that a part kept in fp32 on purpose does not reach.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Literal

from gpuproof.analysis.launch import Launch
from gpuproof.analysis.validity import Finding
from gpuproof.records.what_ran import Compilation, Effective, ObservedWork
from gpuproof.units import count, share

ELSEWHERE = 0.05
"""Share of the FLOPs that may run in an arithmetic or a layout that was not asked for."""
MOSTLY = 0.5
TYPES = {"fp32": "float32", "tf32": "float32", "amp": "float16", "bf16": "bfloat16", "fp8": "float8"}
"""How the operands' type begins in each precision."""
BESIDE = {"fp8": "bfloat16"}
"""The type of what a precision leaves as it is: in fp8, all that is no linear layer."""

Level = Literal["SUSPECT", "INVALID"]


def share_of_flops(
    effective: Effective, fits: Callable[[ObservedWork], bool], *, images: bool = False
) -> float:
    """Return the share of the observed FLOPs that fits; of those of convolutions only, with `images`.

    0 where there is nothing to be a share of.
    """
    considered = [work for work in effective.work if not images or work.operation == "convolution"]
    total = sum(work.flops for work in considered)
    return sum(work.flops for work in considered if fits(work)) / total if total else 0.0


def in_type(name: str) -> Callable[[ObservedWork], bool]:
    """Return the test whether both operands are of the type whose name begins so."""
    return lambda work: all(operand.startswith(name) for operand in work.dtype.split(" × "))


def contradictions_of_what_ran(launch: Launch) -> tuple[Finding, ...]:
    """Return every doubt that what ran is what was asked."""
    found: list[Finding] = []
    for effective in launch.effective:
        if effective.work:
            found += [*_arithmetic(launch, effective), *_layout(launch, effective)]
    for compilation in launch.compilations:
        found += _compilation(compilation)
    return (*found, *_switches(launch))


def _arithmetic(launch: Launch, effective: Effective) -> Iterator[Finding]:
    asked = launch.case.training.precision
    as_asked = share_of_flops(effective, in_type(TYPES[asked]))
    beside = share_of_flops(effective, in_type(BESIDE[asked])) if asked in BESIDE else 0.0
    elsewhere = 1 - as_asked - beside
    if as_asked >= MOSTLY and elsewhere <= ELSEWHERE:
        return
    yield Finding(
        validity="INVALID" if as_asked < MOSTLY else "SUSPECT",
        code="other-precision",
        reason=f"training.precision is {asked}, but {share(1 - as_asked)} of the FLOPs of rank "
        f"{effective.rank} ran in something else: {_types(effective)}",
        remedy="Ask for the precision that the model runs in, or find what keeps it from this one",
    )


def _types(effective: Effective) -> str:
    dtypes = dict.fromkeys(work.dtype for work in effective.work)
    shares = {dtype: share_of_flops(effective, lambda work, d=dtype: work.dtype == d) for dtype in dtypes}  # type: ignore[misc]
    return ", ".join(f"{share(part)} {dtype}" for dtype, part in shares.items())


def _layout(launch: Launch, effective: Effective) -> Iterator[Finding]:
    ignored = {item.key for item in launch.setup.not_applied}
    if not launch.case.model.channels_last or "model.channels_last" in ignored:
        return
    if not any(work.operation == "convolution" for work in effective.work):
        return
    fitting = share_of_flops(effective, lambda work: work.layout in ("NHWC", "either"), images=True)
    if fitting < 1 - ELSEWHERE:
        yield Finding(
            validity="INVALID" if fitting < MOSTLY else "SUSPECT",
            code="other-layout",
            reason=f"model.channels_last is true, but {share(1 - fitting)} of the convolutions' FLOPs of "
            f"rank {effective.rank} ran on tensors that are not NHWC",
            remedy="Look for what makes tensors contiguous in the model, or set model.channels_last to false",
        )


def _switches(launch: Launch) -> Iterator[Finding]:
    options = launch.setup.options
    asked = launch.case.training.precision
    if options is None or options.tf32 is None or asked not in ("fp32", "tf32"):
        return
    if options.tf32 != ("on" if asked == "tf32" else "off"):
        yield Finding(
            validity="INVALID",
            code="other-tf32",
            reason=f"training.precision is {asked}, but torch's TF32 switches were {options.tf32}",
            remedy="Something in the model's code sets it: ask for the precision that it sets",
        )


def _compilation(compilation: Compilation) -> Iterator[Finding]:
    if not compilation.num_graphs:
        yield Finding(
            validity="INVALID",
            code="nothing-compiled",
            reason=f"torch.compile made no graph on rank {compilation.rank}: these are eager steps",
            remedy="Set training.compile.enabled to false, or training.compile.fullgraph to true to see why",
        )
    if compilation.compiled_in_window:
        yield Finding(
            validity="SUSPECT",
            code="compiled-in-window",
            reason=f"torch.compile worked {count(compilation.compiled_in_window)} times inside the window "
            f"of rank {compilation.rank}: it took part of its time",
            remedy="Warm up longer (benchmark.warmup_steps), or set training.compile.dynamic to true",
        )

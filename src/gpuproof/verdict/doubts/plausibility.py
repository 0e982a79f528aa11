"""Are a launch's results consistent with each other, with the request, and with what is possible?

A result is labelled with its precision, so it is mislabelled if its FLOPs ran in another precision: INVALID
if most of them did; SUSPECT above a fraction that a part deliberately kept in fp32 does not reach.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

from gpuproof.base.units import bandwidth, count, flops, seconds, share
from gpuproof.launches.launch import Launch
from gpuproof.records.result import Doubt
from gpuproof.records.what_ran import Compilation, Effective, ObservedWork, share_of_flops
from gpuproof.verdict.doubts.base import WRONG, Measured, invalid, suspect

AGREEMENT = 0.02
"""Device time and wall time may differ by up to this fraction without an explanation."""
COUNTS_AGREE = 0.01
"""Allowed relative difference; none is expected, because the closed-form FLOP count and torch's counter omit
the same operations."""
ELSEWHERE = 0.05
"""Fraction of the FLOPs that may run in a precision or layout that was not requested."""
MOSTLY = 0.5
SPARSITY_AGREES = 0.001
"""Fraction of the weights by which pruning may miss its target sparsity."""
TYPES = {
    "fp64": "float64",
    "fp32": "float32",
    "tf32": "float32",
    "amp": "float16",
    "bf16": "bfloat16",
    "fp8": "float8",
}
"""Prefix of the operand type for each precision."""
BESIDE = {"fp8": "bfloat16"}
"""Type of the operations that a precision leaves unchanged: in fp8, everything except linear layers."""


def contradictions(measured: Measured) -> Iterator[Doubt]:
    """Find counts and times that contradict each other."""
    launch = measured.launch
    steps = {window.num_steps for window in launch.windows}
    if len(steps) > 1:
        yield invalid("ranks-disagree", f"ranks ran different numbers of steps: {sorted(steps)}")
    is_logged = launch.case.model_work.window.log_step_times
    for window, setup, num_logged in zip(launch.windows, launch.setups, launch.num_step_times, strict=True):
        expected = window.num_steps * setup.items_per_step
        if window.items != expected:
            yield invalid(
                "items-disagree",
                f"rank {window.rank} counts {count(window.items)} items, but its steps add up to "
                f"{count(expected)}",
            )
        if window.steps_s > window.wall_s * (1 + AGREEMENT):
            yield invalid(
                "steps-exceed-window",
                f"the steps of rank {window.rank} sum to {seconds(window.steps_s)} "
                f"in a window of {seconds(window.wall_s)}",
            )
        if num_logged != window.num_steps and (num_logged or is_logged):
            reason = f"{num_logged} step times of rank {window.rank} were stored for {window.num_steps} steps"
            yield invalid("steps-lost", reason)
    off_s = abs(sum(launch.step_times_s) - launch.slowest.steps_s)
    is_whole = len(launch.step_times_s) == launch.slowest.num_steps
    if is_whole and off_s > AGREEMENT * launch.slowest.steps_s:
        yield invalid(
            "step-times-disagree",
            f"the step times sum to {seconds(sum(launch.step_times_s))}, but their window reports "
            f"{seconds(launch.slowest.steps_s)}",
        )


def over_ceiling(measured: Measured) -> Iterator[Doubt]:
    """Find a rate above the data sheet's peak, or one out of reach even at the device's highest clock.

    The reachable maximum is compared with only those FLOPs that kernels cannot skip.
    """
    launch, peak, clock_mhz = measured.launch, measured.peak, measured.clock_max_mhz
    reached, least = launch.flops_per_s_per_device, launch.least_flops_per_s_per_device
    if peak is None or reached is None or reached <= peak.flops_per_s:
        return
    highest = peak.at_clock(clock_mhz)
    over = (
        f"{_tflops(reached)} is above the {_tflops(peak.flops_per_s)} dense {peak.dtype} peak of "
        f"{launch.setup.device.name} ({peak.source})"
    )
    if least is not None and least > highest:
        needed = "" if least == reached else f", at least {_tflops(least)} of it,"
        at = "any clock" if clock_mhz is None else f"its highest clock of {clock_mhz:,.0f} MHz"
        yield invalid("over-ceiling", f"{over},{needed} and above the {_tflops(highest)} of {at}")
    else:
        yield suspect(
            "over-peak",
            f"{over}; a clock above the data sheet's, or kernels that skip what a causal mask "
            "hides, may explain it",
            "Do not quote it as a percentage of the peak: check the clock that the device ran at",
        )


def _tflops(flops_per_s: float) -> str:
    return f"{flops_per_s / 1e12:,.1f} TFLOP/s"


FORM = "Register the workload with a closed form of its work"


def uncounted_work(measured: Measured) -> Iterator[Doubt]:
    """Find steps with an unknown amount of work, where an impossible rate would go undetected."""
    setup = measured.launch.setup
    if measured.launch.flops_per_step or setup.bytes_per_step:
        return
    why = setup.flops_not_counted or "it contains no matrix product"
    is_counted = measured.launch.case.model_work.window.count_flops
    yield suspect(
        "work-not-counted",
        f"the work of a step is unknown ({why}): its rate cannot be compared with any ceiling",
        FORM if is_counted else f"Set benchmark.count_flops to true. {FORM}",
    )


def other_than_configured(measured: Measured) -> Iterator[Doubt]:
    """Find work that did not run with the requested precision, layout or compilation."""
    launch = measured.launch
    for effective in launch.effective:
        if effective.work:
            yield from _arithmetic(launch, effective)
            yield from _layout(launch, effective)
    for compilation in launch.compilations:
        yield from _compilation(compilation)
    yield from _switches(launch)
    yield from _pruning(launch)


def in_type(name: str) -> Callable[[ObservedWork], bool]:
    """Return a function that tests whether both operands have a type with this prefix."""
    return lambda work: all(operand.startswith(name) for operand in work.dtype.split(" × "))


def _arithmetic(launch: Launch, effective: Effective) -> Iterator[Doubt]:
    precision = launch.case.model_work.training.precision
    in_precision = share_of_flops(effective, in_type(TYPES[precision]))
    beside = share_of_flops(effective, in_type(BESIDE[precision])) if precision in BESIDE else 0.0
    elsewhere = 1 - in_precision - beside
    if in_precision >= MOSTLY and elsewhere <= ELSEWHERE:
        return
    yield Doubt(
        validity="INVALID" if in_precision < MOSTLY else "SUSPECT",
        code="other-precision",
        reason=f"training.precision is {precision}, but {share(1 - in_precision)} of the FLOPs of rank "
        f"{effective.rank} ran in something else: {_types(effective)}",
        remedy="Request the precision that the model runs in, or find out why it does not use this one",
    )


def _types(effective: Effective) -> str:
    dtypes = dict.fromkeys(work.dtype for work in effective.work)
    shares = {dtype: share_of_flops(effective, lambda work, d=dtype: work.dtype == d) for dtype in dtypes}  # type: ignore[misc]
    return ", ".join(f"{share(part)} {dtype}" for dtype, part in shares.items())


def _layout(launch: Launch, effective: Effective) -> Iterator[Doubt]:
    ignored = {item.key for item in launch.setup.not_applied}
    if not launch.case.model_work.model.channels_last or "model.channels_last" in ignored:
        return
    if not any(work.operation == "convolution" for work in effective.work):
        return
    fitting = share_of_flops(effective, lambda work: work.layout in ("NHWC", "either"), images=True)
    if fitting < 1 - ELSEWHERE:
        yield Doubt(
            validity="INVALID" if fitting < MOSTLY else "SUSPECT",
            code="other-layout",
            reason=f"model.channels_last is true, but {share(1 - fitting)} of the convolutions' FLOPs of "
            f"rank {effective.rank} ran on tensors that are not NHWC",
            remedy="Look for what makes tensors contiguous in the model, or set model.channels_last to false",
        )


def _switches(launch: Launch) -> Iterator[Doubt]:
    options = launch.setup.options
    precision = launch.case.model_work.training.precision
    if options is None or options.tf32 is None or precision not in ("fp32", "tf32"):
        return
    if options.tf32 != ("on" if precision == "tf32" else "off"):
        yield invalid(
            "other-tf32",
            f"training.precision is {precision}, but torch's TF32 switches were {options.tf32}",
            "Something in the model's code sets it: request the precision that it sets",
        )


def _pruning(launch: Launch) -> Iterator[Doubt]:
    """Find a model that is not as sparse as requested, and ranks that pruned different weights."""
    for pruned in launch.pruned:
        masked = pruned.num_masked / pruned.num_weights
        if abs(masked - pruned.target_sparsity) > SPARSITY_AGREES:
            yield invalid(
                "other-sparsity",
                f"{share(pruned.target_sparsity)} of the weights should be zero, but {share(masked)} are, on "
                f"rank {pruned.rank} after update {count(pruned.num_updates)}",
                f"Train longer: the target is reached at step {count(pruned.end_step)}, set by "
                "training.pruning.end_step",
            )
        if pruned.num_zero < pruned.num_masked:
            yield invalid(
                "pruned-weights-live",
                f"{count(pruned.num_masked - pruned.num_zero)} of {count(pruned.num_masked)} pruned "
                f"weights of rank {pruned.rank} are not zero",
                "Something other than the pruner changes the weights: check the model's code",
            )
    if len({pruned.masks_sha256 for pruned in launch.pruned}) > 1:
        yield invalid(
            "masks-differ",
            f"the {len(launch.pruned)} ranks average gradients, but pruned different weights",
            "Look for weights that differ between ranks: set training.deterministic to true",
        )


def _compilation(compilation: Compilation) -> Iterator[Doubt]:
    if not compilation.num_graphs:
        yield invalid(
            "nothing-compiled",
            f"torch.compile created no graph on rank {compilation.rank}: these are eager steps",
            "Set training.compile.enabled to false, or training.compile.fullgraph to true to see why",
        )
    if compilation.compiled_in_window:
        yield suspect(
            "compiled-in-window",
            f"torch.compile ran {count(compilation.compiled_in_window)} times inside the window of "
            f"rank {compilation.rank}, taking up part of its time",
            "Warm up longer (benchmark.warmup_steps), or set training.compile.dynamic to true",
        )


def work_disagrees(measured: Measured) -> Iterator[Doubt]:
    """Find FLOP and byte counts that disagree with each other, or exceed a device's capabilities."""
    launch = measured.launch
    yield from _counts(launch)
    yield from _over_data_sheet(measured)
    yield from _over_measured(launch)


def _counts(launch: Launch) -> Iterator[Doubt]:
    closed, counted = launch.setup.flops_per_step, launch.setup.flops_per_step_counted
    if closed is None or counted is None or abs(counted - closed) <= COUNTS_AGREE * closed:
        return
    yield suspect(
        "flops-disagree",
        f"a step has {closed:,.0f} FLOPs by the closed form but {counted:,.0f} by torch's counter "
        f"({share(abs(counted - closed) / closed) if closed else 'from none'} apart)",
        "Do not quote FLOP/s or utilisation: the model does different work than its closed form says",
    )


def _over_data_sheet(measured: Measured) -> Iterator[Doubt]:
    launch, peak = measured.launch, measured.memory_peak
    reached = launch.bytes_per_s_per_device
    if peak is not None and reached is not None and reached > peak.bytes_per_s:
        yield suspect(
            "over-memory-peak",
            f"{bandwidth(reached)} is above the {bandwidth(peak.bytes_per_s)} of "
            f"{launch.setup.device.name}'s memory ({peak.provenance})",
            "Part of the data stays in the cache: do not quote it as memory bandwidth; use larger data",
        )


def _over_measured(launch: Launch) -> Iterator[Doubt]:
    roofline = launch.roofline
    if roofline is None:
        return
    for ceiling, reached, text, work in (
        (roofline.compute, launch.flops_per_s_per_device, flops, "products"),
        (roofline.memory, launch.bytes_per_s_per_device, bandwidth, "passes over memory"),
    ):
        if ceiling is not None and reached is not None and reached > ceiling.highest_per_s:
            yield suspect(
                f"over-measured-{'compute' if work == 'products' else 'memory'}",
                f"{text(reached)} is above the {text(ceiling.value_per_s)} "
                f"(+{share(ceiling.relative_spread)} spread) that plain {work} reached here after the window",
                "Find out which is wrong: clocks or other processes that changed in between, data "
                "that stays in a cache, or an overestimate of the work",
            )


def wrong_products(measured: Measured) -> Iterator[Doubt]:
    """Find matmul results that differ from a reference."""
    wrong = [check for check in measured.launch.checks if check.value]
    if wrong:
        first = wrong[0]
        yield invalid(
            WRONG,
            f"{count(int(first.value or 0))} elements of the last product of rank {first.rank} are wrong "
            f"({'; '.join(first.evidence)}); ranks with wrong products: "
            f"{', '.join(str(check.rank) for check in wrong)}",
            "Take the device out of service and send these records to its vendor",
        )

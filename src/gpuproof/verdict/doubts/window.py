"""Was a window long enough, steady, and without gaps? Did the host or the loader limit its rate?"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from math import ceil

from gpuproof.base.units import NOT_WELL_ENOUGH, count, plus_minus, seconds, share
from gpuproof.launches.launch import Launch
from gpuproof.launches.limits import idle_share, recorded_limits, waiting_window
from gpuproof.launches.power_cap import evened_steps, periods_text
from gpuproof.readings.limits import HOST_BOUND
from gpuproof.records.result import Doubt
from gpuproof.records.what_ran import AT_POWER_CAP
from gpuproof.statistics.dispersion import noise
from gpuproof.statistics.estimate import Unavailable
from gpuproof.statistics.power_cap import PowerCapWindow
from gpuproof.statistics.series import OUTLYING, Steadiness, judge_steadiness
from gpuproof.verdict.doubts.base import SHORT_AT_POWER_CAP, Measured, fewer_threads, invalid, suspect
from gpuproof.verdict.doubts.plausibility import AGREEMENT

OFTEN = 0.10
"""Fraction of steps that found the device idle when the host launched them, above which an unmeasured wait
may matter."""
HOST_GAP = 0.05
"""On a CPU, almost nothing runs between steps, so a gap of more than this fraction of the window is a
contradiction."""
HOST_GAP_S = 0.05
"""The gap must also be longer than this, in seconds: a busy scheduler can take milliseconds, within a step or
between two steps."""
FEW_STEPS = 10
NOISE = 0.10
"""Maximum interquartile range of the step times, divided by their median."""
STEADINESS_UNKNOWN = "steadiness-unknown"
GROWTH = 0.05
"""Growth of decode step times over a window above which an unknown cause is reported."""
PRECISION_REACHED = "precision reached"
"""Reason that a worker reports if it ended a window because the mean step time was known precisely enough."""
LIMITS: Mapping[str, str] = {"host": "host-bound", "data loading": "data-bound"}
"""Codes for limits that do not disturb a launch: the host or the loader limits the rate."""
FASTER_LOADER = (
    "Raise data.num_workers or data.prefetch_factor, or measure only the device with data.loading=device"
)
SIZES = {
    "gemm": "model.options.m, model.options.n and model.options.k",
    "memory": "model.options.buffer_bytes",
}
"""For each workload, the keys that determine the amount of work per step."""
READY_BEFORE = 0.10
"""Fraction of the window's batches that may have been ready before it started. A loader that never ran dry
produced the rest in time, so it keeps up with at least 1 - 0.10 = 90 % of the reported rate."""


def too_short(measured: Measured) -> Iterator[Doubt]:
    """Flag a window that is shorter than requested, or too short to be useful."""
    launch = measured.launch
    window = launch.slowest
    if window.requested_steps is not None and window.num_steps < window.requested_steps:
        yield invalid(
            "too-short",
            f"{window.num_steps} of {window.requested_steps} steps were measured",
            "Run it again",
        )
    if window.requested_s is not None and window.wall_s < window.requested_s:
        yield invalid(
            "too-short",
            f"{seconds(window.wall_s)} of {seconds(window.requested_s)} were measured",
            "Run it again",
        )
    target = launch.case.model_work.window.target
    reach = window.relative_half_width
    is_reached = window.stop_reason.endswith(AT_POWER_CAP) and reach is not None and reach <= (target or 0.0)
    if target is not None and window.stop_reason != PRECISION_REACHED and not is_reached:
        yield suspect(
            "imprecise",
            f"the mean step is {_reach_text(reach, target)}: {window.stop_reason}",
            "Raise benchmark.measure_seconds, request less precision, or find out what makes steps differ",
        )
    if window.num_steps < FEW_STEPS:
        yield suspect(
            "few-steps",
            f"too few steps were measured: {window.num_steps}, and at least {FEW_STEPS} are needed",
            _longer(launch),
        )


def _longer(launch: Launch) -> str:
    """Return the key that lengthens this recipe's window."""
    by_steps = launch.case.model_work.window.measure_by == "steps"
    return f"Raise benchmark.{'measure_steps' if by_steps else 'measure_seconds'}"


def _reach_text(reach: float | None, target: float) -> str:
    if reach is None:
        return f"unknown instead of ±{share(target)} as requested"
    if reach <= target:
        return f"not known to ±{share(target)} as requested, since the parts of the window do not agree yet"
    reached = plus_minus(reach)
    reached = reached if reached == NOT_WELL_ENOUGH else f"known only to {reached}"
    return f"{reached}, not to ±{share(target)} as requested"


def gaps(measured: Measured) -> Iterator[Doubt]:
    """Find parts of the window in which no steps ran."""
    launch = measured.launch
    window = launch.slowest
    gap = 1 - window.steps_s / window.wall_s
    if window.clock == "host" and launch.world_size > 1:
        if gap > AGREEMENT:
            yield suspect(
                "ranks-wait",
                f"ranks waited for each other between steps for {share(gap)} of the window",
                f"Give each rank dedicated CPUs{fewer_threads(measured.launch.setups)}",
            )
    elif window.clock == "host" and gap > AGREEMENT:
        contradicts = gap > HOST_GAP and gap * window.wall_s > HOST_GAP_S
        yield Doubt(
            validity="INVALID" if contradicts else "SUSPECT",
            code="gap-between-steps",
            reason=f"{share(gap)} of the window is outside all steps, where almost none of our code runs",
            remedy="Something stopped the process: check for other processes, and run it again",
        )
    elif window.clock != "host" and not launch.case.measures_latency and gap <= HOST_BOUND:
        yield from _idle_unknown(launch)


def _idle_unknown(launch: Launch) -> Iterator[Doubt]:
    """Find a device that was often idle for an unknown length of time."""
    idle = idle_share(launch)
    caught_up = max((window.caught_up_steps or 0) / window.num_steps for window in launch.windows)
    if isinstance(idle, Unavailable) and caught_up > OFTEN:
        yield suspect(
            "idle-unknown",
            f"in {share(caught_up)} of the steps the device had no work queued when the host "
            f"launched the step, and how long it waited is unknown: {idle.reason}",
            f"{_more_work(launch)}; a step with more work settles it",
        )


def limited(measured: Measured) -> Iterator[Doubt]:
    """Report host and loader as limits; `rules.weighed` decides when this makes a rate doubtful."""
    for limit in recorded_limits(measured.launch):
        if limit.name in LIMITS:
            remedy = _more_work(measured.launch) if limit.name == "host" else FASTER_LOADER
            yield Doubt(validity="VALID", code=LIMITS[limit.name], reason=limit.text, remedy=remedy)


def _more_work(launch: Launch) -> str:
    """Suggest how to give a device more work at a time, as far as this recipe allows."""
    if (size := SIZES.get(launch.case.model_work.model.name)) is not None:
        return f"Raise {size}"
    if (
        launch.case.model_work.generates
        or launch.setup.replicas is not None
        or launch.setup.compiled is not None
    ):
        return "Raise data.batch_size"
    return "Raise data.batch_size, or use training.compile.enabled=true"


def unsteady(measured: Measured) -> Iterator[Doubt]:
    """Find step times that scatter, shift or stall, and windows where this cannot be determined."""
    launch = measured.launch
    if measured.power_cap is not None:
        yield from _at_power_cap(measured.power_cap, _longer(measured.launch))
        return
    times_s = evened_steps(launch).times_s
    spread = noise(times_s)
    is_noisy = spread is not None and spread > NOISE
    if spread is not None and is_noisy:
        yield suspect(
            "noisy",
            f"the interquartile range of the step times is {share(spread)} of their median",
            "Look for other processes, changing clocks, or steps of unequal work",
        )
    steps = judge_steadiness(times_s)
    if steps is None:
        if not launch.step_times_s and launch.slowest.num_steps >= FEW_STEPS:
            yield _cannot_tell("step times were not stored", "Set benchmark.log_step_times to true")
        return
    yield from _levels(launch, steps, num_steps=len(times_s), is_noisy=is_noisy)
    if steps.stalled and steps.period:
        yield suspect(
            "periodic-steps",
            f"{count(steps.num_outlying)} of {count(len(times_s))} steps took over {OUTLYING:g} "
            f"times the median, at the same positions in every {steps.period} steps, and their "
            f"excess is {share(steps.lost_share)} of the window: steps of unequal work",
            f"Measure whole cycles of {steps.period} steps, or find out what happens in them: "
            "pruning, saving, logs",
        )
    elif steps.stalled:
        yield _stalled(
            f"{count(steps.num_outlying)} of {count(len(times_s))} steps took over {OUTLYING:g} "
            f"times the median, and their excess is {share(steps.lost_share)} of the window"
        )


def _at_power_cap(window: PowerCapWindow, raise_key: str) -> Iterator[Doubt]:
    """Find stalls, an actual or possible shift, and too few periods of the power-cap controller."""
    longer = f"benchmark.measure_by=time and benchmark.measure_seconds={ceil(window.needed_s)}"
    if window.verdict == "too short":
        yield suspect(
            SHORT_AT_POWER_CAP,
            f"too short at the power cap: {periods_text(window)}; {ceil(window.needed_s)} s are needed",
            f"Set {longer}",
        )
    elif window.verdict == "unsteady":
        yield suspect(
            "unsteady",
            f"step time was not steady at the power cap: steps became {_changed(window)}",
            "Warm up longer (benchmark.warmup_steps), or check clocks and temperature",
        )
    elif window.verdict == "cannot tell":
        detects = "any" if window.detects is None else f"any under {share(window.detects)}"
        yield suspect(
            STEADINESS_UNKNOWN,
            f"cannot tell whether step time was steady at the power cap: {periods_text(window)} "
            f"differ so much that drift across the window ({detects}) would go undetected",
            f"{raise_key}, or find out what makes periods differ",
        )
    if window.stalled:
        yield _stalled(
            f"steps far above the slow half of a period exceeded it by {share(window.lost_share)} "
            "of the window in total"
        )


def _changed(window: PowerCapWindow) -> str:
    by = f"{share(abs(window.changed_by))} {'longer' if window.changed_by > 0 else 'shorter'}"
    if window.changed_at is None:
        return f"{by} from start to end"
    return f"{by} at {share(window.changed_at)} of the window"


def _stalled(why: str) -> Doubt:
    remedy = "Warm up longer (benchmark.warmup_steps), or find out what stalls steps: loading, other work"
    return suspect("stalled", why, remedy)


def _levels(launch: Launch, steps: Steadiness, *, num_steps: int, is_noisy: bool) -> Iterator[Doubt]:
    if steps.verdict == "unsteady":
        yield suspect(
            "unsteady",
            "step time was not steady: medians of twelfths of the window differ by "
            f"{share(steps.level_spread)}, fastest at {share(steps.lowest_at)} of the window and "
            f"slowest at {share(steps.highest_at)}",
            "Warm up longer (benchmark.warmup_steps), or check clocks and temperature",
        )
    elif steps.verdict == "cannot tell" and not is_noisy:  # if it is noisy, that message already says so
        yield _cannot_tell(
            f"medians of twelfths of the window differ by {share(steps.level_spread)}, which can "
            f"happen by chance with {count(num_steps)} steps that vary this much",
            f"{_longer(launch)}, or find out what makes steps differ",
        )


SKIPPED = 0.05
"""Maximum share of steps without an update: the window lacks at most this share of the optimizer's time. amp
also skips one now and then, since its scaler tries a larger scale every 2,000 steps."""


def _cannot_tell(why: str, remedy: str) -> Doubt:
    return suspect(STEADINESS_UNKNOWN, f"cannot tell whether step time was steady: {why}", remedy)


def growing(measured: Measured) -> Iterator[Doubt]:
    """Find decode steps that became longer, where a growing cache and a slower device look the same."""
    evened = evened_steps(measured.launch)
    if evened.growth is not None and evened.growth > GROWTH and not evened.is_separable:
        yield suspect(
            "growth-or-drift",
            f"steps became {share(evened.growth)} longer over a window of less than two "
            "generations: the cause may be the growing cache, or a device that slows down",
            f"{_longer(measured.launch)}, so that the window covers two generations or more",
        )


def not_finite(measured: Measured) -> Iterator[Doubt]:
    """Find windows with steps that produce NaN or infinities: their times may be meaningless."""
    launch = measured.launch
    trains = launch.case.model_work.trains
    what = "the loss" if trains else "outputs"
    for window in launch.windows:
        if window.not_finite_after is not None:
            last, first = window.not_finite_after
            before = f", and after {count(last)} did not" if last else ""
            yield suspect(
                "not-finite",
                f"{what} of rank {window.rank} on {window.host} contained infinities or NaN when "
                f"checked after {count(first)} of {count(window.num_steps)} steps{before}",
                f"Use another precision{', or a lower training.learning_rate' if trains else ''}; if other "
                "machines give finite numbers, check the device: gpuproof run probe --probe.name=fingerprint",
            )


def skipped(measured: Measured) -> Iterator[Doubt]:
    """Find windows in amp in which steps updated no weights, since their gradients were not finite."""
    for window in measured.launch.windows:
        if window.skipped_updates and window.skipped_updates > SKIPPED * window.num_steps:
            yield suspect(
                "skipped-updates",
                f"rank {window.rank} on {window.host} skipped the update of the weights in at least "
                f"{count(window.skipped_updates)} of {count(window.num_steps)} steps: its gradients in fp16 "
                "were not finite",
                "Warm up longer (benchmark.warmup_steps), so that amp's scaler finds its scale, or use "
                "training.precision=bf16",
            )
            return


def made_before(measured: Measured) -> Iterator[Doubt]:
    """Find a rate that counts batches which were ready before the window started."""
    launch = measured.launch
    window = waiting_window(launch)
    if window is None or window.data_wait_s is None:
        return
    ready = batches_ready_share(launch)
    if ready is not None and ready > READY_BEFORE:
        used = launch.setup.data_used
        yield suspect(
            "made-before",
            f"{count(used.batches_ahead if used else None)} batches may have been ready when the "
            f"window started, {share(min(1.0, ready))} of all that it used: the loader may be "
            "slower than the reported rate",
            f"{_longer(launch)}, so that these batches are only a small part",
        )


def batches_ready_share(launch: Launch) -> float | None:
    """Return the fraction of used batches that may predate the window; None without a loader."""
    used, window = launch.setup.data_used, launch.slowest
    if used is None or used.loading != "loader":
        return None
    samples = window.items / launch.setup.items_per_sample
    return used.batches_ahead * launch.case.model_work.data.batch_size / samples

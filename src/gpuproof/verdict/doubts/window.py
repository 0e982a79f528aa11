"""Was a window long enough, steady, and without gaps? Was its rate that of the host or the loader?"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from math import ceil

from gpuproof.base.units import NOT_WELL_ENOUGH, count, plus_minus, seconds, share
from gpuproof.launches.launch import Launch
from gpuproof.launches.limits import idle_share, recorded_limits, waiting_window
from gpuproof.launches.power_cap import evened_steps, periods_text
from gpuproof.readings.limits import HOST_BOUND
from gpuproof.records.result import Doubt
from gpuproof.statistics.dispersion import noise
from gpuproof.statistics.estimate import Unavailable
from gpuproof.statistics.power_cap import PowerCapWindow
from gpuproof.statistics.series import OUTLYING, Steadiness, judge_steadiness
from gpuproof.verdict.doubts.base import SHORT_AT_POWER_CAP, Measured, invalid, suspect
from gpuproof.verdict.doubts.plausibility import AGREEMENT

OFTEN = 0.10
"""Share of the launches that found the device at rest, from which a wait that nobody measured may matter."""
HOST_GAP = 0.05
"""On a processor next to nothing runs between steps: a gap of this share is a contradiction …"""
HOST_GAP_S = 0.05
"""… where it is longer than this, too: a busy scheduler takes milliseconds, in a step or between two."""
FEW_STEPS = 10
NOISE = 0.10
"""Interquartile range over median of the step times."""
STEADINESS_UNKNOWN = "steadiness-unknown"
GROWTH = 0.05
"""Of decode steps over a window, from which it matters that nobody can tell what it comes from."""
PRECISION_REACHED = "precision reached"
"""The reason that a worker gives for the end of a window whose mean step is known as well as was asked."""
LIMITS: Mapping[str, str] = {"host": "host-bound", "data loading": "data-bound"}
"""Codes of what limits a launch without disturbing it: a rate of the host or the loader."""
FASTER_LOADER = (
    "Raise data.num_workers or data.prefetch_factor, or measure the device alone with data.loading=device"
)
SIZES = {
    "gemm": "model.options.m, model.options.n and model.options.k",
    "memory": "model.options.buffer_bytes",
}
"""Workload → the keys that say how much one of its steps does."""
READY_BEFORE = 0.10
"""Share of the window's batches that may have been made before it. A loader that never ran dry made the
others in time, so that it keeps up with at least 1 - 0.10 = 90 % of the rate that is printed."""


def too_short(measured: Measured) -> Iterator[Doubt]:
    """Find a window that is shorter than asked, or too short to say much."""
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
    if target is not None and window.stop_reason != PRECISION_REACHED:
        yield suspect(
            "imprecise",
            f"the mean step is {_reach_text(window.relative_half_width, target)}: {window.stop_reason}",
            "Raise benchmark.measure_seconds, ask for less, or find out what makes steps differ",
        )
    if window.num_steps < FEW_STEPS:
        yield suspect(
            "few-steps",
            f"too few steps were measured: {window.num_steps}, and it takes at least {FEW_STEPS}",
            _longer(launch),
        )


def _longer(launch: Launch) -> str:
    """Say by which key this recipe's window becomes longer."""
    by_steps = launch.case.model_work.window.measure_by == "steps"
    return f"Raise benchmark.{'measure_steps' if by_steps else 'measure_seconds'}"


def _reach_text(reach: float | None, target: float) -> str:
    if reach is None:
        return f"not known, not to ±{share(target)} as asked"
    if reach <= target:
        return f"not known to ±{share(target)} as asked, since the parts of the window do not agree so far"
    reached = plus_minus(reach)
    reached = reached if reached == NOT_WELL_ENOUGH else f"known to {reached} only"
    return f"{reached}, not to ±{share(target)} as asked"


def gaps(measured: Measured) -> Iterator[Doubt]:
    """Find time of the window in which no step ran."""
    launch = measured.launch
    window = launch.slowest
    gap = 1 - window.steps_s / window.wall_s
    if window.clock == "host" and launch.world_size > 1:
        if gap > AGREEMENT:
            yield suspect(
                "ranks-wait",
                f"ranks waited for each other between steps for {share(gap)} of the window",
                "Give each rank processors of its own, or lower distributed.threads_per_rank",
            )
    elif window.clock == "host" and gap > AGREEMENT:
        contradicts = gap > HOST_GAP and gap * window.wall_s > HOST_GAP_S
        yield Doubt(
            validity="INVALID" if contradicts else "SUSPECT",
            code="gap-between-steps",
            reason=(f"{share(gap)} of the window lies outside all steps, where next to nothing of ours runs"),
            remedy="Something stopped the process: look at the neighbours, and run it again",
        )
    elif window.clock != "host" and not launch.case.measures_latency and gap <= HOST_BOUND:
        yield from _idle_unknown(launch)


def _idle_unknown(launch: Launch) -> Iterator[Doubt]:
    """Find a device that often had nothing to do, for nobody knows how long."""
    idle = idle_share(launch)
    caught_up = max((window.caught_up_steps or 0) / window.num_steps for window in launch.windows)
    if isinstance(idle, Unavailable) and caught_up > OFTEN:
        yield suspect(
            "idle-unknown",
            f"in {share(caught_up)} of the steps the device had no work queued when the host launched "
            f"the step, and for how long it waited is not known: {idle.reason}",
            f"{_more_work(launch)}; a step with more work settles it",
        )


def limited(measured: Measured) -> Iterator[Doubt]:
    """Name host and loader as limits; `rules.weighed` says where a rate that is theirs is in doubt."""
    for limit in recorded_limits(measured.launch):
        if limit.name in LIMITS:
            remedy = _more_work(measured.launch) if limit.name == "host" else FASTER_LOADER
            yield Doubt(validity="VALID", code=LIMITS[limit.name], reason=limit.text, remedy=remedy)


def _more_work(launch: Launch) -> str:
    """Say how a device gets more work at a time, by what this recipe may still do."""
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
    """Find step times that scatter, change their level or stop, and windows of which that cannot be told."""
    launch = measured.launch
    if measured.power_cap is not None:
        yield from _at_power_cap(measured.power_cap)
        return
    times_s = evened_steps(launch).times_s
    spread = noise(times_s)
    is_noisy = spread is not None and spread > NOISE
    if spread is not None and is_noisy:
        yield suspect(
            "noisy",
            f"the interquartile range of the step times is {share(spread)} of their median",
            "Look for what else ran, for changing clocks, or for steps of unequal work",
        )
    steps = judge_steadiness(times_s)
    if steps is None:
        if not launch.step_times_s and launch.slowest.num_steps >= FEW_STEPS:
            yield _cannot_tell("step times were not kept", "Set benchmark.log_step_times to true")
        return
    yield from _levels(launch, steps, num_steps=len(times_s), is_noisy=is_noisy)
    if steps.stalled and steps.period:
        yield suspect(
            "periodic-steps",
            f"{count(steps.num_outlying)} of {count(len(times_s))} steps took over {OUTLYING:g} times the "
            f"median, at the same places in every {steps.period} steps, and {share(steps.lost_share)} of the "
            "window beyond it: steps of unequal work",
            f"Measure whole turns of {steps.period} steps, or find what comes in them: pruning, saving, logs",
        )
    elif steps.stalled:
        yield _stalled(
            f"{count(steps.num_outlying)} of {count(len(times_s))} steps took over {OUTLYING:g} times the "
            f"median, and {share(steps.lost_share)} of the window beyond it"
        )


def _at_power_cap(window: PowerCapWindow) -> Iterator[Doubt]:
    """Find too few periods of the power cap's controller, stops, and a level that changed or may have."""
    longer = f"benchmark.measure_by=time and benchmark.measure_seconds={ceil(window.needed_s)}"
    if window.verdict == "too short":
        yield suspect(
            SHORT_AT_POWER_CAP,
            f"too short at the power cap: {periods_text(window)}; would need {ceil(window.needed_s)} s",
            f"Set {longer}",
        )
    elif window.verdict == "unsteady":
        yield suspect(
            "unsteady",
            f"the level did not hold at the power cap: steps became {_changed(window)}",
            "Warm up longer (benchmark.warmup_steps), or look at clocks and temperature",
        )
    elif window.verdict == "cannot tell":
        detects = "any" if window.detects is None else f"one of under {share(window.detects)}"
        yield suspect(
            STEADINESS_UNKNOWN,
            f"whether the level held at the power cap cannot be told: {periods_text(window)} differ so much "
            f"that a drift across the window would not show, if it was {detects}",
            "Raise benchmark.measure_seconds, or find out what makes periods differ",
        )
    if window.stalled:
        yield _stalled(
            f"steps far over the slow half of a period took {share(window.lost_share)} of the window"
        )


def _changed(window: PowerCapWindow) -> str:
    by = f"{share(abs(window.changed_by))} {'longer' if window.changed_by > 0 else 'shorter'}"
    if window.changed_at is None:
        return f"{by} from begin to end"
    return f"{by} at {share(window.changed_at)} of the window"


def _stalled(why: str) -> Doubt:
    remedy = "Warm up longer (benchmark.warmup_steps), or find out what stops steps: loading, other work"
    return suspect("stalled", why, remedy)


def _levels(launch: Launch, steps: Steadiness, *, num_steps: int, is_noisy: bool) -> Iterator[Doubt]:
    if steps.verdict == "unsteady":
        yield suspect(
            "unsteady",
            "steps did not keep one level: medians of a twelfth of the window differ by "
            f"{share(steps.level_spread)}, shortest at {share(steps.lowest_at)} of the window and longest at "
            f"{share(steps.highest_at)}",
            "Warm up longer (benchmark.warmup_steps), or look at clocks and temperature",
        )
    elif steps.verdict == "cannot tell" and not is_noisy:  # where it is, that says it
        yield _cannot_tell(
            f"medians of a twelfth of the window differ by {share(steps.level_spread)}, as those of "
            f"{count(num_steps)} steps that scatter so may by chance",
            f"{_longer(launch)}, or find out what makes steps differ",
        )


def _cannot_tell(why: str, remedy: str) -> Doubt:
    return suspect(STEADINESS_UNKNOWN, f"whether steps kept one level cannot be told: {why}", remedy)


def growing(measured: Measured) -> Iterator[Doubt]:
    """Find decode steps that became longer, where a growing cache and a slower device look the same."""
    evened = evened_steps(measured.launch)
    if evened.growth is not None and evened.growth > GROWTH and not evened.is_separable:
        yield suspect(
            "growth-or-drift",
            f"steps became {share(evened.growth)} longer over a window of less than two generations: that "
            "may be the growing cache, or a device that slows down",
            f"{_longer(measured.launch)}, so that the window holds two generations or more",
        )


def not_finite(measured: Measured) -> Iterator[Doubt]:
    """Find windows whose steps put out what is no number: what they took may be the time of nothing."""
    launch = measured.launch
    what = "the loss" if launch.case.model_work.trains else "outputs"
    for window in launch.windows:
        if window.not_finite_after is not None:
            last, first = window.not_finite_after
            before = f", and after {count(last)} did not" if last else ""
            yield suspect(
                "not-finite",
                f"{what} of rank {window.rank} on {window.host} held infinities or NaN when looked at after "
                f"{count(first)} of {count(window.num_steps)} steps{before}",
                "Use another precision, or a lower training.learning_rate; where other machines give finite "
                "numbers, look at the device: gpuproof run probe --probe.name=fingerprint",
            )


def made_before(measured: Measured) -> Iterator[Doubt]:
    """Find a rate to which batches that were ready before the window contribute."""
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
            f"window began, {share(min(1.0, ready))} of all that it took: the loader may be slower than this",
            f"{_longer(launch)}, or lower data.prefetch_factor or data.num_workers",
        )


def batches_ready_share(launch: Launch) -> float | None:
    """Return what may have been ready before the window, over what the window took; None without a loader."""
    used, window = launch.setup.data_used, launch.slowest
    if used is None or used.loading != "loader":
        return None
    samples = window.items / launch.setup.items_per_sample
    return used.batches_ahead * launch.case.model_work.data.batch_size / samples

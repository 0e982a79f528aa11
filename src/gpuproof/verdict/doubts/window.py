"""Was a window long enough, steady, and without gaps? Did its steps wait for data?"""

from __future__ import annotations

from collections.abc import Iterator

from gpuproof.analysis.data_wait import waiting_window
from gpuproof.analysis.idleness import idle_share, idle_text
from gpuproof.analysis.launch import Launch
from gpuproof.records.result import Doubt
from gpuproof.statistics.dispersion import noise
from gpuproof.statistics.drift import Drift, drift
from gpuproof.statistics.estimate import Interval, Unavailable
from gpuproof.units import count, seconds, share
from gpuproof.verdict.doubts.base import Measured, invalid, suspect
from gpuproof.verdict.doubts.figures import AGREEMENT

HOST_BOUND = 0.10
"""Share of the window in which a device has nothing to do: the lower end of its interval, or the gaps between
steps that were timed on it."""
OFTEN = 0.10
"""Share of the launches that found the device at rest, from which a wait that nobody measured may matter."""
HOST_GAP = 0.05
"""On a processor next to nothing runs between steps: a gap of this share is a contradiction …"""
HOST_GAP_S = 0.05
"""… where it is longer than this, too: a busy scheduler takes milliseconds, in a step or between two."""
FEW_STEPS = 10
NOISE = 0.10
"""Interquartile range over median of the step times."""
DRIFT = 0.05
PRECISION_REACHED = "precision reached"
"""The reason that a worker gives for the end of a window whose mean step is known as well as was asked."""
DATA_BOUND = 0.05
"""Share of the window from which waiting is a doubt. Without it a device would do 1 / (1 - 0.05) = 1.05
times the work, as far off as an interval that is called wide (±5 %): such a rate is the loader's as well."""
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
    asked = launch.case.work.window.target_precision
    if asked is not None and window.stop_reason != PRECISION_REACHED:
        reach = window.relative_half_width
        known = "is not known" if reach is None else f"is known to ±{share(reach)} only"
        yield suspect(
            "imprecise",
            f"the mean step {known}, not to ±{share(asked)} as asked: {window.stop_reason}",
            "Raise benchmark.measure_seconds, ask for less, or find out what makes steps differ",
        )
    if window.num_steps < FEW_STEPS:
        yield suspect(
            "few-steps",
            f"too few steps were measured: {window.num_steps}, and it takes at least {FEW_STEPS}",
            "Raise benchmark.measure_steps or benchmark.measure_seconds",
        )


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
                "Measure by steps, or give each rank processors of its own (distributed.threads_per_rank)",
            )
    elif window.clock == "host" and gap > AGREEMENT:
        contradicts = gap > HOST_GAP and gap * window.wall_s > HOST_GAP_S
        yield Doubt(
            validity="INVALID" if contradicts else "SUSPECT",
            code="gap-between-steps",
            reason=f"{share(gap)} of the window lies outside all steps, where next to nothing of ours runs",
            remedy="Something stopped the process: look at the neighbours, and run it again",
        )
    elif window.clock != "host" and not launch.case.measures_latency:  # there the device waits by design
        yield from _host_bound(launch, gap=gap)


def _host_bound(launch: Launch, *, gap: float) -> Iterator[Doubt]:
    """Find a device that waits for its host: between steps, or between the kernels of a step."""
    idle = idle_share(launch)
    remedy = "Raise data.batch_size, or use training.compile.enabled=true"
    if isinstance(idle, Interval) and idle.low > HOST_BOUND:
        yield suspect(
            "host-bound",
            f"the device had nothing to do for {idle_text(idle)}: "
            "steps are launched more slowly than they run",
            remedy,
        )
    elif gap > HOST_BOUND:
        yield suspect(
            "host-bound",
            f"the device waited between steps for {share(gap)} of the window: "
            "steps are launched more slowly than they run",
            remedy,
        )
    elif isinstance(idle, Unavailable):
        caught_up = max((window.caught_up_steps or 0) / window.num_steps for window in launch.windows)
        if caught_up > OFTEN:
            yield suspect(
                "idle-unknown",
                f"the device had caught up with its host in {share(caught_up)} of the launches, and for how "
                f"long it waited is not known: {idle.reason}",
                f"{remedy}; a step with more work leaves no room for doubt",
            )


def unsteady(measured: Measured) -> Iterator[Doubt]:
    """Find step times that scatter or drift."""
    launch = measured.launch
    spread = noise(launch.step_times_s)
    if spread is not None and spread > NOISE:
        yield suspect(
            "noisy",
            f"the middle half of the step times spans {share(spread)} of their median",
            "Look for what else ran, for changing clocks, or for steps of unequal work",
        )
    change = drift(launch.step_times_s, at_least=DRIFT)
    if isinstance(change, Drift) and change.drifting:
        direction = "slower" if change.relative_change > 0 else "faster"
        yield suspect(
            "drifting",
            f"steps became {share(abs(change.relative_change))} {direction} from the first third of the "
            "window to the last",
            "Warm up longer (benchmark.warmup_steps), or look at clocks and temperature",
        )


def data_bound(measured: Measured) -> Iterator[Doubt]:
    """Find a rate that is the loader's, and not the device's."""
    launch = measured.launch
    window = waiting_window(launch)
    if window is None or window.data_wait_s is None:
        return
    waited = window.data_wait_s / window.wall_s
    if waited > DATA_BOUND:
        yield Doubt(
            validity="SUSPECT",
            code="data-bound",
            reason=f"steps waited for data for {share(waited)} of the window (rank {window.rank}): this is "
            "the rate of the loader, not of the device",
            remedy="Raise data.num_workers or data.prefetch_factor, or measure the device alone with "
            "data.loading=device",
        )
    ready = batches_ready_share(launch)
    if ready is not None and ready > READY_BEFORE:
        used = launch.setup.data_used
        yield Doubt(
            validity="SUSPECT",
            code="made-before",
            reason=f"{count(used.batches_ahead if used else None)} batches may have been ready when the "
            f"window began, {share(min(1.0, ready))} of all that it took: the loader may be slower than this",
            remedy="Measure longer, or lower data.prefetch_factor or data.num_workers",
        )


def batches_ready_share(launch: Launch) -> float | None:
    """Return what may have been ready before the window, over what the window took; None without a loader."""
    used, window = launch.setup.data_used, launch.slowest
    if used is None or used.loading != "loader":
        return None
    samples = window.items / launch.setup.items_per_sample
    return used.batches_ahead * launch.case.work.data.batch_size / samples

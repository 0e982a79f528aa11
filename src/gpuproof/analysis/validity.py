"""Can the figures of a launch be trusted? Every doubt is a finding with its reason and a remedy.

INVALID: the figures contradict each other, or what is physically possible, or what was asked.
SUSPECT: something disturbed or weakened the measurement. VALID is what is left when nothing was found.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Literal

from gpuproof.analysis.launch import Launch
from gpuproof.hardware import Peak
from gpuproof.records.run import Setup, Window
from gpuproof.statistics.dispersion import noise
from gpuproof.statistics.drift import Drift, drift
from gpuproof.units import count, seconds, share

Validity = Literal["VALID", "SUSPECT", "INVALID"]

AGREEMENT = 0.02
"""Device time and wall time may differ by this share before the difference must be explained."""
HOST_GAP = 0.05
"""On a processor next to nothing runs between steps: a gap of this share is a contradiction …"""
HOST_GAP_S = 0.05
"""… where it is longer than this, too: a busy scheduler takes milliseconds, in a step or between two."""
FEW_STEPS = 10
NOISE = 0.10
"""Interquartile range over median of the step times."""
DRIFT = 0.05
NEIGHBOUR_CPUS = 0.25
"""Processors' worth of work by others that may matter …"""
RUN_QUEUE_SHARE = 0.02
"""… if this case's threads also waited for a processor for this share of their time …"""
FULL_HOST = 0.95
"""… or, where waiting is not known, if the host was this busy."""
STEAL_SHARE = 0.02
PRECISION_REACHED = "precision reached"
"""The reason that a worker gives for the end of a window whose mean step is known as well as was asked."""
REPORT_IT = "Please report it: the records contradict each other"


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """A doubt about a measurement."""

    validity: Literal["SUSPECT", "INVALID"]
    code: str
    """Short and stable, for programs."""
    reason: str
    remedy: str


def worst(findings: Sequence[Finding]) -> Validity:
    """Return the validity that a set of findings leaves."""
    levels = {finding.validity for finding in findings}
    return "INVALID" if "INVALID" in levels else "SUSPECT" if "SUSPECT" in levels else "VALID"


def findings_of(launch: Launch, peak: Peak | None) -> tuple[Finding, ...]:
    """Return every doubt about one launch; `peak` is the ceiling of its device, if known."""
    return (
        *_contradictions(launch),
        *_ceiling(launch, peak),
        *_shortfall(launch),
        *_gaps(launch),
        *_step_times(launch),
        *findings_of_neighbours(launch.windows, launch.setups),
    )


def findings_of_neighbours(windows: Sequence[Window], setups: Sequence[Setup]) -> tuple[Finding, ...]:
    """Return what others did meanwhile on the processors and, where ranks had devices, on those."""
    return (*_processor_neighbours(windows), *_device_neighbours(windows, setups))


def _invalid(code: str, reason: str, remedy: str = REPORT_IT) -> Finding:
    return Finding(validity="INVALID", code=code, reason=reason, remedy=remedy)


def _suspect(code: str, reason: str, remedy: str) -> Finding:
    return Finding(validity="SUSPECT", code=code, reason=reason, remedy=remedy)


def _contradictions(launch: Launch) -> Iterator[Finding]:
    steps = {window.num_steps for window in launch.windows}
    if len(steps) > 1:
        yield _invalid("ranks-disagree", f"ranks ran different numbers of steps: {sorted(steps)}")
    for window, setup in zip(launch.windows, launch.setups, strict=True):
        expected = window.num_steps * setup.items_per_step
        if window.items != expected:
            yield _invalid(
                "items-disagree",
                f"rank {window.rank} counts {count(window.items)} items, its steps make {count(expected)}",
            )
        if window.steps_s > window.wall_s * (1 + AGREEMENT):
            yield _invalid(
                "steps-exceed-window",
                f"the steps of rank {window.rank} sum to {seconds(window.steps_s)} "
                f"in a window of {seconds(window.wall_s)}",
            )
    kept = len(launch.step_times_s)
    if kept and kept != launch.slowest.num_steps:
        yield _invalid("steps-lost", f"{kept} step times were kept of {launch.slowest.num_steps} steps")
    elif kept and abs(sum(launch.step_times_s) / launch.slowest.steps_s - 1) > AGREEMENT:
        yield _invalid(
            "step-times-disagree",
            f"the step times sum to {seconds(sum(launch.step_times_s))}, "
            f"their window says {seconds(launch.slowest.steps_s)}",
        )


def _ceiling(launch: Launch, peak: Peak | None) -> Iterator[Finding]:
    reached = launch.flops_per_s_per_device
    if peak is not None and reached is not None and reached > peak.flops_per_s:
        yield _invalid(
            "over-ceiling",
            f"{reached / 1e12:,.1f} TFLOP/s is over the {peak.flops_per_s / 1e12:,.1f} TFLOP/s dense "
            f"{peak.dtype} peak of {launch.setup.device.name} ({peak.source})",
        )


def _shortfall(launch: Launch) -> Iterator[Finding]:
    window = launch.slowest
    if window.requested_steps is not None and window.num_steps < window.requested_steps:
        yield _invalid(
            "too-short",
            f"{window.num_steps} of {window.requested_steps} steps were measured",
            "Run it again",
        )
    if window.requested_s is not None and window.wall_s < window.requested_s:
        yield _invalid(
            "too-short",
            f"{seconds(window.wall_s)} of {seconds(window.requested_s)} were measured",
            "Run it again",
        )
    asked = launch.case.window.target_precision
    if asked is not None and window.stop_reason != PRECISION_REACHED:
        reach = window.relative_half_width
        known = "is not known" if reach is None else f"is known to ±{share(reach)} only"
        yield _suspect(
            "imprecise",
            f"the mean step {known}, not to ±{share(asked)} as asked: {window.stop_reason}",
            "Raise benchmark.measure_seconds, ask for less, or find out what makes steps differ",
        )
    if window.num_steps < FEW_STEPS:
        yield _suspect(
            "few-steps",
            f"too few steps were measured: {window.num_steps}, and it takes at least {FEW_STEPS}",
            "Raise benchmark.measure_steps or benchmark.measure_seconds",
        )


def _gaps(launch: Launch) -> Iterator[Finding]:
    window = launch.slowest
    gap = 1 - window.steps_s / window.wall_s
    if window.clock == "host" and launch.world_size > 1:
        if gap > AGREEMENT:
            yield _suspect(
                "ranks-wait",
                f"ranks waited for each other between steps for {share(gap)} of the window",
                "Measure by steps, or give each rank processors of its own (distributed.threads_per_rank)",
            )
    elif window.clock == "host" and gap > AGREEMENT:
        contradicts = gap > HOST_GAP and gap * window.wall_s > HOST_GAP_S
        yield Finding(
            validity="INVALID" if contradicts else "SUSPECT",
            code="gap-between-steps",
            reason=f"{share(gap)} of the window lies outside all steps, where next to nothing of ours runs",
            remedy="Something stopped the process: look at the neighbours, and run it again",
        )
    elif gap > AGREEMENT and not launch.case.measures_latency:  # there the device waits by design
        yield _suspect(
            "host-bound",
            f"the device waited between steps for {share(gap)} of the window: "
            "steps are launched more slowly than they run",
            "Raise data.batch_size, or use training.compile.enabled=true",
        )


def _step_times(launch: Launch) -> Iterator[Finding]:
    spread = noise(launch.step_times_s)
    if spread is not None and spread > NOISE:
        yield _suspect(
            "noisy",
            f"the middle half of the step times spans {share(spread)} of their median",
            "Look for what else ran, for changing clocks, or for steps of unequal work",
        )
    change = drift(launch.step_times_s, at_least=DRIFT)
    if isinstance(change, Drift) and change.drifting:
        direction = "slower" if change.relative_change > 0 else "faster"
        yield _suspect(
            "drifting",
            f"steps became {share(abs(change.relative_change))} {direction} from the first third of the "
            "window to the last",
            "Warm up longer (benchmark.warmup_steps), or look at clocks and temperature",
        )


def _processor_neighbours(all_windows: Sequence[Window]) -> Iterator[Finding]:
    by_host: dict[str, list[Window]] = defaultdict(list)
    for window in all_windows:
        by_host[window.host].append(window)
    for host, windows in by_host.items():
        others_cpus = _others_cpus(windows)
        if others_cpus is not None and others_cpus > NEIGHBOUR_CPUS and _starved(windows):
            yield _suspect(
                "cpu-neighbours",
                f"other processes on {host} kept {others_cpus:.1f} of {windows[0].load.num_cpus} processors "
                "busy during the window, and this case waited for them",
                "Run it again on a quiet machine, or set distributed.threads_per_rank lower",
            )
        steal = windows[0].load.steal_cpu_s
        if steal is not None and steal > STEAL_SHARE * windows[0].wall_s * windows[0].load.num_cpus:
            yield _suspect(
                "cpu-steal",
                f"the hypervisor of {host} gave {seconds(steal)} of processor time to other machines",
                "Run it again, or on a machine of its own",
            )


def _others_cpus(windows: list[Window]) -> float | None:
    busy = windows[0].load.busy_cpu_s
    if busy is None:
        return None
    return (busy - sum(window.load.own_cpu_s for window in windows)) / windows[0].wall_s


def _starved(windows: list[Window]) -> bool:
    own = sum(window.load.own_cpu_s for window in windows)
    waits = [window.load.run_queue_wait_s for window in windows]
    if None not in waits:
        waited = sum(wait for wait in waits if wait is not None)
        return waited > RUN_QUEUE_SHARE * (own + waited)
    load = windows[0].load
    return load.busy_cpu_s is not None and load.busy_cpu_s > FULL_HOST * load.num_cpus * windows[0].wall_s


def _device_neighbours(windows: Sequence[Window], setups: Sequence[Setup]) -> Iterator[Finding]:
    for window, setup in zip(windows, setups, strict=bool(setups)):
        others = window.neighbours.other_processes
        if others:
            yield _suspect(
                "gpu-neighbours",
                f"{others} other {'process uses' if others == 1 else 'processes use'} "
                f"{setup.device.name} {setup.device.uuid or ''}".rstrip(),
                "Wait until they have ended, or choose other devices (distributed.devices)",
            )

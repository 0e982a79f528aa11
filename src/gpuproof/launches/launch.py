"""Results of one launch, computed from the records of all its ranks: duration, amount and rate.

Throughput is the items of all ranks divided by the window of the slowest rank. Step times come from that same
rank, since all others wait for it. Every rate is computed by `throughput`; a mean of per-step rates would be
too high: 99 steps of 7.8 ms and one of 100 ms, with 64 items each, are 6,400 items in 0.8722 s. The two
ceilings of the roofline come from the repeats that each device timed.

>>> round(throughput(6_400, 0.8722), 1)
7337.8
>>> trial = CeilingTrial(what="gemm", size=(2, 2, 2), dtype="float32", work=16.0, durations_s=(4.0, 2.0, 4.0))
>>> best_ceiling([trial])
MeasuredCeiling(value_per_s=8.0, relative_spread=0.5, what='gemm', size=(2, 2, 2), num_repeats=3)
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from math import isfinite
from statistics import median

from gpuproof.launches.point_measures import ITEMS, STEP, STEPS, THROUGHPUT, WINDOW
from gpuproof.records.breakdown import (
    BucketAllReduce,
    CollectiveOverlap,
    Fp8Casts,
    GradientSync,
    OwnCompute,
    StepPhases,
    TrainingAgreement,
)
from gpuproof.records.case import Case, StartMode
from gpuproof.records.collected import CaseRecords
from gpuproof.records.run import Ceilings, CeilingTrial, DeviceBusy, Evaluation, Setup, Start, Steps, Window
from gpuproof.records.what_ran import Compilation, Effective, Memory
from gpuproof.records.work.probe import COSTS, ProbeReading
from gpuproof.records.work.training import Pruned

LEAST_UNCERTAINTY = 0.02
"""Minimum relative uncertainty: two measurements of a few milliseconds never agree more closely, however
small their spread."""


def throughput(items_total: float, longest_window_s: float) -> float:
    """Return items per second: all ranks' items divided by the slowest rank's window in seconds.

    Raises:
        ValueError: the seconds are not above 0, the items are negative, or one of them is not finite.
    """
    if not (isfinite(longest_window_s) and longest_window_s > 0):
        raise ValueError(f"a rate needs a window longer than 0 s, not {longest_window_s} s")
    if not (isfinite(items_total) and items_total >= 0):
        raise ValueError(f"a rate needs a non-negative number of items, not {items_total}")
    return items_total / longest_window_s


@dataclass(frozen=True, slots=True, kw_only=True)
class Launch:
    """A launch that produced measurements."""

    case: Case
    windows: tuple[Window, ...]
    setups: tuple[Setup, ...]
    step_times_s: tuple[float, ...]
    """Step times of the slowest rank; empty if they were not stored."""
    num_step_times: tuple[int, ...] = ()
    """Number of stored step times of each rank, in rank order."""
    memory: tuple[Memory, ...] = ()
    """Memory of each rank; empty in runs from versions that did not check it."""
    ceilings: tuple[Ceilings, ...] = ()
    """Ceilings measured on each device after the window; empty if they were not measured."""
    evaluations: tuple[Evaluation, ...] = ()
    """Loss and accuracy of each rank's model after the window; empty if they were not evaluated."""
    busy: tuple[DeviceBusy, ...] = ()
    """How busy each device was during the steps after the window; empty if no device was seen waiting in the
    window."""
    fp8_casts: tuple[Fp8Casts, ...] = ()
    """The cost of rounding to fp8 on each rank; empty if nothing is rounded, or if a compiler fuses it."""
    start: StartMode = "exec"
    """How processes were started; launches forked from one process share its choices, so they are not
    replicates."""
    effective: tuple[Effective, ...] = ()
    """The kernel inputs on each rank; empty in runs from versions that did not check them."""
    compilations: tuple[Compilation, ...] = ()
    """Statistics of torch.compile on each rank; empty if it was not requested."""
    own_compute: tuple[OwnCompute, ...] = ()
    """How fast each rank is when it runs alone, in rank order; empty if this was not checked."""
    pruned: tuple[Pruned, ...] = ()
    """Pruning results of each rank, in rank order; empty if nothing is pruned."""
    checks: tuple[ProbeReading, ...] = ()
    """The result of comparing each rank's values with a reference; empty if nothing was compared."""
    costs: tuple[ProbeReading, ...] = ()
    """Kernel start time and cache bandwidth on each rank, after passes over memory."""
    step_phases: tuple[StepPhases, ...] = ()
    """Breakdown of steps on each rank; like the next three fields, empty if not checked."""
    gradient_sync: tuple[GradientSync, ...] = ()
    collective_overlap: tuple[CollectiveOverlap, ...] = ()
    bucket_all_reduce: tuple[BucketAllReduce, ...] = ()
    trained_alike: tuple[TrainingAgreement, ...] = ()
    """Whether training on all ranks matches training on one rank alone."""
    settle_times_s: tuple[float, ...] = ()
    """Step times of the slowest rank before the window, while a power cap was settling."""

    @property
    def slowest(self) -> Window:
        """The window of the slowest rank."""
        return max(self.windows, key=lambda window: window.wall_s)

    @property
    def setup(self) -> Setup:
        """Setup of the first rank; the other ranks have the same setup."""
        return self.setups[0]

    @property
    def world_size(self) -> int:
        """Number of ranks: processes that work together."""
        return len(self.windows)

    @property
    def num_devices(self) -> int:
        """Number of devices in use: one per rank, unless one process trains on several."""
        return sum(1 if setup.replicas is None else setup.replicas.num_devices for setup in self.setups)

    @property
    def data_parallel_size(self) -> int:
        """Number of devices that get different samples: all devices, or one per tensor-parallel group."""
        parallelism = self.setup.parallelism
        return self.num_devices if parallelism is None else parallelism.arrangement.data_parallel_size

    @property
    def items_total(self) -> int:
        """Number of items that all ranks processed in the window."""
        return sum(window.items for window in self.windows)

    @property
    def items_per_s_total(self) -> float:
        """Combined throughput of all ranks."""
        return throughput(self.items_total, self.slowest.wall_s)

    @property
    def items_per_step_total(self) -> int:
        """Number of items across all ranks in one weight update."""
        return sum(setup.items_per_step for setup in self.setups)

    @property
    def samples_per_step_total(self) -> int:
        """The effective batch size: samples of all ranks in one weight update."""
        return self.items_per_step_total // self.setup.items_per_sample

    @property
    def samples_total(self) -> int:
        """Samples processed by all ranks in the window: its items, unless items are tokens of sequences."""
        return self.items_total // self.setup.items_per_sample

    @property
    def mean_step_s(self) -> float:
        """Mean step time of the slowest rank, over the window."""
        return self.slowest.wall_s / self.slowest.num_steps

    @property
    def figures(self) -> dict[str, float]:
        """The launch's values by measure name: items per second, items, steps, and seconds."""
        return {
            THROUGHPUT: self.items_per_s_total,
            ITEMS: self.items_total,
            STEPS: self.slowest.num_steps,
            WINDOW: self.slowest.wall_s,
            STEP: self.mean_step_s,
        }

    @property
    def roofline(self) -> Roofline | None:
        """The ceilings of the slowest device; None if they were not measured."""
        return build_roofline(self.ceilings)

    @property
    def flops_per_step(self) -> float | None:
        """Model FLOPs of one device per step: computed analytically if possible, else counted by torch."""
        setup = self.setup
        return setup.flops_per_step_counted if setup.flops_per_step is None else setup.flops_per_step

    @property
    def least_flops_per_step(self) -> float | None:
        """The part of `flops_per_step` that no kernel can skip; None if unknown.

        Model FLOPs count attention over the full square, but a causal kernel skips the masked part.
        """
        setup, flops = self.setup, self.flops_per_step
        if flops is None or (setup.flops_skippable_per_step is None and "tokens" in setup.item):
            return None
        return max(0.0, flops - (setup.flops_skippable_per_step or 0.0))

    @property
    def least_flops_per_s_per_device(self) -> float | None:
        """The minimum FLOP/s that one device must have reached, if known."""
        return self._per_second(self.least_flops_per_step)

    @property
    def flops_per_s_per_device(self) -> float | None:
        """Model FLOP/s of one device, if the FLOPs per step are available."""
        return self._per_second(self.flops_per_step)

    @property
    def bytes_per_s_per_device(self) -> float | None:
        """Bytes per second to and from one device's memory, if bytes per step are computed analytically."""
        return self._per_second(self.setup.bytes_per_step)

    def _per_second(self, work_per_step: float | None) -> float | None:
        if work_per_step is None:
            return None
        return throughput(work_per_step * self.slowest.num_steps, self.slowest.wall_s)


def summarize_launch(records: CaseRecords) -> Launch | None:
    """Return the launch's results; None if it did not finish normally or measured no step."""
    windows = tuple(sorted(records.windows, key=lambda window: window.rank))
    if records.status != "done" or not windows or any(not window.num_steps for window in windows):
        return None
    slowest = max(windows, key=lambda window: window.wall_s)
    num_step_times: Counter[int] = Counter()
    for steps in records.of(Steps):
        num_step_times[steps.rank] += len(steps.durations_s) * (steps.phase == "measure")
    return Launch(
        case=records.case,
        windows=windows,
        setups=tuple(sorted(records.setups, key=lambda setup: setup.rank)),
        step_times_s=tuple(records.step_times_s(slowest.rank)),
        num_step_times=tuple(num_step_times[window.rank] for window in windows),
        memory=tuple(sorted(records.of(Memory), key=lambda record: record.rank)),
        ceilings=records.of(Ceilings),
        evaluations=records.of(Evaluation),
        busy=records.of(DeviceBusy),
        fp8_casts=records.of(Fp8Casts),
        start=next((start.start for start in records.of(Start)), "exec"),
        effective=records.of(Effective),
        compilations=records.of(Compilation),
        checks=tuple(figure for figure in records.of(ProbeReading) if figure.quantity not in COSTS),
        costs=tuple(figure for figure in records.of(ProbeReading) if figure.quantity in COSTS),
        own_compute=tuple(sorted(records.of(OwnCompute), key=lambda record: record.rank)),
        pruned=tuple(sorted(records.of(Pruned), key=lambda record: record.rank)),
        step_phases=records.of(StepPhases),
        gradient_sync=records.of(GradientSync),
        collective_overlap=records.of(CollectiveOverlap),
        bucket_all_reduce=records.of(BucketAllReduce),
        trained_alike=records.of(TrainingAgreement),
        settle_times_s=tuple(records.step_times_s(slowest.rank, phase="settle")),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class MeasuredCeiling:
    """The fastest repeat of the fastest size, a rate that the device has actually reached."""

    value_per_s: float
    """FLOP/s or bytes/s."""
    relative_spread: float
    """Difference between the fastest repeat and the median of that size, relative to the fastest."""
    what: str
    size: tuple[int, ...]
    num_repeats: int

    @property
    def highest_per_s(self) -> float:
        """The rate above which another measurement would contradict this one."""
        return self.value_per_s * (1 + max(self.relative_spread, LEAST_UNCERTAINTY))


@dataclass(frozen=True, slots=True, kw_only=True)
class Roofline:
    """The two ceilings of a launch, each from the slowest device, which sets the pace for all others."""

    compute: MeasuredCeiling | None
    memory: MeasuredCeiling | None
    num_devices: int
    missing: str | None
    """Why there is no compute ceiling."""

    @property
    def ridge_flops_per_byte(self) -> float | None:
        """The arithmetic intensity above which compute, not memory bandwidth, is the bottleneck."""
        if self.compute is None or self.memory is None:
            return None
        return self.compute.value_per_s / self.memory.value_per_s


def best_ceiling(trials: Sequence[CeilingTrial]) -> MeasuredCeiling | None:
    """Return the highest rate among the trials of one kind; None if there are none."""
    timed = [trial for trial in trials if trial.durations_s]
    if not timed:
        return None
    best = max(timed, key=lambda trial: trial.work / min(trial.durations_s))
    fastest_s = min(best.durations_s)
    return MeasuredCeiling(
        value_per_s=best.work / fastest_s,
        relative_spread=1 - fastest_s / median(best.durations_s),
        what=best.what,
        size=best.size,
        num_repeats=len(best.durations_s),
    )


def build_roofline(ceilings: Sequence[Ceilings]) -> Roofline | None:
    """Combine the ceilings of a launch's ranks; None if no ceilings were measured."""
    if not ceilings:
        return None
    products = [[trial for trial in record.trials if trial.what == "gemm"] for record in ceilings]
    passes = [[trial for trial in record.trials if trial.what != "gemm"] for record in ceilings]
    return Roofline(
        compute=_lowest([best_ceiling(trials) for trials in products]),
        memory=_lowest([best_ceiling(trials) for trials in passes]),
        num_devices=len(ceilings),
        missing=ceilings[0].missing,
    )


def _lowest(trials: Sequence[MeasuredCeiling | None]) -> MeasuredCeiling | None:
    measured = [ceiling for ceiling in trials if ceiling is not None]
    return min(measured, key=lambda ceiling: ceiling.value_per_s, default=None)

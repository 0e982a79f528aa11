"""One launch in figures: how long, how much, how fast, from the records of all its ranks.

Throughput is the items of all ranks over the longest rank's window. Step times are those of that same rank,
since it is the one that all others wait for. Every rate is made by `throughput`: a mean of per-step rates
overstates, since 99 steps of 7.8 ms and one of 100 ms, 64 items each, are 6,400 items in 0.8722 s. The two
ceilings of its roofline come from the repeats that each device timed.

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
"""Two measurements of a few milliseconds do not agree better than this, whatever their own spread."""


def throughput(items_total: float, longest_window_s: float) -> float:
    """Return items a second: those of all ranks over the seconds of the longest rank's window.

    Raises:
        ValueError: the seconds are not above 0, the items are negative, or one is not finite.
    """
    if not (isfinite(longest_window_s) and longest_window_s > 0):
        raise ValueError(f"a rate needs a window longer than 0 s, not {longest_window_s} s")
    if not (isfinite(items_total) and items_total >= 0):
        raise ValueError(f"a rate needs a count of items, not {items_total}")
    return items_total / longest_window_s


@dataclass(frozen=True, slots=True, kw_only=True)
class Launch:
    """A launch that measured something."""

    case: Case
    windows: tuple[Window, ...]
    setups: tuple[Setup, ...]
    step_times_s: tuple[float, ...]
    """Of the slowest rank; empty where they were not kept."""
    num_step_times: tuple[int, ...] = ()
    """Step times that were kept of each rank, in the order of ranks."""
    memory: tuple[Memory, ...] = ()
    """Of each rank; empty in runs of versions that did not look."""
    ceilings: tuple[Ceilings, ...] = ()
    """What each device could do at most after the window; empty where that was not measured."""
    evaluations: tuple[Evaluation, ...] = ()
    """What each rank's model had learnt after the window; empty where nobody looked."""
    busy: tuple[DeviceBusy, ...] = ()
    """How busy each device was in steps after the window; empty where none was seen to wait in it."""
    fp8_casts: tuple[Fp8Casts, ...] = ()
    """What rounding to fp8 took on each rank; empty where nothing is rounded, or a compiler joins it."""
    start: StartMode = "exec"
    """Launches that were forked from one process share its choices, and are no replicates."""
    effective: tuple[Effective, ...] = ()
    """What the kernels of each rank were given; empty in runs of versions that did not look."""
    compilations: tuple[Compilation, ...] = ()
    """What torch.compile made on each rank; empty where it was not asked to."""
    own_compute: tuple[OwnCompute, ...] = ()
    """How fast each rank is by itself, in the order of ranks; empty where nobody looked."""
    pruned: tuple[Pruned, ...] = ()
    """What each rank pruned, in the order of ranks; empty where nothing is pruned."""
    checks: tuple[ProbeReading, ...] = ()
    """What comparing results with a reference found, rank by rank; empty where nothing was compared."""
    costs: tuple[ProbeReading, ...] = ()
    """What starting a kernel takes and what the cache carries on each rank, after passes over memory."""
    step_phases: tuple[StepPhases, ...] = ()
    """Steps taken apart on each rank; empty where nobody looked, as in the three fields that follow."""
    gradient_sync: tuple[GradientSync, ...] = ()
    collective_overlap: tuple[CollectiveOverlap, ...] = ()
    bucket_all_reduce: tuple[BucketAllReduce, ...] = ()
    trained_alike: tuple[TrainingAgreement, ...] = ()
    """Whether ranks together learn what one alone does."""
    settle_times_s: tuple[float, ...] = ()
    """Steps of the slowest rank before the window, while a power cap settled."""

    @property
    def slowest(self) -> Window:
        """The window of the rank that took longest."""
        return max(self.windows, key=lambda window: window.wall_s)

    @property
    def setup(self) -> Setup:
        """What the first rank built; the others built the same."""
        return self.setups[0]

    @property
    def world_size(self) -> int:
        """Ranks: processes that work together."""
        return len(self.windows)

    @property
    def num_devices(self) -> int:
        """Devices that worked: one a rank, but where one process trains on several."""
        return sum(1 if setup.replicas is None else setup.replicas.num_devices for setup in self.setups)

    @property
    def data_parallel_size(self) -> int:
        """Devices that work on different samples: all, but one of each tensor-parallel group."""
        parallelism = self.setup.parallelism
        return self.num_devices if parallelism is None else parallelism.arrangement.data_parallel_size

    @property
    def items_total(self) -> int:
        """Items of all ranks in the window."""
        return sum(window.items for window in self.windows)

    @property
    def items_per_s_total(self) -> float:
        """Throughput of all ranks together."""
        return throughput(self.items_total, self.slowest.wall_s)

    @property
    def items_per_step_total(self) -> int:
        """Items of all ranks in one update of the weights."""
        return sum(setup.items_per_step for setup in self.setups)

    @property
    def samples_per_step_total(self) -> int:
        """The effective batch: samples of all ranks in one update of the weights."""
        return self.items_per_step_total // self.setup.items_per_sample

    @property
    def samples_total(self) -> int:
        """Samples of all ranks in the window: its items, unless these are the tokens of sequences."""
        return self.items_total // self.setup.items_per_sample

    @property
    def mean_step_s(self) -> float:
        """Mean step time of the slowest rank, over the window."""
        return self.slowest.wall_s / self.slowest.num_steps

    @property
    def figures(self) -> dict[str, float]:
        """What it says, by the name of the measure: items a second, items, steps, and seconds."""
        return {
            THROUGHPUT: self.items_per_s_total,
            ITEMS: self.items_total,
            STEPS: self.slowest.num_steps,
            WINDOW: self.slowest.wall_s,
            STEP: self.mean_step_s,
        }

    @property
    def roofline(self) -> Roofline | None:
        """The ceilings of the slowest device; None where they were not measured."""
        return build_roofline(self.ceilings)

    @property
    def flops_per_step(self) -> float | None:
        """Model FLOPs of one device in one step: from the closed form, else as torch counted them."""
        setup = self.setup
        return setup.flops_per_step_counted if setup.flops_per_step is None else setup.flops_per_step

    @property
    def least_flops_per_step(self) -> float | None:
        """Those of `flops_per_step` that no kernel can leave out; None where that is not known.

        Model FLOPs count attention over the full square, of which a causal kernel skips what is masked.
        """
        setup, flops = self.setup, self.flops_per_step
        if flops is None or (setup.flops_skippable_per_step is None and "tokens" in setup.item):
            return None
        return max(0.0, flops - (setup.flops_skippable_per_step or 0.0))

    @property
    def least_flops_per_s_per_device(self) -> float | None:
        """FLOP/s that one device cannot but have done, where that is known."""
        return self._per_second(self.least_flops_per_step)

    @property
    def flops_per_s_per_device(self) -> float | None:
        """Model FLOP/s of one device, where the work of a step is known."""
        return self._per_second(self.flops_per_step)

    @property
    def bytes_per_s_per_device(self) -> float | None:
        """Bytes a second to and from one device's memory, where a closed form gives those of a step."""
        return self._per_second(self.setup.bytes_per_step)

    def _per_second(self, work_per_step: float | None) -> float | None:
        if work_per_step is None:
            return None
        return throughput(work_per_step * self.slowest.num_steps, self.slowest.wall_s)


def summarize_launch(records: CaseRecords) -> Launch | None:
    """Return the launch's figures; None where it did not end well or measured no step."""
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
    """The fastest repeat of the fastest size: what the device did do, so that it can."""

    value_per_s: float
    """FLOP/s or bytes/s."""
    relative_spread: float
    """From the fastest repeat down to the median of that size, over the fastest."""
    what: str
    size: tuple[int, ...]
    num_repeats: int

    @property
    def highest_per_s(self) -> float:
        """The rate over which another measurement contradicts this one."""
        return self.value_per_s * (1 + max(self.relative_spread, LEAST_UNCERTAINTY))


@dataclass(frozen=True, slots=True, kw_only=True)
class Roofline:
    """The two ceilings of a launch, each of the slowest device: all devices keep step with that one."""

    compute: MeasuredCeiling | None
    memory: MeasuredCeiling | None
    num_devices: int
    missing: str | None
    """Why there is no ceiling of arithmetic."""

    @property
    def ridge_flops_per_byte(self) -> float | None:
        """The arithmetic intensity from which on arithmetic, not memory, is the limit."""
        if self.compute is None or self.memory is None:
            return None
        return self.compute.value_per_s / self.memory.value_per_s


def best_ceiling(trials: Sequence[CeilingTrial]) -> MeasuredCeiling | None:
    """Return the highest rate among trials of one sort; None where there is none."""
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
    """Put the ceilings of a launch's ranks together; None where none were measured."""
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

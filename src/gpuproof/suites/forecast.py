"""What a run will take at least, said before it begins: memory of a rank and time, from the plan alone.

In: the launches that a suite plans. Out: lines for people. All figures are lower bounds, since nothing was
measured: caches, copies that kernels make, starting and warm-up come on top. Nothing is refused by them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from gpuproof import units
from gpuproof.records.case import Case, ModelWork, ServingWork, TrainingWork
from gpuproof.records.memory import MemoryParts
from gpuproof.records.parallel import Arrangement, ArrangementError, arrange
from gpuproof.suites.base import Remaining
from gpuproof.workloads.info.held import FLOAT32_BYTES, estimate_memory
from gpuproof.workloads.info.lookup import find_workload

HALF_BYTES = 2
SAFE_SHARE = 0.5
"""Of a machine's memory: what an estimate from below leaves out, and other programs, need the rest."""
LEAST_OF_PLAN = 0.05
"""Of the time set aside: what a validation takes at least. `benchmarks/validate_forecast.py` scores both."""
WHOLE = ("fp32", "tf32", "fp64")
"""Precisions whose activations have 4 bytes or more."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryNeed:
    """Bytes that one rank of a case needs at least."""

    case: Case
    held: MemoryParts
    activations_bytes: int | None
    """Of one batch; None where no closed form is known."""

    @property
    def at_least_bytes(self) -> int:
        """The most that lies there at once: gradients come as activations go."""
        fixed = self.held.total_bytes - self.held.gradients_bytes
        return fixed + max(self.held.gradients_bytes, self.activations_bytes or 0)

    def fitting_batch(self, room_bytes: float) -> int | None:
        """Return the largest power of two of samples for which the estimate is below `room_bytes`.

        None where the batch is not what it depends on, or not even one sample fits.
        """
        fixed = self.held.total_bytes
        if not self.activations_bytes or fixed >= room_bytes:
            return None
        sample_bytes = self.activations_bytes / self.case.model_work.data.batch_size
        most = int((room_bytes - fixed) / sample_bytes)
        return None if most < 1 else 1 << (most.bit_length() - 1)


def memory_need(case: Case) -> MemoryNeed | None:
    """Estimate what one rank needs; None where its size is not known before the model is built."""
    work = case.work
    if not isinstance(work, ModelWork) or isinstance(work, ServingWork):
        return None
    info = find_workload(work.model.name)
    options = info.options_type(**work.model.options)
    shape = info.input_shape(options, work.data.image_size, work.model.num_classes)
    size = info.work(options, shape)
    arrangement = _arrangement(case, work)
    if size is None or arrangement is None:
        return None
    training = work.training if isinstance(work, TrainingWork) else None
    plan = info.tensor_parallel
    held = estimate_memory(
        size.num_parameters,
        num_whole_parameters=plan.num_whole_parameters(options, shape) if plan else 0,
        arrangement=arrangement,
        optimizer=training.optimizer if training else None,
        momentum=training.momentum if training else 0.0,
    )
    activations = None
    if _runs_as_written(work) and info.activation_values is not None and arrangement.tensor == 1:
        value_bytes = FLOAT32_BYTES if work.training.precision in WHOLE else HALF_BYTES
        activations = info.activation_values(options, shape) * work.data.batch_size * value_bytes
    return MemoryNeed(case=case, held=held, activations_bytes=activations)


def _runs_as_written(work: ModelWork) -> bool:
    """Say whether all that the backward pass reads is kept: no compiler or checkpointing leaves some out."""
    return work.trains and work.activation_checkpointing == "none" and not work.training.compile.enabled


def _arrangement(case: Case, work: ModelWork) -> Arrangement | None:
    """Lay out the ranks; None where a sharded model's are counted by a launcher of the user's."""
    parallel, ranks = work.parallel, case.placement.num_ranks
    if parallel.strategy != "ddp" and ranks == 1:
        return None
    try:
        return arrange(
            parallel.strategy,
            world_size=ranks,
            shard_size=parallel.shard_size,
            tensor_parallel_size=parallel.tensor_parallel_size,
        )
    except ArrangementError:
        return None  # an estimate refuses nothing; the launch says what is wrong


def forecast(
    cases: Sequence[Case], *, one_by_one: bool, host_memory_bytes: int | None = None, num_launches: int = 0
) -> tuple[str, ...]:
    """Say what launches take at least; nothing for what runs no model, nor for a service.

    There are `num_launches` like `cases`, or these alone.

    `one_by_one` says that none of them runs beside another: only then do their windows add up.
    `host_memory_bytes` is the memory of this machine where it runs them, else None.
    """
    if not cases or any(not isinstance(c.work, ModelWork) or isinstance(c.work, ServingWork) for c in cases):
        return ()
    time = _time(cases, max(num_launches, len(cases))) if one_by_one else ()
    return (*time, *_memory(cases, host_memory_bytes))


def plan_lines(remaining: Remaining) -> tuple[str, ...]:
    """Say what was set aside for all that is left, as a range; nothing where that is not known."""
    if remaining.basis != "plan" or remaining.seconds is None:
        return ()
    ends = " to ".join(units.duration(share * remaining.seconds) for share in (LEAST_OF_PLAN, 1.0))
    launches = _launches(remaining.num_launches)
    return (f"time: {ends} on an idle machine for {launches}, and for tests that follow",)


def _launches(number: int) -> str:
    return f"{units.count(number)} {'launch' if number == 1 else 'launches'}"


def _time(cases: Sequence[Case], num_launches: int) -> tuple[str, ...]:
    windows = [case.model_work.window for case in cases if case.model_work.window.enabled]
    launches = _launches(num_launches)
    timed = [window.measure_seconds or 0.0 for window in windows if window.measure_by == "time"]
    if len(timed) == len(cases):
        warmup = _range([window.warmup_steps for window in windows])
        on_top = ["its start-up", f"a warm-up of {warmup} steps"]
        if any(case.placement.num_ranks > 1 and case.model_work.window.own_compute for case in cases):
            on_top.append("steps of each rank by itself (benchmark.own_compute)")
        more = f"{', '.join(on_top[:-1])} and {on_top[-1]}"
        least_s = sum(timed) + (num_launches - len(timed)) * min(timed)
        return (f"time: at least {units.duration(least_s)} for {launches}; each also takes {more}",)
    steps = [w.warmup_steps + (w.measure_steps or 0) for w in windows if w.measure_by == "steps"]
    if len(steps) == len(cases):
        return (f"time: not known until a step has been timed; {launches} of {_range(steps)} steps each",)
    return (f"time: cannot be estimated; {launches}",)


def _range(values: Sequence[int]) -> str:
    low, high = min(values), max(values)
    return units.count(low) if low == high else f"{units.count(low)} to {units.count(high)}"


def _memory(cases: Sequence[Case], host_memory_bytes: int | None) -> tuple[str, ...]:
    needs = [need for case in cases if (need := memory_need(case)) is not None]
    if not needs:
        return ("memory: not known until the model is built",)
    most = max(needs, key=lambda need: need.at_least_bytes)
    parts = [f"parameters {units.memory(most.held.parameters_bytes)}"]
    if most.held.gradients_bytes:
        parts.append(f"gradients {units.memory(most.held.gradients_bytes)}")
        parts.append(f"optimizer {units.memory(most.held.optimizer_bytes)}")
    if most.activations_bytes is not None:
        parts.append(f"activations {units.memory(most.activations_bytes)}")
    else:
        parts.append("activations not included")
    sentence = f"memory: at least {units.memory(most.at_least_bytes)} a rank ({', '.join(parts)})"
    return (sentence, *_too_much(most, host_memory_bytes))


def _too_much(need: MemoryNeed, host_memory_bytes: int | None) -> tuple[str, ...]:
    """Say which key may make it fit, where it may run on a processor and takes over its share of memory."""
    placement = need.case.placement
    if host_memory_bytes is None or placement.device not in ("auto", "cpu"):
        return ()
    needed, room = need.at_least_bytes * placement.ranks_per_host, SAFE_SHARE * host_memory_bytes
    if needed <= room:
        return ()
    batch = need.fitting_batch(room / placement.ranks_per_host)
    way = "take a smaller model" if batch is None else f"try --data.batch_size={batch}"
    half_of = "" if needed > host_memory_bytes else "half of "
    return (
        f"memory: it may not fit on the processor: {units.memory(needed)} or more is more than {half_of}"
        f"this machine's {units.memory(host_memory_bytes)}; {way}",
    )

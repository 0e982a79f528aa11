"""Describe what a run would do: what is measured, where, in how many launches, and at what cost.

The input is the launches that a suite plans; for a search, only the first is known. The output consists of
lines of text. Memory per rank and time are lower bounds computed from the plan alone, because nothing has
been measured yet: caches, copies made by kernels, start-up and warm-up are not included. They never cause a
run to be rejected.
"""

from __future__ import annotations

import shlex
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from gpuproof.base import units
from gpuproof.config.matrix import matrix_axes
from gpuproof.config.models import RunConfig
from gpuproof.records.case import Case, CollectiveWork, CommandWork, ModelWork, ServingWork, TrainingWork
from gpuproof.records.what_ran import MemoryParts
from gpuproof.records.work.command import value_text
from gpuproof.records.work.parallel import Arrangement, ArrangementError, arrange
from gpuproof.suites.base import Remaining, Suite
from gpuproof.workloads.info.held import FLOAT32_BYTES, estimate_memory
from gpuproof.workloads.info.lookup import find_workload

MOST_WORKS = 2
DEVICES = {"auto": "a GPU if there is one, else the CPU", "cpu": "the CPU"}
FROM_HERE = {"estimate": "about", "limit": "at most"}
HALF_BYTES = 2
SAFE_SHARE = 0.5
"""Fraction of a machine's memory that a run may use; the rest is for other programs and for what the lower
bound omits."""
LEAST_OF_PLAN = 0.05
"""Minimum fraction of the planned time that a validation actually takes. `benchmarks/validate_forecast.py`
evaluates both ends of the range."""
WHOLE = ("fp32", "tf32", "fp64")
"""Precisions in which each activation takes up at least 4 bytes."""


def planned_lines(
    config: RunConfig, suite: Suite, cases: Sequence[Case], remaining: Remaining
) -> Iterator[str]:
    """Yield what is measured, at which points, in how many launches; `cases` are the first launches."""
    yield f"measures: {suite.summary}"
    axes = [
        f"{key} = {', '.join(map(value_text, values))}" for key, values in matrix_axes(config.matrix).items()
    ]
    names = dict.fromkeys(case.case_id.partition("@")[0] for case in cases)
    if stages := _stages(config, suite):
        yield f"stages: {', '.join(stages)}"
    else:
        yield f"work: {units.first_of(dict.fromkeys(_works(config, cases)), MOST_WORKS, between='; ')}"
    if axes:
        yield f"points: {'; '.join(axes)}"
    elif len(names) > 1:
        yield f"cases: {units.first_of(names)}"
    side_by_side = f", {config.cases.parallel} at a time" if config.cases.parallel > 1 else ""
    yield f"plan: {launches_text(remaining)}{side_by_side}"


def time_line(remaining: Remaining) -> str:
    """Return the total duration, as far as the suite can predict it."""
    if remaining.seconds is None or remaining.basis == "plan":
        return "time: not known before a launch has finished"
    return f"time: {FROM_HERE[remaining.basis]} {units.duration(remaining.seconds)}"


def ranks_text(config: RunConfig, suite: Suite, cases: Sequence[Case]) -> str:
    """Return the ranks per launch and their devices; empty for commands, or if stages differ."""
    if config.kind == "command" or _stages(config, suite):
        return ""
    places = [case.placement for case in cases]
    ranks = number_range([place.ranks_per_host for place in places])
    hosts = number_range([place.num_hosts for place in places])
    on_hosts = "" if hosts == "1" else f" on each of {hosts} hosts"
    devices = dict.fromkeys(DEVICES.get(place.device, place.device) for place in places)
    indices = dict.fromkeys(", ".join(map(str, place.devices)) for place in places if place.devices)
    which = f" (numbers {'; '.join(indices)})" if indices else ""
    some = "1 rank" if ranks == "1" else f"{ranks} ranks"
    each = "on" if some == "1 rank" else "each on"
    return f"; a launch has {some}{on_hosts}, {each} {' or '.join(devices)}{which}"


def _stages(config: RunConfig, suite: Suite) -> Sequence[str]:
    """Return a suite's stages, if any; later stages run different workloads from the first."""
    stages: Sequence[str] = config.suite_options.get(suite.name, {}).get("stages", ())
    return stages


def _works(config: RunConfig, cases: Sequence[Case]) -> Iterable[str]:
    if config.kind == "command":
        return [shlex.join(map(value_text, config.command.argv))]
    return map(_work, cases)


def _work(case: Case) -> str:
    work = case.work
    if isinstance(work, CommandWork):
        return shlex.join(work.command.argv)
    if isinstance(work, CollectiveWork):
        sizes = (work.collective.min_bytes, work.collective.max_bytes)
        return f"{', '.join(work.collective.operations)} of {' to '.join(map(units.memory, sizes))}"
    if isinstance(work, ServingWork) and work.serving.target != "model":
        return f"requests to {work.serving.endpoint.url or work.serving.target}"
    if isinstance(work, ModelWork):
        what = f"{work.model.name} {work.kind} on {work.data.name}, {work.training.precision}"
        return what if isinstance(work, ServingWork) else f"{what}, batch {work.data.batch_size}"
    return f"probe {work.probe.name}"


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryNeed:
    """The minimum memory, in bytes, that one rank of a case needs."""

    case: Case
    held: MemoryParts
    activations_bytes: int | None
    """Memory for the activations of one batch; None if it cannot be computed analytically."""

    @property
    def at_least_bytes(self) -> int:
        """Peak memory allocated at any one time: gradients are allocated as activations are freed."""
        fixed = self.held.total_bytes - self.held.gradients_bytes
        return fixed + max(self.held.gradients_bytes, self.activations_bytes or 0)

    def fitting_batch(self, room_bytes: float) -> int | None:
        """Return the largest power-of-two number of samples for which the estimate is below `room_bytes`.

        None if the estimate does not depend on the batch, or if not even one sample fits.
        """
        fixed = self.held.total_bytes
        if not self.activations_bytes or fixed >= room_bytes:
            return None
        sample_bytes = self.activations_bytes / self.case.model_work.data.batch_size
        most = int((room_bytes - fixed) / sample_bytes)
        return None if most < 1 else 1 << (most.bit_length() - 1)


def memory_need(case: Case) -> MemoryNeed | None:
    """Estimate one rank's memory; None if the model's size is unknown until it is built."""
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
    least_bytes = HALF_BYTES if training or work.training.precision != "fp8" else 1
    held = estimate_memory(
        size.num_parameters,
        num_whole_parameters=plan.num_whole_parameters(options, shape) if plan else 0,
        arrangement=arrangement,
        optimizer=training.optimizer if training else None,
        momentum=training.momentum if training else 0.0,
        value_bytes=FLOAT32_BYTES if work.stored_type == "float32" else least_bytes,
    )
    activations = None
    if _runs_as_written(work) and info.activation_values is not None and arrangement.tensor == 1:
        value_bytes = FLOAT32_BYTES if work.training.precision in WHOLE else HALF_BYTES
        activations = info.activation_values(options, shape) * work.data.batch_size * value_bytes
    return MemoryNeed(case=case, held=held, activations_bytes=activations)


def _runs_as_written(work: ModelWork) -> bool:
    """Report whether all inputs of the backward pass are stored (no compiler, no checkpointing)."""
    return work.trains and work.activation_checkpointing == "none" and not work.training.compile.enabled


def _arrangement(case: Case, work: ModelWork) -> Arrangement | None:
    """Return the layout of ranks; None if only the user's launcher knows a sharded model's ranks."""
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
        return None  # an estimate does not reject anything; the launch reports what is wrong


def forecast(
    remaining: Remaining,
    cases: Sequence[Case],
    *,
    hosts_at_once: int | None,
    host_memory_bytes: int | None = None,
) -> tuple[str, ...]:
    """Report minimum time and memory for all launches, given the first `cases`; empty without models.

    `hosts_at_once` is how many hosts compute at the same time (concurrent launches on one host count as
    separate hosts); None if a job queue decides. `host_memory_bytes` is the memory of this machine if it runs
    the launches, else None.
    """
    if remaining.basis == "plan" and remaining.seconds is not None:
        ends = " to ".join(units.duration(part * remaining.seconds) for part in (LEAST_OF_PLAN, 1.0))
        return (
            f"time: {ends} on an idle machine for {launches_text(remaining)}, and for the tests that follow",
        )
    if not cases or any(not isinstance(c.work, ModelWork) or isinstance(c.work, ServingWork) for c in cases):
        return ()
    return (*_time(cases, remaining, hosts_at_once), *_memory(cases, host_memory_bytes))


def launches_text(remaining: Remaining) -> str:
    """Return how many launches are left, and until when more may be added.

    >>> launches_text(Remaining(num_launches=5, until="±3 % or 60 s"))
    '5 launches or more, until ±3 % or 60 s'
    """
    number = remaining.num_launches
    text = f"{units.count(number)} {'launch' if number == 1 else 'launches'}"
    return text if remaining.until is None else f"{text} or more, until {remaining.until}"


def _time(cases: Sequence[Case], remaining: Remaining, hosts_at_once: int | None) -> tuple[str, ...]:
    windows = [case.model_work.window for case in cases if case.model_work.window.enabled]
    launches = launches_text(remaining)
    timed = [window.measure_seconds or 0.0 for window in windows if window.measure_by == "time"]
    if len(timed) == len(cases):
        warmup = number_range([window.warmup_steps for window in windows])
        on_top = ["its start-up", f"a warm-up of {warmup} steps"]
        if any(case.placement.num_ranks > 1 and case.model_work.window.own_compute for case in cases):
            on_top.append("steps of each rank alone (benchmark.own_compute)")
        more = f"{', '.join(on_top[:-1])} and {on_top[-1]}"
        if hosts_at_once is None:
            least = f"{units.duration(min(timed))} in each of {launches}, plus the wait in the queue"
        else:
            hosts = [case.placement.num_hosts for case in cases]
            busy = [seconds * number for seconds, number in zip(timed, hosts, strict=True)]
            host_s = sum(busy) + max(0, remaining.num_launches - len(busy)) * min(busy)
            least = f"{units.duration(host_s / max(hosts_at_once, *hosts))} for {launches}"
        return (f"time: at least {least}; each launch also needs {more}",)
    steps = [w.warmup_steps + (w.measure_steps or 0) for w in windows if w.measure_by == "steps"]
    if len(steps) == len(cases):
        return (
            f"time: not known until a step has been timed; {launches} of {number_range(steps)} steps each",
        )
    return (f"time: cannot be estimated; {launches}",)


def number_range(values: Sequence[int]) -> str:
    """Return the number, or the minimum and maximum if there are several.

    >>> number_range([2, 2]), number_range([1, 2, 1000])
    ('2', '1 to 1,000')
    """
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
    sentence = f"memory: at least {units.memory(most.at_least_bytes)} per rank ({', '.join(parts)})"
    return (sentence, *_too_much(most, host_memory_bytes))


def _too_much(need: MemoryNeed, host_memory_bytes: int | None) -> tuple[str, ...]:
    """If a run on a CPU would exceed its fraction of memory, suggest a key that may make it fit."""
    placement = need.case.placement
    if host_memory_bytes is None or placement.device not in ("auto", "cpu"):
        return ()
    needed, room = need.at_least_bytes * placement.ranks_per_host, SAFE_SHARE * host_memory_bytes
    if needed <= room:
        return ()
    batch = need.fitting_batch(room / placement.ranks_per_host)
    way = "use a smaller model" if batch is None else f"try --data.batch_size={batch}"
    half_of = "" if needed > host_memory_bytes else "half of "
    return (
        f"memory: the run may not fit in this machine's memory: it needs {units.memory(needed)} or "
        f"more, over {half_of}{units.memory(host_memory_bytes)}; {way}",
    )

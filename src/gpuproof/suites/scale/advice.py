"""Advise on what to use: by a rule of thumb before measuring, then based on measured results.

The measured answer, with its bottleneck and cost, takes precedence over any rule of thumb. A step is
launch-bound if most of it does not depend on the batch. If a step on one device takes a + b·B seconds at
batch B, then a makes up the fraction (B·r - A) / (B - A) of the larger batch's step, where A is the smaller
batch and r is the ratio of the smaller batch's step time to the larger one's. This fraction rises with r, so
the ends of r's interval determine the ends of its own interval. A device whose step time does not rise from
the smaller batch to the larger one is idle part of the time: either the host launches kernels more slowly
than they run, or each kernel is too small to fill the device.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal

from gpuproof.base import units
from gpuproof.base.errors import UsageError
from gpuproof.comparison.winners import reason_unusable
from gpuproof.config.models import RunConfig
from gpuproof.config.rules.workload import choose_workload
from gpuproof.statistics.comparison import compare_launches
from gpuproof.statistics.estimate import Interval
from gpuproof.suites.points.ranking import side_of
from gpuproof.suites.points.results import PointResult
from gpuproof.suites.scale.breakdown import PointBreakdown
from gpuproof.suites.scale.plan import Payback, Prices, ScaleOptions, Worth, read_options, worth_of
from gpuproof.suites.scale.speed_up import BENEFICIAL, RuleOfThumb, SpeedUp, advise, conclusion_in_words

HOST_BOUND = "host-bound"
"""The code of the warning about a window in which the device waited for its host."""
MeasuredAnswer = Literal["yes", "no", "not decided"]
MOSTLY = 0.5
"""Fraction of the larger batch's step time above which the batch-independent part makes a step
launch-bound."""
LEAST_RATIO = 2
"""Minimum ratio of two batch sizes: closer ones do not show how much of a step is independent of the
batch."""


def advise_before(config: RunConfig) -> RuleOfThumb:
    """Return rule-of-thumb advice for a recipe's workload and largest batch, using its thresholds.

    Raises:
        UsageError: there is no such workload, or its number of parameters is unknown until it is built.
    """
    chosen, options = choose_workload(config), read_options(config)
    work = chosen.info.work(chosen.options, chosen.shape)
    if work is None:
        raise UsageError(
            f"the number of parameters of {config.model.name} is unknown before the model is built",
            place="--gpu-mode auto",
            next_step="Use --gpu-mode multi or single",
        )
    return advise(work.num_parameters, max(options.batch_sizes), options)


@dataclass(frozen=True, slots=True, kw_only=True)
class LawWorth:
    """The cost of using several devices, under one scaling law."""

    law: str
    worth: Worth


@dataclass(frozen=True, slots=True, kw_only=True)
class AdviceDetail:
    """The advice from measurements, the cause of the step time, and the cost."""

    measured: MeasuredAdvice | None = None
    """Advice based on measured speed-ups; None if no speed-ups were compared."""
    fixed_time: FixedTime | None = None
    """Result for steps on one device; None with fewer than two batch sizes."""
    host_bound: tuple[str, ...] = ()
    """Points at which the device waited for its host in some window."""
    worths: tuple[LawWorth, ...] = ()
    memory_safety_margin: float | None = None
    over_margin: tuple[str, ...] = ()
    """Points that need more of a device's memory than the safety margin allows."""


def advice_from(
    averages: Sequence[tuple[str, SpeedUp]],
    concluded: Sequence[PointResult],
    apart: Sequence[PointBreakdown],
    options: ScaleOptions,
    *,
    num_planned: int,
) -> AdviceDetail:
    """Return a study's advice.

    `averages` are its mean speed-ups over all batch sizes, and their laws; `num_planned` is how many of them
    were planned.
    """
    margin = options.memory_safety_margin
    alone = {
        result.point.config.data.batch_size: [launch.mean_step_s for launch in result.launches]
        for result in concluded
        if result.point.config.distributed.nproc == 1
        and reason_unusable(side_of(result.figures), beside=result.figures.doubts) is None
    }
    return AdviceDetail(
        measured=measured_advice(averages, num_planned=num_planned),
        fixed_time=fixed_time(alone),
        host_bound=tuple(
            result.point.case_id
            for result in concluded
            if any(doubt.code == HOST_BOUND for doubt in result.result.doubts)
        ),
        worths=() if options.prices is None else tuple(_worths(averages, options.prices)),
        memory_safety_margin=margin,
        over_margin=tuple(
            point.case_id
            for point in apart
            if point.memory is not None and (point.memory.device_share or 0.0) > margin
        ),
    )


def _worths(averages: Sequence[tuple[str, SpeedUp]], prices: Prices) -> Iterator[LawWorth]:
    for law, average in averages:
        if average.comparison.ratio is not None and not average.is_implausible:
            worth = worth_of(average.comparison.ratio, num_devices=average.num_devices, prices=prices)
            yield LawWorth(law=law, worth=worth)


def advice_lines(advice: AdviceDetail) -> Iterator[str]:
    """Yield the advice, one sentence per line."""
    if advice.measured is not None:
        yield _answer(advice.measured)
    if advice.fixed_time is not None:
        yield _fixed_time(advice.fixed_time)
    if advice.host_bound:
        yield (
            f"host-bound: {', '.join(advice.host_bound)}: the device waited for its host, so "
            "neither the device nor its links limited the rate"
        )
    if advice.over_margin and advice.memory_safety_margin is not None:
        yield (
            f"memory: {', '.join(advice.over_margin)}: over {units.share(advice.memory_safety_margin)} of a "
            "device's memory (scale.memory_safety_margin): slightly more may not fit"
        )
    for priced in advice.worths:
        yield _cost(priced)


def _answer(advice: MeasuredAdvice) -> str:
    between = ""
    if advice.ratio is not None and advice.low is not None and advice.high is not None:
        between = f": {advice.ratio:.2f} × ({advice.low:.2f} – {advice.high:.2f})"
    return (
        f"several devices: {advice.answer}: {advice.reason}; {advice.num_devices} devices, "
        f"{advice.law} scaling{between}, launches per point: {advice.num_launches}"
    )


def _fixed_time(fixed: FixedTime) -> str:
    batches = f"batch {fixed.small_batch} to {fixed.large_batch} on one device"
    if fixed.share is None or fixed.step_ratio is None:
        return f"it is not known whether steps are launch-bound: {fixed.missing}"
    share_text = f"{units.share(max(0.0, fixed.share.low))} – {units.share(min(1.0, fixed.share.high))}"
    grew = f"{batches}: {fixed.step_ratio:.2f} times the step time for "
    grew += f"{fixed.large_batch / fixed.small_batch:g} times the samples; "
    grew += f"{share_text} of the larger batch's step does not depend on the batch"
    if fixed.is_launch_bound:
        return f"launch-bound: {grew}: a larger batch costs little, and helps more than a second device"
    return f"{grew} (launch-bound above {units.share(MOSTLY)})"


def _cost(priced: LawWorth) -> str:
    worth = priced.worth
    cost = worth.cost_ratio
    line = (
        f"costs, {worth.num_devices} devices, {priced.law} scaling: {worth.verdict}: the same work "
        f"costs {cost.centre:.2f} × ({cost.low:.2f} – {cost.high:.2f}) as much as on one device; "
        f"break-even is a speed-up of {worth.price_ratio:.2f}"
    )
    if worth.payback is None:
        return line
    return f"{line}; hours saved pay back {worth.extra_price:,.2f} {_payback(worth.payback)}"


def _payback(payback: Payback) -> str:
    if payback.least_months is None:
        return "never: no hours are saved"
    most = "never" if payback.most_months is None else f"{payback.most_months:.1f}"
    return f"after {payback.least_months:.1f} to {most} months"


@dataclass(frozen=True, slots=True, kw_only=True)
class MeasuredAdvice:
    """Whether using several devices is worthwhile, according to the average speed-ups in a study."""

    answer: MeasuredAnswer
    num_devices: int
    """Number of devices in the average that the answer is based on."""
    law: str
    ratio: float | None
    low: float | None
    high: float | None
    num_launches: int
    """Number of launches on several devices, which equals the number of launches on one device."""
    reason: str


def measured_advice(
    averages: Sequence[tuple[str, SpeedUp]], *, num_planned: int | None = None
) -> MeasuredAdvice | None:
    """Return the answer based on the average (with its law) that favours several devices the most.

    The answer is *yes* if at least one decided average shows a benefit; *no* if all are decided and none is
    beneficial; otherwise not decided, because an interval that contains 1 is inconclusive, and a number of
    devices that was planned but not measured may be beneficial. It is None if nothing was compared. Picking
    the best of several averages is valid if their intervals hold simultaneously.
    """
    if not averages:
        return None
    decided = [average for average in averages if average[1].is_decided]
    best = max(decided or averages, key=lambda average: average[1].ratio or 0.0)
    law, speed_up = best
    answer: MeasuredAnswer = "not decided"
    if speed_up.is_decided and speed_up.ratio is not None and speed_up.ratio >= BENEFICIAL:
        answer = "yes"
    elif len(decided) == max(len(averages), num_planned or 0):
        answer = "no"
    interval = speed_up.comparison.ratio
    return MeasuredAdvice(
        answer=answer,
        num_devices=speed_up.num_devices,
        law=law,
        ratio=speed_up.ratio,
        low=None if interval is None else interval.low,
        high=None if interval is None else interval.high,
        num_launches=speed_up.comparison.num_launches_b,
        reason=_reason(speed_up, num_missing=max(0, (num_planned or 0) - len(averages))),
    )


def _reason(average: SpeedUp, *, num_missing: int) -> str:
    """Return the conclusion in words, which is no advice against all if others were not measured."""
    if not num_missing or average.ratio is None or average.ratio >= BENEFICIAL:
        return conclusion_in_words(average)
    return f"{num_missing} of the planned combinations of devices and law could not be compared"


@dataclass(frozen=True, slots=True, kw_only=True)
class FixedTime:
    """The part of a step that does not depend on the batch, as a fraction of the larger batch's step."""

    small_batch: int
    large_batch: int
    step_ratio: float | None
    """Ratio of the larger batch's step time to the smaller batch's step time."""
    share: Interval | None
    missing: str | None = None

    @property
    def is_launch_bound(self) -> bool:
        """Whether most of the larger batch's step is batch-independent, based on the interval's low end."""
        return self.share is not None and self.share.low > MOSTLY


def fixed_time(steps_s: Mapping[int, Sequence[float]], *, confidence: float = 0.95) -> FixedTime | None:
    """Compare the smallest batch with the largest; `steps_s`: batch → launches' mean step times.

    The result is None if there are fewer than two batch sizes.

    >>> found = fixed_time({8: [6.48, 6.5, 6.46], 128: [7.58, 7.6, 7.56]})
    >>> found.is_launch_bound, round(found.share.centre, 2)
    (True, 0.85)
    """
    timed = {batch: times for batch, times in steps_s.items() if times}
    if len(timed) < 2:
        return None
    small, large = min(timed), max(timed)
    if large < LEAST_RATIO * small:
        return FixedTime(
            small_batch=small,
            large_batch=large,
            step_ratio=None,
            share=None,
            missing=f"batches of {small} and {large} are too close together",
        )
    comparison = compare_launches(
        timed[large], timed[small], better="lower", confidence=confidence, is_cautious=True
    )
    ratio = comparison.ratio
    return FixedTime(
        small_batch=small,
        large_batch=large,
        step_ratio=None if ratio is None else 1 / ratio.centre,
        share=None if ratio is None else _share(ratio, small, large),
        missing=comparison.reason,
    )


def _share(ratio: Interval, small: int, large: int) -> Interval:
    centre, low, high = ((large * x - small) / (large - small) for x in (ratio.centre, ratio.low, ratio.high))
    return replace(ratio, centre=centre, low=low, high=high)

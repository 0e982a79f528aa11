"""What to use: by the rule of thumb before anything is measured, and by what was measured after."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from gpuproof.base.errors import UsageError
from gpuproof.comparison.winners import reason_unusable
from gpuproof.config.models import RunConfig
from gpuproof.config.rules.workload import choose_workload
from gpuproof.suites.points.ranking import side_of
from gpuproof.suites.points.results import PointResult
from gpuproof.suites.scale.advice_words import MeasuredAdvice, measured_advice
from gpuproof.suites.scale.apart import PointApart
from gpuproof.suites.scale.fixed_time import FixedTime, fixed_time
from gpuproof.suites.scale.plan import ScaleOptions, read_options
from gpuproof.suites.scale.speed_up import RuleOfThumb, SpeedUp, advise
from gpuproof.suites.scale.worth import Prices, Worth, worth_of

HOST_BOUND = "host-bound"
"""The doubt of a window whose device waited for its host."""


def advise_before(config: RunConfig) -> RuleOfThumb:
    """Say what the rule of thumb does of a recipe's workload and largest batch, by its thresholds.

    Raises:
        UsageError: there is no such workload, or how many parameters it has is not known before it is built.
    """
    chosen, options = choose_workload(config), read_options(config)
    work = chosen.info.work(chosen.options, chosen.shape)
    if work is None:
        raise UsageError(
            f"how many parameters {config.model.name} has is not known before it is built",
            place="--gpu-mode auto",
            next_step="Use --gpu-mode multi or single",
        )
    return advise(work.num_parameters, max(options.batch_sizes), options)


@dataclass(frozen=True, slots=True, kw_only=True)
class LawWorth:
    """What several devices cost, by one law of scaling."""

    law: str
    worth: Worth


@dataclass(frozen=True, slots=True, kw_only=True)
class AdviceDetail:
    """The answer that was measured, why steps are as long as they are, and what that costs."""

    measured: MeasuredAdvice | None = None
    """None where nothing was compared."""
    fixed_time: FixedTime | None = None
    """Of one device; None with fewer than two batch sizes."""
    host_bound: tuple[str, ...] = ()
    """Points in whose windows the device waited for its host."""
    worths: tuple[LawWorth, ...] = ()
    memory_safety_margin: float | None = None
    over_margin: tuple[str, ...] = ()
    """Points that need more of a device's memory than the margin."""


def advice_from(
    averages: Sequence[tuple[str, SpeedUp]],
    concluded: Sequence[PointResult],
    apart: Sequence[PointApart],
    options: ScaleOptions,
) -> AdviceDetail:
    """Return the advice of a study; `averages` are its speed-ups over all batch sizes, each with its law."""
    margin = options.memory_safety_margin
    alone = {
        result.point.config.data.batch_size: [launch.mean_step_s for launch in result.launches]
        for result in concluded
        if result.point.config.distributed.nproc == 1
        and reason_unusable(side_of(result.figures), beside=result.figures.doubts) is None
    }
    return AdviceDetail(
        measured=measured_advice(averages),
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

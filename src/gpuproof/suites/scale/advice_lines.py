"""The advice of a scaling study in sentences: the measured answer with its evidence, what binds it, costs."""

from __future__ import annotations

from collections.abc import Iterator

from gpuproof.base import units
from gpuproof.suites.scale.advice import AdviceDetail, LawWorth
from gpuproof.suites.scale.advice_words import MeasuredAdvice
from gpuproof.suites.scale.fixed_time import MOSTLY, FixedTime
from gpuproof.suites.scale.worth import Payback


def advice_lines(advice: AdviceDetail) -> Iterator[str]:
    """Yield the advice, a sentence a line."""
    if advice.measured is not None:
        yield _answer(advice.measured)
    if advice.fixed_time is not None:
        yield _fixed_time(advice.fixed_time)
    if advice.host_bound:
        yield (
            f"host-bound: {', '.join(advice.host_bound)}: the device waited for its host, so neither the "
            "speed of the device nor its links set the pace"
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
        f"several devices: {advice.answer}: {advice.reason}; {advice.num_devices} devices, {advice.law} "
        f"scaling{between}, launches of each point: {advice.num_launches}"
    )


def _fixed_time(fixed: FixedTime) -> str:
    batches = f"batch {fixed.small_batch} to {fixed.large_batch} on one device"
    if fixed.share is None or fixed.step_ratio is None:
        return f"whether steps are launch-bound is not known: {fixed.missing}"
    share_text = f"{units.share(max(0.0, fixed.share.low))} – {units.share(min(1.0, fixed.share.high))}"
    grew = f"{batches}: {fixed.step_ratio:.2f} times the step for "
    grew += f"{fixed.large_batch / fixed.small_batch:g} times the samples; "
    grew += f"{share_text} of the larger step does not depend on the batch"
    if fixed.is_launch_bound:
        return f"launch-bound: {grew}: a larger batch costs little, and helps more than a second device"
    return f"{grew} (launch-bound from {units.share(MOSTLY)} on)"


def _cost(priced: LawWorth) -> str:
    worth = priced.worth
    cost = worth.cost_ratio
    line = (
        f"costs, {worth.num_devices} devices, {priced.law} scaling: {worth.verdict}: the same work costs "
        f"{cost.centre:.2f} × ({cost.low:.2f} – {cost.high:.2f}) what it does on one; break-even is a "
        f"speed-up of {worth.price_ratio:.2f}"
    )
    if worth.payback is None:
        return line
    return f"{line}; hours saved pay back {worth.extra_price:,.2f} {_payback(worth.payback)}"


def _payback(payback: Payback) -> str:
    if payback.least_months is None:
        return "never: none are saved"
    most = "never" if payback.most_months is None else f"{payback.most_months:.1f}"
    return f"after {payback.least_months:.1f} to {most} months"

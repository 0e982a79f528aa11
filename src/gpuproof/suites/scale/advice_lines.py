"""The advice of a scaling study in sentences: the measured answer with its evidence, what binds it, costs."""

from __future__ import annotations

from collections.abc import Iterator

from gpuproof import units
from gpuproof.analysis.scale.advice import MeasuredAdvice
from gpuproof.analysis.scale.fixed_time import MOSTLY, FixedTime
from gpuproof.analysis.scale.worth import Payback
from gpuproof.suites.scale.advice import AdviceDetail, LawWorth


def advice_lines(found: AdviceDetail) -> Iterator[str]:
    """Yield what was found, a sentence a line."""
    if found.measured is not None:
        yield _answer(found.measured)
    if found.fixed_time is not None:
        yield _fixed(found.fixed_time)
    if found.host_bound:
        yield (
            f"host-bound: {', '.join(found.host_bound)}: the device waited for its host, so neither the "
            "speed of the device nor its links set the pace"
        )
    if found.over_margin and found.memory_safety_margin is not None:
        yield (
            f"memory: {', '.join(found.over_margin)}: over {units.share(found.memory_safety_margin)} of a "
            "device's memory (scale.memory_safety_margin): slightly more may not fit"
        )
    for priced in found.worths:
        yield _cost(priced)


def _answer(found: MeasuredAdvice) -> str:
    between = ""
    if found.ratio is not None and found.low is not None and found.high is not None:
        between = f": {found.ratio:.2f} × ({found.low:.2f} – {found.high:.2f})"
    return (
        f"several devices: {found.answer}: {found.reason}; {found.num_devices} devices, {found.law} "
        f"scaling{between}, launches of each point: {found.num_launches}"
    )


def _fixed(found: FixedTime) -> str:
    batches = f"batch {found.small_batch} to {found.large_batch} on one device"
    if found.share is None or found.step_ratio is None:
        return f"whether steps are launch-bound is not known: {found.missing}"
    known = f"{units.share(max(0.0, found.share.low))} – {units.share(min(1.0, found.share.high))}"
    grew = f"{batches}: {found.step_ratio:.2f} times the step for "
    grew += f"{found.large_batch / found.small_batch:g} times the samples; "
    grew += f"{known} of the larger step does not depend on the batch"
    if found.is_launch_bound:
        return f"launch-bound: {grew}: a larger batch costs little, and helps more than a second device"
    return f"{grew} (launch-bound from {units.share(MOSTLY)} on)"


def _cost(priced: LawWorth) -> str:
    found = priced.worth
    cost = found.cost_ratio
    line = (
        f"costs, {found.num_devices} devices, {priced.law} scaling: {found.verdict}: the same work costs "
        f"{cost.centre:.2f} × ({cost.low:.2f} – {cost.high:.2f}) what it does on one; break-even is a "
        f"speed-up of {found.price_ratio:.2f}"
    )
    if found.payback is None:
        return line
    return f"{line}; hours saved pay back {found.extra_price:,.2f} {_payback(found.payback)}"


def _payback(found: Payback) -> str:
    if found.least_months is None:
        return "never: none are saved"
    most = "never" if found.most_months is None else f"{found.most_months:.1f}"
    return f"after {found.least_months:.1f} to {most} months"

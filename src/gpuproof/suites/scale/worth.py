"""Do more devices pay? What work costs on several against one, from prices that the user gives.

Two questions. *By the piece*: host and devices are paid for as long as they work (rented, or bought and worn
out), so that several pay where the speed-up is over the ratio of the prices. *By the hour saved*: further
devices are bought once, and pay themselves back by the hours that the same work no longer takes.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal

from gpuproof.statistics.estimate import Interval

Pays = Literal["pays", "does not pay", "cannot tell"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Prices:
    """What the user pays, all in one currency and for one span of time."""

    device: float
    host: float = 0.0
    """Of all that is there once, however many devices: the computer, its place, who keeps it."""
    saved_hour_worth: float | None = None
    """What an hour less of waiting is worth."""
    busy_hours_per_month: float | None = None
    """Hours a month that one device would have to do."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Payback:
    """Months until hours saved have paid for the further devices, at both ends of the speed-up."""

    least_months: float | None
    """None for never: several are no faster."""
    most_months: float | None
    """None for never: several may be no faster."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Worth:
    """What several devices cost against one."""

    num_devices: int
    price_ratio: float
    """Of host and devices to host and one device: the speed-up from which several pay by the piece."""
    cost_ratio: Interval
    """Of the same work, on several devices over one; below 1 is cheaper."""
    verdict: Pays
    extra_price: float
    """Of the devices beyond the first."""
    payback: Payback | None
    """None without the worth of an hour."""


def worth_of(speed_up: Interval, *, num_devices: int, prices: Prices) -> Worth:
    """Return what `num_devices` cost against one, given the ratio of their throughputs.

    >>> ratio = Interval(centre=1.6, low=1.5, high=1.7, confidence=0.95, method="by hand",
    ...                  num_launches=6, num_samples=6, between_launches=True)
    >>> found = worth_of(ratio, num_devices=2, prices=Prices(device=800))
    >>> found.price_ratio, round(found.cost_ratio.centre, 2), found.verdict
    (2.0, 1.25, 'does not pay')
    """
    price_ratio = (prices.host + num_devices * prices.device) / (prices.host + prices.device)
    cost = replace(
        speed_up,
        centre=price_ratio / speed_up.centre,
        low=price_ratio / speed_up.high,
        high=price_ratio / speed_up.low,
    )
    verdict: Pays = "cannot tell"
    if cost.high < 1:
        verdict = "pays"
    elif cost.low > 1:
        verdict = "does not pay"
    extra = (num_devices - 1) * prices.device
    return Worth(
        num_devices=num_devices,
        price_ratio=price_ratio,
        cost_ratio=cost,
        verdict=verdict,
        extra_price=extra,
        payback=_payback(speed_up, extra, prices),
    )


def _payback(speed_up: Interval, extra: float, prices: Prices) -> Payback | None:
    if not prices.saved_hour_worth or not prices.busy_hours_per_month:
        return None
    a_month = prices.saved_hour_worth * prices.busy_hours_per_month

    def months(ratio: float) -> float | None:
        saved = a_month * (1 - 1 / ratio)
        return extra / saved if saved > 0 else None

    return Payback(least_months=months(speed_up.high), most_months=months(speed_up.low))

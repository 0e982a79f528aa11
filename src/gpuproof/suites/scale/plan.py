"""The launches of a scaling study: every batch size at every device count, in random order.

*Strong* scaling fixes the total batch of all devices; *weak* scaling fixes the batch per device. On one
device both are the same, so it is measured once.

Whether more devices pay off is decided from prices given by the user. *By usage*: host and devices are paid
for while they are in use (rented, or bought and depreciated), so several devices pay off if the speed-up
exceeds the price ratio. *By the hour saved*: the additional devices are bought once, and pay for themselves
through the hours saved on the same workload.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

from gpuproof.base.errors import UsageError
from gpuproof.config.models import RunConfig
from gpuproof.config.rules.workload import choose_workload
from gpuproof.records.case import Case, Placement, TrainingWork
from gpuproof.records.codec import from_json
from gpuproof.statistics.estimate import Interval
from gpuproof.suites.base import HostPlace, LaunchKey
from gpuproof.suites.points.plan import Plan, Point, config_at, shuffled_order
from gpuproof.suites.scale.speed_up import Thresholds

Law = Literal["strong", "weak"]
NAME = "scale"
Pays = Literal["pays", "does not pay", "cannot tell"]


@dataclass(frozen=True, slots=True, kw_only=True)
class ScaleOptions(Thresholds):
    """The `scale` block of a recipe: what to measure, and the thresholds of the rule of thumb."""

    batch_sizes: tuple[int, ...] = (16, 32, 64, 128)
    """Batch sizes, in samples per step: the total over all devices (strong) or per device (weak)."""
    num_devices: tuple[int, ...] = (1,)
    """Device counts to run on, with one rank per device."""
    laws: tuple[Law, ...] = ("strong", "weak")
    """How the batch grows with the number of devices."""
    breakdown_runs: int = 5
    """Number of launches per point that, after the window, also time the phases of a step and measure
    communication in three ways; 0 for none."""
    device_price: float | None = None
    """Price of one device, in any currency: for purchase, or for any period; null disables costs."""
    host_price: float = 0.0
    """Price of everything that is needed regardless of the number of devices, in the same currency and for
    the same period."""
    saved_hour_worth: float | None = None
    """Value of waiting one hour less; together with busy_hours_per_month it determines the payback time."""
    busy_hours_per_month: float | None = None
    """Hours per month that one device would be busy."""

    memory_safety_margin: float = 0.8
    """Largest fraction of a device's memory that the expected usage, or the measured peak if higher, may
    occupy; points above it are reported."""

    def __post_init__(self) -> None:
        if not 0 < self.memory_safety_margin <= 1:
            raise ValueError("memory_safety_margin must be a fraction above 0 and at most 1")
        for name in ("batch_sizes", "num_devices", "laws"):
            values = getattr(self, name)
            if not values or len(set(values)) < len(values):
                raise ValueError(f"{name} needs at least one value, without duplicates")
        if self.breakdown_runs < 0:
            raise ValueError("breakdown_runs must be 0 or more")
        for name in ("device_price", "saved_hour_worth", "busy_hours_per_month"):
            if (price := getattr(self, name)) is not None and price <= 0:
                raise ValueError(f"{name} must be above 0")
        if self.host_price < 0:
            raise ValueError("host_price must be 0 or more")
        for name in ("batch_sizes", "num_devices"):
            if min(getattr(self, name)) < 1:
                raise ValueError(f"{name} must be at least 1")

    @property
    def several(self) -> list[int]:
        """The device counts above one."""
        return sorted(number for number in self.num_devices if number > 1)

    @property
    def prices(self) -> Prices | None:
        """The user's prices; None if no device has a price."""
        if self.device_price is None:
            return None
        return Prices(
            device=self.device_price,
            host=self.host_price,
            saved_hour_worth=self.saved_hour_worth,
            busy_hours_per_month=self.busy_hours_per_month,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class ScalePoint:
    """One batch size at one device count."""

    batch_size: int
    num_devices: int
    law: Law | None
    """The scaling law; None on one device, where both laws are the same."""

    @property
    def case_id(self) -> str:
        """The point's name."""
        law = "" if self.law is None else f"-{self.law}"
        return f"bs{self.batch_size}-n{self.num_devices}{law}"

    @property
    def samples_per_rank(self) -> int:
        """Samples per step on one device."""
        return self.batch_size // self.num_devices if self.law == "strong" else self.batch_size

    @property
    def is_divisible(self) -> bool:
        """Whether every device gets the same number of samples."""
        return self.law != "strong" or self.batch_size % self.num_devices == 0


@dataclass(frozen=True, slots=True, kw_only=True)
class ScalePlan(Plan):
    """Launches of a study; the first launches of each point include a step breakdown."""

    breakdown_runs: int
    places: tuple[HostPlace, ...] = ()
    """The hosts, if there are several; empty if all points run on one."""

    def next(self, running: Collection[LaunchKey]) -> Iterator[Case]:
        """Yield launches that may start now; across hosts, one at a time, since all use the first host."""
        return iter(()) if self.places and running else Plan.next(self, running)

    def case(self, key: LaunchKey) -> Case:
        """Build a launch; a regression model's errors are checked after the window."""
        built = Plan.case(self, key)
        work = built.work
        assert isinstance(work, TrainingWork), "a scaling study needs a training recipe"
        is_regression = choose_workload(self.points[key[0]].config).info.loss == "mean_squared_error"
        window = replace(work.window, evaluate_after=work.window.evaluate_after or is_regression)
        profiling = replace(work.profiling, breakdown=key[1] < self.breakdown_runs)
        placement = place_over(built.placement, self.places) if self.places else built.placement
        return replace(built, placement=placement, work=replace(work, window=window, profiling=profiling))


def require_whole_hosts(options: ScaleOptions, places: Sequence[HostPlace]) -> None:
    """Reject device counts that do not fill the given hosts one after another.

    Raises:
        UsageError: a device count does not fill them, or the hosts' device count is unknown.
    """
    if any(place.num_devices is None for place in places):
        raise UsageError(
            "a scaling study fills its hosts one after another, and their number of devices is not known",
            place="--on",
            next_step="Give `gpus` for each host in the inventory, or name one host",
        )
    count = devices_per_host(places)
    for number in options.num_devices:
        if number > count and (number % count or number > count * len(places)):
            raise UsageError(
                f"{number} devices do not fill whole hosts: {len(places)} hosts with {count} "
                "devices each were given",
                place="scale.num_devices",
                next_step=f"Give numbers up to {count}, and multiples of it up to {count * len(places)}",
            )


def devices_per_host(places: Sequence[HostPlace]) -> int:
    """Return how many devices are used on each host: as many as the smallest host has."""
    return min(place.num_devices or 1 for place in places)


def place_over(placement: Placement, places: Sequence[HostPlace]) -> Placement:
    """Place a point on the first host if it has enough devices, else on as many whole hosts as needed."""
    number = placement.num_ranks
    count = max(1, number // devices_per_host(places))
    return replace(
        placement,
        hosts=tuple(place.name for place in places[:count]),
        num_hosts=count,
        ranks_per_host=number // count,
    )


def read_options(config: RunConfig) -> ScaleOptions:
    """Return the recipe's block."""
    return from_json(ScaleOptions, config.suite_options[NAME], place=NAME)


def scale_points(options: ScaleOptions) -> list[ScalePoint]:
    """Return the points, omitting those that assign unequal batches to devices."""
    return [point for point in _all_points(options) if point.is_divisible]


def points_left_out(options: ScaleOptions) -> list[ScalePoint]:
    """Return the points with a batch that is not divisible by the device count."""
    return [point for point in _all_points(options) if not point.is_divisible]


def _all_points(options: ScaleOptions) -> list[ScalePoint]:
    return [
        ScalePoint(batch_size=batch, num_devices=number, law=law)
        for batch in options.batch_sizes
        for number in sorted(options.num_devices)
        for law in ((None,) if number == 1 else options.laws)
    ]


def refuse_indivisible(options: ScaleOptions) -> None:
    """Reject a study in which no point uses several devices although some were requested.

    Raises:
        UsageError: no batch size is divisible by a requested number of devices above one.
    """
    if options.several and not any(point.num_devices > 1 for point in scale_points(options)):
        raise UsageError(
            f"no batch size is divisible by {' or '.join(map(str, options.several))} devices, so nothing "
            "could be compared with one",
            place="scale.batch_sizes",
            next_step="Use multiples of scale.num_devices, or scale.laws=[weak]",
        )


def plan(config: RunConfig, places: Sequence[HostPlace] = ()) -> Plan:
    """Plan every launch: replicate by replicate, shuffling the points within each.

    If `places` contains several hosts, a point uses only as many of the first hosts as it needs.

    Raises:
        UsageError: a point is not a runnable recipe.
    """
    options = read_options(config)
    if len(places) > 1:
        require_whole_hosts(options, places)
    points = {point.case_id: point_at(config, point) for point in scale_points(options)}
    return ScalePlan(
        points=points,
        order=shuffled_order(config, points),
        is_sweep=False,
        breakdown_runs=options.breakdown_runs,
        places=tuple(places) if len(places) > 1 else (),
    )


def point_at(config: RunConfig, point: ScalePoint) -> Point:
    """Return the recipe of one point."""
    assignment = {"data.batch_size": point.samples_per_rank, "distributed.nproc": point.num_devices}
    held = max(config.data.samples_per_epoch, point.samples_per_rank)
    keys: dict[str, Any] = {"suite": None, "suite_options": {}, "data.samples_per_epoch": held, **assignment}
    return Point(case_id=point.case_id, assignment=assignment, config=config_at(config, keys))


@dataclass(frozen=True, slots=True, kw_only=True)
class Prices:
    """The user's prices, all in the same currency and for the same period."""

    device: float
    host: float = 0.0
    """Costs that do not depend on the number of devices: the computer, its space, its maintenance."""
    saved_hour_worth: float | None = None
    """The value of waiting one hour less."""
    busy_hours_per_month: float | None = None
    """Hours per month that one device would be busy."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Payback:
    """Months until the saved hours have paid for the additional devices, at both speed-up bounds."""

    least_months: float | None
    """None means never: several devices are not faster."""
    most_months: float | None
    """None means never: several devices may not be faster."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Worth:
    """The cost of several devices compared with one."""

    num_devices: int
    price_ratio: float
    """Price of the host with all devices divided by the price of the host with one device: the speed-up above
    which several devices are cheaper for the same workload."""
    cost_ratio: Interval
    """Cost of the same workload on several devices relative to one device; below 1 is cheaper."""
    verdict: Pays
    extra_price: float
    """Price of the devices beyond the first."""
    payback: Payback | None
    """The time until the devices have paid for themselves; None if the value of an hour is not given."""


def worth_of(speed_up: Interval, *, num_devices: int, prices: Prices) -> Worth:
    """Return the cost of `num_devices` compared with one, given the ratio of their throughputs.

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

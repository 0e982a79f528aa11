"""The launches of a scaling study: every batch size on every number of devices, interleaved in random order.

*Strong* scaling keeps the batch of all devices together; *weak* scaling keeps that of each device. On one
device both are the same, so that it is measured once.

Whether more devices pay follows from prices that the user gives. *By the piece*: host and devices are paid
for as long as they work (rented, or bought and worn out), so that several pay where the speed-up is over the
ratio of the prices. *By the hour saved*: further devices are bought once, and pay themselves back by the
hours that the same work no longer takes.
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
    """The block `scale` of a recipe: what is measured, and the thresholds of the rule of thumb."""

    batch_sizes: tuple[int, ...] = (16, 32, 64, 128)
    """Batch sizes, in samples of a step: of all devices together (strong) or of each device (weak)."""
    num_devices: tuple[int, ...] = (1,)
    """Numbers of devices, one rank on each."""
    laws: tuple[Law, ...] = ("strong", "weak")
    """How the batch grows with the devices."""
    breakdown_runs: int = 5
    """How many launches of each point also time the phases of a step, and communication in three ways, after
    the window; 0 for none."""
    device_price: float | None = None
    """Price of one device, in any currency, bought or for any span of time; null leaves costs out."""
    host_price: float = 0.0
    """Price of all that is needed whatever the number of devices, in that currency and span."""
    saved_hour_worth: float | None = None
    """Worth of an hour less of waiting; with busy_hours_per_month it gives the time of payback."""
    busy_hours_per_month: float | None = None
    """Hours of work a month for one device."""

    memory_safety_margin: float = 0.8
    """Share of a device's memory that the expected need may take; points above it are reported."""

    def __post_init__(self) -> None:
        if not 0 < self.memory_safety_margin <= 1:
            raise ValueError("memory_safety_margin is a share, above 0 and at most 1")
        for name in ("batch_sizes", "num_devices", "laws"):
            values = getattr(self, name)
            if not values or len(set(values)) < len(values):
                raise ValueError(f"{name} needs values, each of them once")
        if self.breakdown_runs < 0:
            raise ValueError("breakdown_runs is 0 or more")
        prices = (self.device_price, self.saved_hour_worth, self.busy_hours_per_month)
        if self.host_price < 0 or any(price is not None and price <= 0 for price in prices):
            raise ValueError("prices, worth and hours are above 0 (host_price may be 0)")
        if min(*self.batch_sizes, *self.num_devices, 1) < 1:
            raise ValueError("batch sizes and numbers of devices are at least 1")

    @property
    def prices(self) -> Prices | None:
        """What the user pays; None where no device has a price."""
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
    """One batch size on one number of devices."""

    batch_size: int
    num_devices: int
    law: Law | None
    """None on one device, where both laws are the same."""

    @property
    def case_id(self) -> str:
        """The point's name."""
        law = "" if self.law is None else f"-{self.law}"
        return f"bs{self.batch_size}-n{self.num_devices}{law}"

    @property
    def samples_per_rank(self) -> int:
        """Samples of one device in a step."""
        return self.batch_size // self.num_devices if self.law == "strong" else self.batch_size

    @property
    def is_divisible(self) -> bool:
        """Whether every device gets as many samples."""
        return self.law != "strong" or self.batch_size % self.num_devices == 0


@dataclass(frozen=True, slots=True, kw_only=True)
class ScalePlan(Plan):
    """Launches of a study, of which the first of each point take steps apart."""

    breakdown_runs: int
    places: tuple[HostPlace, ...] = ()
    """Several hosts; empty where all points run on one."""

    def next(self, running: Collection[LaunchKey]) -> Iterator[Case]:
        """Yield what may begin now: over hosts one launch at a time, since each has the first of them."""
        return iter(()) if self.places and running else Plan.next(self, running)

    def case(self, key: LaunchKey) -> Case:
        """Build a launch; one of a regression looks at its errors after the window."""
        built = Plan.case(self, key)
        work = built.work
        assert isinstance(work, TrainingWork), "a study is of training"
        is_regression = choose_workload(self.points[key[0]].config).info.loss == "mean_squared_error"
        window = replace(work.window, evaluate_after=work.window.evaluate_after or is_regression)
        profiling = replace(work.profiling, breakdown=key[1] < self.breakdown_runs)
        placement = place_over(built.placement, self.places) if self.places else built.placement
        return replace(built, placement=placement, work=replace(work, window=window, profiling=profiling))


def require_whole_hosts(options: ScaleOptions, places: Sequence[HostPlace]) -> None:
    """Refuse numbers of devices that do not fill the named hosts one after another.

    Raises:
        UsageError: a number does not, or how many devices the hosts have is not known.
    """
    if any(place.num_devices is None for place in places):
        raise UsageError(
            "a scaling study over hosts fills one after another, and how many devices each has is not known",
            place="--on",
            next_step="Give `gpus` of each host in the inventory, or name one host",
        )
    count = devices_per_host(places)
    for number in options.num_devices:
        if number > count and (number % count or number > count * len(places)):
            raise UsageError(
                f"{number} devices are no whole hosts: {len(places)} of {count} devices each are named",
                place="scale.num_devices",
                next_step=f"Name numbers up to {count}, and multiples of it up to {count * len(places)}",
            )


def devices_per_host(places: Sequence[HostPlace]) -> int:
    """Return how many devices are used of each host: as many as the smallest has."""
    return min(place.num_devices or 1 for place in places)


def place_over(placement: Placement, places: Sequence[HostPlace]) -> Placement:
    """Place a point on the first host while it has devices enough, else on the first so many whole hosts."""
    number = placement.num_ranks
    count = max(1, number // devices_per_host(places))
    return replace(
        placement,
        hosts=tuple(place.name for place in places[:count]),
        num_hosts=count,
        ranks_per_host=number // count,
    )


def read_options(config: RunConfig) -> ScaleOptions:
    """Return the block of a recipe."""
    return from_json(ScaleOptions, config.suite_options[NAME], place=NAME)


def scale_points(options: ScaleOptions) -> list[ScalePoint]:
    """Return the points, those left out that give devices unequal batches."""
    return [point for point in _all_points(options) if point.is_divisible]


def points_left_out(options: ScaleOptions) -> list[ScalePoint]:
    """Return the points whose batch does not divide by the devices."""
    return [point for point in _all_points(options) if not point.is_divisible]


def _all_points(options: ScaleOptions) -> list[ScalePoint]:
    return [
        ScalePoint(batch_size=batch, num_devices=number, law=law)
        for batch in options.batch_sizes
        for number in sorted(options.num_devices)
        for law in ((None,) if number == 1 else options.laws)
    ]


def plan(config: RunConfig, places: Sequence[HostPlace] = ()) -> Plan:
    """Plan every launch: replicate by replicate, the points of each in an order of its own.

    Where `places` are several hosts, a point has as few of them as hold it, the first ones.

    Raises:
        UsageError: a point is no recipe that can be run.
    """
    options = read_options(config)
    if len(places) > 1:
        require_whole_hosts(options, places)
    points = {point.case_id: point_at(config, point) for point in scale_points(options)}
    if not points:
        raise UsageError(
            "no batch size divides by a number of devices",
            place="scale.batch_sizes",
            next_step="Name multiples of scale.num_devices, or scale.laws=[weak]",
        )
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

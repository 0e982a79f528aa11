"""The launches of a scaling study: every batch size on every number of devices, interleaved in random order.

*Strong* scaling keeps the batch of all devices together; *weak* scaling keeps that of each device. On one
device both are the same, so that it is measured once.
"""

from __future__ import annotations

import random
from dataclasses import dataclass, replace
from typing import Any, Literal

from gpuproof.analysis.scale.worth import Prices
from gpuproof.analysis.scaling import Thresholds
from gpuproof.config.models import RunConfig
from gpuproof.errors import UsageError
from gpuproof.records.case import Case, TrainingWork
from gpuproof.records.codec import from_json
from gpuproof.suites.base import LaunchKey
from gpuproof.suites.points.plan import Plan, Point, config_at

Law = Literal["strong", "weak"]
NAME = "scale"


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

    def case(self, key: LaunchKey) -> Case:
        """Build a launch."""
        built = Plan.case(self, key)
        work = built.work
        assert isinstance(work, TrainingWork), "a study is of training"
        window = replace(work.window, breakdown=key[1] < self.breakdown_runs)
        return replace(built, work=replace(work, window=window))


def over_hosts_refused() -> UsageError:
    """Return why a study is not made over hosts.

    A curve is broken in any case where a second host begins.
    """
    return UsageError(
        "a scaling study covers the devices of one machine: over several hosts, each point would run on "
        "whichever host is free, and differences between hosts would look like scaling",
        place="--on",
        next_step="Name one host, or an allocation of one node; over hosts, gpuproof run --one-job for each "
        "number of them",
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


def plan(config: RunConfig) -> Plan:
    """Plan every launch: replicate by replicate, the points of each in an order of its own.

    Raises:
        UsageError: a point is no recipe that can be run.
    """
    options = read_options(config)
    points = {point.case_id: point_at(config, point) for point in scale_points(options)}
    if not points:
        raise UsageError(
            "no batch size divides by a number of devices",
            place="scale.batch_sizes",
            next_step="Name multiples of scale.num_devices, or scale.laws=[weak]",
        )
    order = []
    for replicate in range(config.run.repeats):
        names = list(points)
        random.Random(f"{config.run.order_seed}:{replicate}").shuffle(names)  # noqa: S311  # no secret
        order += [(name, replicate) for name in names]
    return ScalePlan(points=points, order=tuple(order), is_sweep=False, breakdown_runs=options.breakdown_runs)


def point_at(config: RunConfig, point: ScalePoint) -> Point:
    """Return the recipe of one point."""
    assignment = {"data.batch_size": point.samples_per_rank, "distributed.nproc": point.num_devices}
    held = max(config.data.samples_per_epoch, point.samples_per_rank)
    own: dict[str, Any] = {"suite": None, "suite_options": {}, "data.samples_per_epoch": held, **assignment}
    return Point(case_id=point.case_id, assignment=assignment, config=config_at(config, own))

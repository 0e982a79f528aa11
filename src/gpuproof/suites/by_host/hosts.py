"""Summarise what many hosts measured for one recipe or test: median, spread, and outliers.

The input is what each host measured for the same workload. The output, per type and for the whole fleet, is
the median with its MAD (robust, since the aim is to find one broken host), outliers within a type
(`statistics/outliers.py`), and energy and cost per item. Rates are compared per device, so that a host is not
an outlier just because it has more devices.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median

from gpuproof.base.groups import grouped
from gpuproof.statistics.dispersion import median_absolute_deviation
from gpuproof.statistics.outliers import ERROR_RATE, HostRate, HostsJudged, Slower, Standard, judge_hosts

MILLION = 1_000_000
SECONDS_PER_HOUR = 3600


@dataclass(frozen=True, slots=True, kw_only=True)
class HostMeasured:
    """Measurements of one host, over all its launches."""

    host: str
    gpu_type: str
    num_devices: int
    items_per_s_total: float
    """Combined rate of all devices of the host."""
    items_total: int
    relative_reach: float | None = None
    """Distance from the host's rate to the farther end of the interval over its launches, relative to the
    rate; None if there is no interval, or if it comes from a single launch, which does not show the variation
    between launches."""
    energy_j: float | None = None
    """Energy of all devices over the windows in which `items_total` items were processed."""
    price_per_hour: float | None = None

    @property
    def items_per_s_per_device(self) -> float:
        """Throughput per device."""
        return self.items_per_s_total / self.num_devices

    @property
    def energy_j_per_item(self) -> float | None:
        """Energy per item; None if the energy was not read."""
        return None if self.energy_j is None else self.energy_j / self.items_total

    @property
    def cost_per_million_items(self) -> float | None:
        """Price per million items at the host's rate; None if no price is given."""
        if self.price_per_hour is None:
            return None
        return cost_per_million(self.price_per_hour, self.items_per_s_total)


@dataclass(frozen=True, slots=True, kw_only=True)
class Spread:
    """Median and spread of a value over several hosts."""

    num_hosts: int
    median: float
    mad: float
    """Median absolute deviation from the median, unscaled; 0 for one host."""
    lowest: float
    highest: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Outlier:
    """An outlier among the hosts of its type."""

    host: str
    gpu_type: str
    items_per_s_per_device: float
    relative_difference: float
    """Difference relative to the median of its type, or of the other hosts if there are three or fewer: −0.2
    is a fifth slower."""
    modified_z: float | None
    """Modified Z-score of the host; None if the outlier was determined from launches."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TypeSummary:
    """The hosts with one GPU type."""

    gpu_type: str
    items_per_s_per_device: Spread
    relative_to_fastest: float
    """Ratio of the type's median to the median of the fastest type."""
    energy_j_per_item: float | None
    cost_per_million_items: float | None
    outliers: tuple[Outlier, ...]
    outliers_missing: str | None
    """Reason why no outlier can be identified."""
    standard: Standard | None = None
    """The rule that hosts were checked against; None if they were not checked."""
    slower: Slower | None = None
    """The slower of two hosts, neither of which counts as an outlier."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FleetSummary:
    """Results for the whole fleet."""

    num_hosts: int
    num_measured: int
    num_devices: int
    """Number of devices on the hosts that measured something."""
    items_per_s_total: float | None
    """Combined rate of all hosts."""
    items_per_s_per_device: Spread | None
    types: tuple[TypeSummary, ...]
    """GPU types, starting with the fastest."""
    energy_j_per_item: float | None
    energy_missing: str | None
    cost_per_million_items: float | None
    cost_missing: str | None

    @property
    def outliers(self) -> tuple[Outlier, ...]:
        """Every host that is an outlier."""
        return tuple(outlier for kind in self.types for outlier in kind.outliers)


def summarize_fleet(
    hosts: Sequence[HostMeasured], *, num_hosts: int, error_rate: float | None = None
) -> FleetSummary:
    """Summarise the `hosts` with results, out of `num_hosts` requested ones.

    `error_rate` is the portion of the run's error rate allotted to finding outliers of one type; None for all
    of it.
    """
    groups = grouped((host.gpu_type, host) for host in hosts)
    fastest = max(map(_middle, groups.values()), default=None)
    share = error_rate or ERROR_RATE / max(1, len(groups))
    types = [
        _summarize_type(name, group, fastest=fastest or 1.0, error_rate=share)
        for name, group in groups.items()
    ]
    energy, energy_missing = _energy(hosts)
    cost, cost_missing = _cost(hosts)
    return FleetSummary(
        num_hosts=num_hosts,
        num_measured=len(hosts),
        num_devices=sum(host.num_devices for host in hosts),
        items_per_s_total=sum(host.items_per_s_total for host in hosts) if hosts else None,
        items_per_s_per_device=_spread(hosts) if hosts else None,
        types=tuple(sorted(types, key=lambda summary: -summary.items_per_s_per_device.median)),
        energy_j_per_item=energy,
        energy_missing=energy_missing,
        cost_per_million_items=cost,
        cost_missing=cost_missing,
    )


def cost_per_million(price_per_hour: float, items_per_s: float) -> float:
    """Return the price per million items.

    >>> cost_per_million(3.6, 1000.0)
    1.0
    """
    return price_per_hour / SECONDS_PER_HOUR / items_per_s * MILLION


def _middle(hosts: Sequence[HostMeasured]) -> float:
    return median(host.items_per_s_per_device for host in hosts)


def _spread(hosts: Sequence[HostMeasured]) -> Spread:
    rates = [host.items_per_s_per_device for host in hosts]
    mad = median_absolute_deviation(rates)
    assert mad is not None
    return Spread(num_hosts=len(rates), median=median(rates), mad=mad, lowest=min(rates), highest=max(rates))


def _summarize_type(
    name: str, hosts: Sequence[HostMeasured], *, fastest: float, error_rate: float
) -> TypeSummary:
    rates = [
        HostRate(host=host.host, rate=host.items_per_s_per_device, reach=host.relative_reach)
        for host in hosts
    ]
    judged = judge_hosts(rates, error_rate=error_rate)
    return TypeSummary(
        gpu_type=name,
        items_per_s_per_device=_spread(hosts),
        relative_to_fastest=_middle(hosts) / fastest,
        energy_j_per_item=_energy(hosts)[0],
        cost_per_million_items=_cost(hosts)[0],
        outliers=_outliers(name, hosts, judged),
        outliers_missing=judged.missing,
        standard=judged.standard,
        slower=judged.slower,
    )


def _outliers(gpu_type: str, hosts: Sequence[HostMeasured], judged: HostsJudged) -> tuple[Outlier, ...]:
    rates = {host.host: host.items_per_s_per_device for host in hosts}
    return tuple(
        Outlier(
            host=apart.host,
            gpu_type=gpu_type,
            items_per_s_per_device=rates[apart.host],
            relative_difference=apart.relative_difference,
            modified_z=apart.modified_z,
        )
        for apart in judged.apart
    )


def _energy(hosts: Sequence[HostMeasured]) -> tuple[float | None, str | None]:
    joules = [host.energy_j for host in hosts if host.energy_j is not None]
    if not hosts or len(joules) < len(hosts):
        return None, f"energy is known for {len(joules)} of {len(hosts)} hosts"
    return sum(joules) / sum(host.items_total for host in hosts), None


def _cost(hosts: Sequence[HostMeasured]) -> tuple[float | None, str | None]:
    prices = [host.price_per_hour for host in hosts if host.price_per_hour is not None]
    if not hosts or len(prices) < len(hosts):
        return None, f"price_per_hour is given for {len(prices)} of {len(hosts)} hosts"
    return cost_per_million(sum(prices), sum(host.items_per_s_total for host in hosts)), None

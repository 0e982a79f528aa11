"""What do many hosts say together? Middle and spread, hosts that stand apart, GPU types against each other.

In: what each host measured of the same work. Out: per type and for the whole fleet the median with its
MAD (robust, since one broken host is what one looks for), outliers by the modified Z-score within a type,
energy and cost of an item. Rates are compared per device, so that a host with more of them is no outlier.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Any

from gpuproof.statistics.dispersion import Z_LIMIT, median_absolute_deviation, modified_z_scores

ENOUGH_HOSTS = 5
"""Of one type, to call any an outlier: with fewer the MAD hangs on one or two of them."""
MILLION = 1_000_000
SECONDS_PER_HOUR = 3600


@dataclass(frozen=True, slots=True, kw_only=True)
class HostMeasured:
    """What one host measured, all its launches together."""

    host: str
    gpu_type: str
    num_devices: int
    items_per_s_total: float
    """Of all devices of the host."""
    items_total: int
    energy_j: float | None = None
    """Of all devices over the windows in which `items_total` were done."""
    price_per_hour: float | None = None

    @property
    def items_per_s_per_device(self) -> float:
        """Throughput of one device."""
        return self.items_per_s_total / self.num_devices

    @property
    def energy_j_per_item(self) -> float | None:
        """Energy of one item; None where it was not read."""
        return None if self.energy_j is None else self.energy_j / self.items_total

    @property
    def cost_per_million_items(self) -> float | None:
        """Price of a million items at this rate; None without a price."""
        if self.price_per_hour is None:
            return None
        return cost_per_million(self.price_per_hour, self.items_per_s_total)


@dataclass(frozen=True, slots=True, kw_only=True)
class Spread:
    """Values of several hosts: middle and spread."""

    num_hosts: int
    median: float
    mad: float
    """Median distance from the median, unscaled; 0 for one host."""
    lowest: float
    highest: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Outlier:
    """A host that stands apart from those of its type."""

    host: str
    gpu_type: str
    items_per_s_per_device: float
    relative_difference: float
    """From the median of its type: −0.2 is a fifth slower."""
    modified_z: float


@dataclass(frozen=True, slots=True, kw_only=True)
class TypeSummary:
    """The hosts with one type of GPU."""

    gpu_type: str
    items_per_s_per_device: Spread
    relative_to_fastest: float
    """Its median over that of the fastest type."""
    energy_j_per_item: float | None
    cost_per_million_items: float | None
    outliers: tuple[Outlier, ...]
    outliers_missing: str | None
    """Why outliers were not looked for."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FleetSummary:
    """The whole fleet."""

    num_hosts: int
    num_measured: int
    num_devices: int
    """Of the hosts that measured something."""
    items_per_s_total: float | None
    """Of all hosts together."""
    items_per_s_per_device: Spread | None
    types: tuple[TypeSummary, ...]
    """The fastest first."""
    energy_j_per_item: float | None
    energy_missing: str | None
    cost_per_million_items: float | None
    cost_missing: str | None

    @property
    def outliers(self) -> tuple[Outlier, ...]:
        """Every host that stands apart."""
        return tuple(outlier for kind in self.types for outlier in kind.outliers)


def summarize_fleet(hosts: Sequence[HostMeasured], *, num_hosts: int) -> FleetSummary:
    """Put together what hosts measured; `num_hosts` were asked, those of `hosts` measured something."""
    fastest = max((_middle(group) for group in _by_type(hosts).values()), default=None)
    types = [_summarize_type(name, group, fastest=fastest or 1.0) for name, group in _by_type(hosts).items()]
    energy, energy_missing = _energy(hosts)
    cost, cost_missing = _cost(hosts)
    return FleetSummary(
        num_hosts=num_hosts,
        num_measured=len(hosts),
        num_devices=sum(host.num_devices for host in hosts),
        items_per_s_total=sum(host.items_per_s_total for host in hosts) if hosts else None,
        items_per_s_per_device=_spread(hosts) if hosts else None,
        types=tuple(sorted(types, key=lambda found: -found.items_per_s_per_device.median)),
        energy_j_per_item=energy,
        energy_missing=energy_missing,
        cost_per_million_items=cost,
        cost_missing=cost_missing,
    )


def cost_per_million(price_per_hour: float, items_per_s: float) -> float:
    """Return the price of a million items.

    >>> cost_per_million(3.6, 1000.0)
    1.0
    """
    return price_per_hour / SECONDS_PER_HOUR / items_per_s * MILLION


def _by_type(hosts: Sequence[HostMeasured]) -> dict[str, list[HostMeasured]]:
    groups: dict[str, list[HostMeasured]] = {}
    for host in hosts:
        groups.setdefault(host.gpu_type, []).append(host)
    return groups


def _middle(hosts: Sequence[HostMeasured]) -> float:
    return median(host.items_per_s_per_device for host in hosts)


def _spread(hosts: Sequence[HostMeasured]) -> Spread:
    rates = [host.items_per_s_per_device for host in hosts]
    mad = median_absolute_deviation(rates)
    assert mad is not None
    return Spread(num_hosts=len(rates), median=median(rates), mad=mad, lowest=min(rates), highest=max(rates))


def _summarize_type(name: str, hosts: Sequence[HostMeasured], *, fastest: float) -> TypeSummary:
    too_few = None
    if len(hosts) < ENOUGH_HOSTS:
        too_few = f"too few to name outliers: {len(hosts)} of this type, {ENOUGH_HOSTS} are needed"
    return TypeSummary(
        gpu_type=name,
        items_per_s_per_device=_spread(hosts),
        relative_to_fastest=_middle(hosts) / fastest,
        energy_j_per_item=_energy(hosts)[0],
        cost_per_million_items=_cost(hosts)[0],
        outliers=() if too_few else _outliers(hosts),
        outliers_missing=too_few,
    )


def _outliers(hosts: Sequence[HostMeasured]) -> tuple[Outlier, ...]:
    scores = modified_z_scores([host.items_per_s_per_device for host in hosts])
    middle = _middle(hosts)
    found = [
        Outlier(
            host=host.host,
            gpu_type=host.gpu_type,
            items_per_s_per_device=host.items_per_s_per_device,
            relative_difference=host.items_per_s_per_device / middle - 1,
            modified_z=float(score),
        )
        for host, score in zip(hosts, scores, strict=True)
        if abs(score) > Z_LIMIT
    ]
    return tuple(sorted(found, key=lambda outlier: -abs(outlier.modified_z)))


def _energy(hosts: Sequence[HostMeasured]) -> tuple[float | None, str | None]:
    known = [host.energy_j for host in hosts if host.energy_j is not None]
    if not hosts or len(known) < len(hosts):
        return None, f"energy is known of {len(known)} of {len(hosts)} hosts"
    return sum(known) / sum(host.items_total for host in hosts), None


def _cost(hosts: Sequence[HostMeasured]) -> tuple[float | None, str | None]:
    known = [host.price_per_hour for host in hosts if host.price_per_hour is not None]
    if not hosts or len(known) < len(hosts):
        return None, f"price_per_hour is given for {len(known)} of {len(hosts)} hosts"
    return cost_per_million(sum(known), sum(host.items_per_s_total for host in hosts)), None


@dataclass(frozen=True, slots=True, kw_only=True)
class HostTests:
    """What one host gave back of a suite of tests, in S0's form; or where it failed, and why."""

    host: str
    document: Mapping[str, Any] | None
    """S0's JSON: its `results` are tests with test_type, success and throughput_samples_per_second. Of a
    host that failed, those that ended before."""
    stage: str | None = None
    error: str | None = None
    """Why the suite did not come to its end there; None where it did."""

    @property
    def is_whole(self) -> bool:
        """Say whether the host went through the whole suite."""
        return self.document is not None and self.error is None


def aggregate(hosts: Sequence[HostTests], *, timestamp: str) -> dict[str, Any]:
    """Put the tests of many hosts together, in the form of lambdactl's aggregate.

    A host is successful when it went through the suite. One that failed on the way keeps what it measured:
    its tests count in `performance_summary`, and stand beside its error. Each test gains `source_hostname`.
    Throughput is of tests that succeeded and have one; null where there is none.
    """
    documents = [None if host.document is None else _with_source(host) for host in hosts]
    tests = [test for document in documents if document is not None for test in document["results"]]
    told = list(zip(hosts, documents, strict=True))
    failed = [
        {"hostname": host.host, "stage": host.stage, "error": host.error, **(document or {})}
        for host, document in told
        if not host.is_whole
    ]
    return {
        "summary": {
            "total_instances": len(hosts),
            "successful_instances": len(hosts) - len(failed),
            "failed_instances": len(failed),
            "success_rate": (len(hosts) - len(failed)) / len(hosts) if hosts else None,
            "timestamp": timestamp,
        },
        "performance_summary": _performance(tests),
        "successful_results": [
            {"hostname": host.host, **(document or {})} for host, document in told if host.is_whole
        ],
        "failed_results": failed,
    }


def _with_source(host: HostTests) -> dict[str, Any]:
    document = host.document or {}
    tests = [{**test, "source_hostname": host.host} for test in document.get("results", ())]
    return {**document, "results": tests}


def _performance(tests: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    kinds = {
        kind: [test for test in tests if test["test_type"] == kind] for kind in ("training", "inference")
    }
    return {
        "total_tests": len(tests),
        **{f"{kind}_tests": len(of_kind) for kind, of_kind in kinds.items()},
        **{kind: _throughputs(of_kind) for kind, of_kind in kinds.items()},
    }


def _throughputs(tests: Sequence[Mapping[str, Any]]) -> dict[str, float | None]:
    rates = [
        test["throughput_samples_per_second"]
        for test in tests
        if test["success"] and test["throughput_samples_per_second"] is not None
    ]
    return {
        "avg_throughput": sum(rates) / len(rates) if rates else None,
        "max_throughput": max(rates, default=None),
        "min_throughput": min(rates, default=None),
    }

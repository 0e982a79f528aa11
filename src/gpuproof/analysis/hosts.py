"""What do many hosts say together, of one recipe or of several tests? Middle, spread, and who stands apart.

In: what each host measured of the same work. Out: per type and for the whole fleet the median with its
MAD (robust, since one broken host is what one looks for), outliers by the modified Z-score within a type,
energy and cost of an item. Rates are compared per device, so that a host with more of them is no outlier.
Tests differ in what they count by far, so that nothing is added up across them: ratios are taken test by
test, and their geometric mean says the same whichever side is the reference
(Fleming & Wallace 1986, https://doi.org/10.1145/5666.5673).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from statistics import geometric_mean, median

from gpuproof.statistics.dispersion import Z_LIMIT, median_absolute_deviation, modified_z_scores

ENOUGH_HOSTS = 5
"""Of one type, to call any an outlier: with fewer the MAD hangs on one or two of them."""
MILLION = 1_000_000
SECONDS_PER_HOUR = 3600
NO_COMMON_TEST = "no test was measured on every type"


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
class FleetTest:
    """One test on all hosts."""

    name: str
    summary: FleetSummary


@dataclass(frozen=True, slots=True, kw_only=True)
class HostSpeed:
    """A host against the others of its type."""

    host: str
    relative_to_type: float
    """Geometric mean over tests of its rate over the median of its type, by device."""
    num_tests: int
    """That the mean is over: those which another host of the type measured, too."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TypeSpeed:
    """A type of GPU against the others."""

    gpu_type: str
    num_hosts: int
    relative_to_fastest: float | None
    """Geometric mean over tests of its median over that of the fastest type, by device."""
    num_tests: int
    """That the mean is over: those which every type measured."""


@dataclass(frozen=True, slots=True, kw_only=True)
class HostApart:
    """A host that stands apart from those of its type, and in which tests."""

    host: str
    gpu_type: str
    tests: tuple[tuple[str, Outlier], ...]
    """Name and figures, the farthest first."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SuiteSummary:
    """A whole suite on a whole fleet."""

    num_hosts: int
    num_measured: int
    """Hosts with a figure for one test at least."""
    tests: tuple[FleetTest, ...]
    hosts: tuple[HostSpeed, ...]
    """Those that have others of their type to be compared with."""
    types: tuple[TypeSpeed, ...]
    """The fastest first."""
    types_missing: str | None
    """Why types are not compared; None where they are, and where there is but one."""
    apart: tuple[HostApart, ...]
    """Those that stand apart in most tests first."""


def summarize_suite(tests: Mapping[str, Sequence[HostMeasured]], *, num_hosts: int) -> SuiteSummary:
    """Put together what hosts measured of each test; `num_hosts` were asked."""
    found = [
        FleetTest(name=name, summary=summarize_fleet(measured, num_hosts=num_hosts))
        for name, measured in tests.items()
    ]
    types, types_missing = _types(tests, found)
    return SuiteSummary(
        num_hosts=num_hosts,
        num_measured=len({host.host for measured in tests.values() for host in measured}),
        tests=tuple(found),
        hosts=tuple(_speeds(tests, found)),
        types=types,
        types_missing=types_missing,
        apart=tuple(_apart(found)),
    )


def _speeds(tests: Mapping[str, Sequence[HostMeasured]], found: Sequence[FleetTest]) -> Iterable[HostSpeed]:
    ratios: dict[str, list[float]] = {}
    for test in found:
        kinds = {kind.gpu_type: kind.items_per_s_per_device for kind in test.summary.types}
        for host in tests[test.name]:
            spread = kinds[host.gpu_type]
            if spread.num_hosts > 1:
                ratios.setdefault(host.host, []).append(host.items_per_s_per_device / spread.median)
    for name, of_host in ratios.items():
        yield HostSpeed(host=name, relative_to_type=geometric_mean(of_host), num_tests=len(of_host))


def _types(
    tests: Mapping[str, Sequence[HostMeasured]], found: Sequence[FleetTest]
) -> tuple[tuple[TypeSpeed, ...], str | None]:
    hosts: dict[str, set[str]] = {}
    for measured in tests.values():
        for host in measured:
            hosts.setdefault(host.gpu_type, set()).add(host.host)
    by_test = [{kind.gpu_type: kind for kind in test.summary.types} for test in found]
    common = [kinds for kinds in by_test if set(kinds) == set(hosts)]
    if not hosts or not common:
        speeds = [
            TypeSpeed(gpu_type=name, num_hosts=len(of_type), relative_to_fastest=None, num_tests=0)
            for name, of_type in hosts.items()
        ]
        return tuple(speeds), NO_COMMON_TEST if len(hosts) > 1 else None
    middle = {name: geometric_mean(_median(kinds[name]) for kinds in common) for name in hosts}
    fastest = max(middle.values())
    speeds = [
        TypeSpeed(
            gpu_type=name,
            num_hosts=len(of_type),
            relative_to_fastest=middle[name] / fastest,
            num_tests=len(common),
        )
        for name, of_type in hosts.items()
    ]
    return tuple(sorted(speeds, key=lambda speed: -middle[speed.gpu_type])), None


def _median(kind: TypeSummary) -> float:
    return kind.items_per_s_per_device.median


def _apart(found: Sequence[FleetTest]) -> list[HostApart]:
    by_host: dict[tuple[str, str], list[tuple[str, Outlier]]] = {}
    for test in found:
        for outlier in test.summary.outliers:
            by_host.setdefault((outlier.host, outlier.gpu_type), []).append((test.name, outlier))
    apart = [
        HostApart(
            host=host,
            gpu_type=gpu_type,
            tests=tuple(sorted(tests, key=lambda test: -abs(test[1].modified_z))),
        )
        for (host, gpu_type), tests in by_host.items()
    ]
    return sorted(apart, key=lambda host: -len(host.tests))

"""Evaluate many hosts on several tests: on each test separately, and on the mean over all tests.

Tests count very different things, so their results are not added up. Instead, ratios are computed per test,
and their geometric mean does not depend on which side is the reference (Fleming & Wallace 1986,
https://doi.org/10.1145/5666.5673). Hosts are evaluated in every test and by that mean.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import geometric_mean

from gpuproof.statistics.outliers import (
    ERROR_RATE,
    WHOLE_SHARE,
    HostRate,
    HostsJudged,
    OutlyingHost,
    judge_hosts,
)
from gpuproof.suites.by_host.hosts import FleetSummary, HostMeasured, Outlier, summarize_fleet

NO_COMMON_TEST = "no test was measured on every GPU type"


@dataclass(frozen=True, slots=True, kw_only=True)
class FleetTest:
    """The results of one test on all hosts."""

    name: str
    summary: FleetSummary


@dataclass(frozen=True, slots=True, kw_only=True)
class HostSpeed:
    """A host compared with the others of its type."""

    host: str
    relative_to_type: float
    """Geometric mean, over tests, of the host's rate per device divided by the median of its type."""
    num_tests: int
    """Number of tests in the mean: those that at least one other host of the type also measured."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TypeSpeed:
    """A GPU type compared with the other types."""

    gpu_type: str
    num_hosts: int
    relative_to_fastest: float | None
    """Geometric mean, over tests, of the type's median rate per device relative to the fastest type."""
    num_tests: int
    """Number of tests in the mean: those that every type measured."""


@dataclass(frozen=True, slots=True, kw_only=True)
class OutlierOfTests:
    """An outlier among the hosts of its type, with the tests in which it is one."""

    host: str
    gpu_type: str
    tests: tuple[tuple[str, Outlier], ...]
    """Test names and results, starting with the largest deviation."""
    overall: OutlyingHost | None = None
    """Result for the mean over tests; None if the host is not an outlier there."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TypeOverall:
    """The hosts of one type, evaluated by their mean over tests."""

    gpu_type: str
    num_tests: int
    """Number of tests that most hosts of the type measured."""
    judged: HostsJudged
    incomplete: tuple[str, ...]
    """Hosts without a result for one of these tests; they are only evaluated test by test."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SuiteSummary:
    """All tests of a suite on all hosts of a fleet."""

    num_hosts: int
    num_measured: int
    """Number of hosts with a result for at least one test."""
    tests: tuple[FleetTest, ...]
    hosts: tuple[HostSpeed, ...]
    """Hosts that have the same type as at least one other host, so that they can be compared."""
    types: tuple[TypeSpeed, ...]
    """GPU types, starting with the fastest."""
    types_missing: str | None
    """Reason why types are not compared; None if they are, or if there is only one."""
    apart: tuple[OutlierOfTests, ...]
    """Outlier hosts, starting with those that are outliers in the most tests."""
    overall: tuple[TypeOverall, ...] = ()
    """One entry per type; empty if there is only one test."""


def summarize_suite(
    tests: Mapping[str, Sequence[HostMeasured]], *, num_hosts: int, whole_share: float = WHOLE_SHARE
) -> SuiteSummary:
    """Summarise what hosts measured in each test; `num_hosts` is the number of hosts requested.

    `whole_share` is the portion of the error rate allotted to the mean over tests; with 0, the mean is not
    evaluated.
    """
    fleet_tests = [
        FleetTest(
            name=name,
            summary=summarize_fleet(
                measured, num_hosts=num_hosts, error_rate=_rate_of_a_test(tests, whole_share)
            ),
        )
        for name, measured in tests.items()
    ]
    types, types_missing = _types(tests, fleet_tests)
    ratios = _ratios(tests, fleet_tests)
    overall = _overall(tests, ratios, whole_share) if len(tests) > 1 and whole_share else ()
    return SuiteSummary(
        num_hosts=num_hosts,
        num_measured=len({host.host for measured in tests.values() for host in measured}),
        tests=tuple(fleet_tests),
        hosts=tuple(
            HostSpeed(host=name, relative_to_type=geometric_mean(of_host.values()), num_tests=len(of_host))
            for name, of_host in ratios.items()
        ),
        types=types,
        types_missing=types_missing,
        apart=tuple(_outliers(fleet_tests, overall)),
        overall=overall,
    )


def _rate_of_a_test(tests: Mapping[str, Sequence[HostMeasured]], whole_share: float) -> float | None:
    """Return the error rate for evaluating one type in one test; None if there is only one test.

    This is Bonferroni's correction. Tests of one host are correlated to an unknown degree, but the correction
    is valid regardless of the correlation.
    """
    questions = sum(len({host.gpu_type for host in measured}) for measured in tests.values())
    return ERROR_RATE * (1 - whole_share) / max(1, questions) if len(tests) > 1 else None


def _ratios(
    tests: Mapping[str, Sequence[HostMeasured]], fleet_tests: Sequence[FleetTest]
) -> dict[str, dict[str, float]]:
    """Return rates divided by their type's median, by host and test, if other hosts are available."""
    ratios: dict[str, dict[str, float]] = {}
    for test in fleet_tests:
        kinds = {kind.gpu_type: kind.items_per_s_per_device for kind in test.summary.types}
        for host in tests[test.name]:
            spread = kinds[host.gpu_type]
            if spread.num_hosts > 1:
                ratio = host.items_per_s_per_device / spread.median
                ratios.setdefault(host.host, {})[test.name] = ratio
    return ratios


def _overall(
    tests: Mapping[str, Sequence[HostMeasured]],
    ratios: Mapping[str, Mapping[str, float]],
    whole_share: float,
) -> tuple[TypeOverall, ...]:
    """Evaluate hosts of each type by their mean over the tests that most of them measured."""
    reaches: dict[str, dict[str, dict[str, float | None]]] = {}
    for name, measured in tests.items():
        for host in measured:
            reaches.setdefault(host.gpu_type, {}).setdefault(host.host, {})[name] = host.relative_reach
    return tuple(
        _overall_of_type(gpu_type, of_type, ratios, error_rate=ERROR_RATE * whole_share / len(reaches))
        for gpu_type, of_type in reaches.items()
    )


def _overall_of_type(
    gpu_type: str,
    reaches: Mapping[str, Mapping[str, float | None]],
    ratios: Mapping[str, Mapping[str, float]],
    *,
    error_rate: float,
) -> TypeOverall:
    counts = Counter(name for of_host in reaches.values() for name in of_host)
    usual = [name for name, count in counts.items() if 2 * count > len(reaches)]
    whole = {host: of_host for host, of_host in reaches.items() if usual and set(usual) <= set(of_host)}
    rates = [
        HostRate(
            host=host,
            rate=geometric_mean(ratios[host][name] for name in usual),
            reach=_mean_reach([of_host[name] for name in usual]),
        )
        for host, of_host in whole.items()
        if set(usual) <= ratios.get(host, {}).keys()
    ]
    return TypeOverall(
        gpu_type=gpu_type,
        num_tests=len(usual),
        judged=judge_hosts(rates, error_rate=error_rate),
        incomplete=tuple(host for host in reaches if host not in whole),
    )


def _mean_reach(reaches: Sequence[float | None]) -> float | None:
    """Return the reach of a mean of ratios, at most the mean of their reaches; None if any is None."""
    numbers = [reach for reach in reaches if reach is not None]
    return sum(numbers) / len(numbers) if len(numbers) == len(reaches) else None


def _types(
    tests: Mapping[str, Sequence[HostMeasured]], fleet_tests: Sequence[FleetTest]
) -> tuple[tuple[TypeSpeed, ...], str | None]:
    hosts: dict[str, set[str]] = {}
    for measured in tests.values():
        for host in measured:
            hosts.setdefault(host.gpu_type, set()).add(host.host)
    by_test = [{kind.gpu_type: kind for kind in test.summary.types} for test in fleet_tests]
    common = [kinds for kinds in by_test if set(kinds) == set(hosts)]
    if not hosts or not common:
        speeds = [
            TypeSpeed(gpu_type=name, num_hosts=len(of_type), relative_to_fastest=None, num_tests=0)
            for name, of_type in hosts.items()
        ]
        return tuple(speeds), NO_COMMON_TEST if len(hosts) > 1 else None
    middle = {
        name: geometric_mean(kinds[name].items_per_s_per_device.median for kinds in common) for name in hosts
    }
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


def _outliers(fleet_tests: Sequence[FleetTest], overall: Sequence[TypeOverall]) -> list[OutlierOfTests]:
    in_mean = {(apart.host, kind.gpu_type): apart for kind in overall for apart in kind.judged.apart}
    by_host: dict[tuple[str, str], list[tuple[str, Outlier]]] = {key: [] for key in in_mean}
    for test in fleet_tests:
        for outlier in test.summary.outliers:
            by_host.setdefault((outlier.host, outlier.gpu_type), []).append((test.name, outlier))
    apart = [
        OutlierOfTests(
            host=host,
            gpu_type=gpu_type,
            tests=tuple(sorted(tests, key=lambda test: -abs(test[1].relative_difference))),
            overall=in_mean.get((host, gpu_type)),
        )
        for (host, gpu_type), tests in by_host.items()
    ]
    return sorted(apart, key=lambda host: (-len(host.tests), host.overall is None))

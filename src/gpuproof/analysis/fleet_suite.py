"""What do many hosts say together of a suite of tests, or of the points of a sweep?

In: what each host measured of each test. Out: each test as a fleet's figures; for a host and for a type of
GPU one ratio over all tests, and the hosts that stand apart with the tests in which they do. Tests differ in
what they count by far, so that nothing is added up across them: ratios are taken test by test, and their
geometric mean says the same whichever side is the reference
(Fleming & Wallace 1986, https://doi.org/10.1145/5666.5673).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from statistics import geometric_mean

from gpuproof.analysis.fleet import FleetSummary, HostMeasured, Outlier, TypeSummary, summarize_fleet

NO_COMMON_TEST = "no test was measured on every type"


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

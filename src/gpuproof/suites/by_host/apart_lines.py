"""Who stands apart, in words: each host, and by which limit hosts of a type were judged."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from math import inf

from gpuproof.base import units
from gpuproof.statistics.outliers import UNKNOWN_REACH, Apart, Slower, Standard
from gpuproof.suites.by_host.hosts import FleetSummary, Outlier, TypeSummary
from gpuproof.suites.by_host.hosts_suite import HostApart, TypeOverall
from gpuproof.suites.by_host.report import HostsReport, What

NOT_WHICH = "(two hosts cannot show which of them is at fault)"
TOLD_REACH = 0.1
"""By which launches of one host leave a figure open, from which on the page says what would not be seen."""
TOLD_TESTS = 3
"""In which a host stands apart, by name; of the others the number is told."""


def apart_lines(report: HostsReport) -> Iterator[str]:
    """Yield who stands apart, and by which limits hosts were judged."""
    if report.what != "launches":
        yield from _apart_of_points(report)
    elif report.summary.num_measured:
        yield from _apart_of_recipe(report.summary.tests[0].summary, report.item)


def _apart_of_recipe(summary: FleetSummary, item: str) -> Iterator[str]:
    """Yield a line a host that stands apart, and one a type with its limit."""
    for outlier in summary.outliers:
        rate = units.rate(outlier.items_per_s_per_device, item)
        yield f"{outlier.host}: {rate} a device, {_than(outlier, outlier.gpu_type)}{_score(outlier)}"
    for kind in summary.types:
        num_hosts, num_apart = kind.items_per_s_per_device.num_hosts, len(kind.outliers)
        if kind.standard is None:
            yield f"{kind.gpu_type}: no outlier can be named: {kind.outliers_missing}"
        elif num_hosts == 2:
            yield f"{kind.gpu_type}: {_pair(kind.slower)}; the limit is {_limits([kind.standard])}"
        else:
            limit = _limits([kind.standard])
            yield f"{kind.gpu_type}: {num_apart or 'none'} of {num_hosts} hosts; the limit is {limit}"


def _apart_of_points(report: HostsReport) -> Iterator[str]:
    """Yield a line a host that stands apart, and what was looked at of each type."""
    for host in report.summary.apart:
        yield _host_apart(host, report)
    judged = [test.name for test in report.summary.tests]
    if len(judged) < len(report.columns):
        others = (
            "the other figures are counts, times of too few launches (run.repeats of 3 compares them), or "
            "hold where each host's search ended"
        )
        yield f"judged by {', '.join(judged) or 'none'}: {others}"
    for name, reach in report.reaches.items():
        if reach > TOLD_REACH:
            slower = "no host" if reach == inf else f"only a host over {1 + reach:.2g} times as slow"
            yield f"{name}: the intervals leave so much open that {slower} would be named"
    overall = {kind.gpu_type: kind for kind in report.summary.overall}
    for speed in report.summary.types:
        kinds = [
            (test.name, kind)
            for test in report.summary.tests
            for kind in test.summary.types
            if kind.gpu_type == speed.gpu_type
        ]
        num_apart = sum(host.gpu_type == speed.gpu_type for host in report.summary.apart)
        yield from _type_lines(speed.num_hosts, num_apart, kinds, overall.get(speed.gpu_type), report.what)


def _type_lines(
    num_hosts: int,
    num_apart: int,
    kinds: Sequence[tuple[str, TypeSummary]],
    overall: TypeOverall | None,
    what: What,
) -> Iterator[str]:
    gpu_type = kinds[0][1].gpu_type
    standards = [kind.standard for _, kind in kinds if kind.standard is not None]
    if not standards:
        yield f"{gpu_type}: no outlier can be named: {kinds[0][1].outliers_missing}"
        return
    limits = f"{_limits(standards)} in one {what.removesuffix('s')}"
    if overall is not None and overall.judged.standard is not None:
        limits = f"{_limits([overall.judged.standard])} in the mean over {overall.num_tests} {what}, {limits}"
    if num_hosts == 2:
        slower = [(name, kind.slower) for name, kind in kinds if kind.slower is not None]
        in_mean = overall.judged.slower if overall is not None else None
        yield f"{gpu_type}: {_pair_of_points(in_mean, slower, what)}; the limits are {limits}"
    else:
        yield f"{gpu_type}: {num_apart or 'none'} of {num_hosts} hosts; the limits are {limits}"
        if overall is not None and overall.judged.slower is not None:
            yield f"{gpu_type}: {_pair(overall.judged.slower)} in the mean over {what}"
    if overall is not None and overall.incomplete:
        names = _some(overall.incomplete)
        yield f"{gpu_type}: {names} did not measure all {what} that most hosts did: not judged by the mean"


def _host_apart(apart: HostApart, report: HostsReport) -> str:
    parts = []
    if apart.overall is not None:
        told = _than(apart.overall, apart.gpu_type) + _score(apart.overall)
        parts.append(f"{told}, in the mean over {report.what}")
    if apart.tests:
        told = _some([f"{name} {_difference(o)}{_score(o)}" for name, o in apart.tests])
        parts.append(f"outlier in {len(apart.tests)} of {len(report.summary.tests)} {report.what}: {told}")
    return f"{apart.host}: {'; '.join(parts)}"


def _than(apart: Apart | Outlier, gpu_type: str) -> str:
    other = f"the other hosts with {gpu_type}" if apart.modified_z is None else f"the median of {gpu_type}"
    return f"{_difference(apart)} than {other}"


def _difference(apart: Apart | Outlier) -> str:
    side = "faster" if apart.relative_difference > 0 else "slower"
    return f"{units.share(abs(apart.relative_difference))} {side}"


def _score(apart: Apart | Outlier) -> str:
    return "" if apart.modified_z is None else f" (modified Z {apart.modified_z:.1f})"


def _pair(slower: Slower | None) -> str:
    if slower is None:
        return "no difference shown between 2 hosts"
    told = f"{slower.host} is {units.share(slower.relative_difference)} slower than {slower.than}"
    return f"{told} {NOT_WHICH}"


def _pair_of_points(
    in_mean: Slower | None,
    slower: Sequence[tuple[str, Slower]],
    what: What,
) -> str:
    told = _pair(in_mean)
    if not slower:
        return told
    tests = _some([f"{name} {s.host} {units.share(s.relative_difference)} slower" for name, s in slower])
    if what == "figures":  # which have no mean
        return f"in {len(slower)} of the figures: {tests} {NOT_WHICH}"
    return f"{told} in the mean over {what}; in {len(slower)}: {tests}"


def _limits(standards: Sequence[Standard]) -> str:
    """Tell the limits of questions of one kind: they differ where not all hosts measured each test."""
    parts = []
    by_spread = [s for s in standards if s.basis == "spread"]
    if by_spread:
        limits = [s.z_limit for s in by_spread if s.z_limit is not None]
        parts.append(f"modified Z {_range(limits)} and {units.share(by_spread[0].least_difference)}")
    by_launches = [s for s in standards if s.basis == "launches"]
    if by_launches:
        least = [units.share(x) for x in sorted(s.least_difference for s in by_launches)]
        unknown = max(s.num_without_interval for s in by_launches)
        without = f", ±{units.share(UNKNOWN_REACH)} for {unknown} without one" if unknown else ""
        told = least[0] if least[0] == least[-1] else f"{least[0]} to {least[-1]}"
        parts.append(f"{told} and the intervals of their launches{without}")
    return " or ".join(parts)


def _range(limits: Sequence[float]) -> str:
    low, high = f"{min(limits):.1f}", f"{max(limits):.1f}"
    return low if low == high else f"{low} to {high}"


def _some(names: Sequence[str]) -> str:
    more = len(names) - TOLD_TESTS
    return ", ".join(names[:TOLD_TESTS]) + (f", and {more} more" if more > 0 else "")

"""Results for several hosts: each host separately, then all together, with outliers and limits."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from math import inf

from gpuproof.base import units
from gpuproof.base.errors import ExitCode, RecordError
from gpuproof.base.groups import grouped
from gpuproof.readings.evidence import Evidence
from gpuproof.records.codec import to_json
from gpuproof.records.result import WHOLE, Doubt, Measure, worst
from gpuproof.statistics.outliers import UNKNOWN_REACH, OutlyingHost, Slower, Standard
from gpuproof.suites.base import Conclusion, Suite
from gpuproof.suites.by_host.exports import exports_of_hosts
from gpuproof.suites.by_host.host import HostConclusion, conclude_host
from gpuproof.suites.by_host.hosts import FleetSummary, Outlier, TypeSummary
from gpuproof.suites.by_host.hosts_suite import OutlierOfTests, SuiteSummary, TypeOverall
from gpuproof.suites.by_host.report import (
    HostsReport,
    HostState,
    SuiteColumn,
    What,
    energy_unit,
    headlines_of_hosts,
    measures_side_by_side,
    report_of,
)
from gpuproof.suites.results import benchmark_result, exit_code_without_lack, shared_conditions
from gpuproof.suites.sections import Common
from gpuproof.verdict.doubts.interference import FAULT
from gpuproof.verdict.doubts.rules import invalid_first

NOT_WHICH = "(two hosts cannot show which of them is at fault)"
TOLD_REACH = 0.1
"""Uncertainty of one host's launches above which the page states what would go undetected."""
TOLD_TESTS = 3
"""Maximum number of tests listed by name in which a host is an outlier; the rest are only counted."""


@dataclass(frozen=True, slots=True, kw_only=True)
class HostsDetail:
    """Data for the multi-host page that is not part of the result."""

    common: Common
    num_headlines: int
    """Number of measures that cover all hosts together, which come first."""
    num_compared: int
    """Number of measures shown side by side, after the measures that cover all hosts."""
    what: What
    columns: tuple[SuiteColumn, ...]
    hosts: tuple[HostState, ...]
    energy_title: str
    cost_title: str
    apart: tuple[str, ...]
    """Lines about hosts that were not checked (with the reason), about outliers, and about the limits that
    hosts are checked against."""
    outlying: tuple[tuple[str, str], ...]
    """Pairs of a host and a point at which it is an outlier."""


def conclude(evidence: Evidence, inner: Suite) -> Conclusion:
    """Return the result for all hosts, and the files."""
    launched = grouped((launch.case.placement.host, launch) for launch in evidence.launches)
    names = [host.get("name") for host in evidence.hosts]
    if len(set(names)) < len(names) or not launched.keys() <= set(names):
        raise RecordError(
            "the hosts are not those of the launches",
            place="run.json: fleet.hosts",
            next_step="Restore the run's run.json, or measure again",
        )
    hosts = [conclude_host(evidence, host, launched.get(host["name"], ()), inner) for host in evidence.hosts]
    currency = str((evidence.description.get("fleet") or {}).get("currency", "USD"))
    report = report_of(hosts, currency=currency)
    together = list(headlines_of_hosts(report))
    compared, others = _measures_by_host(hosts)
    if report.what != "figures":
        compared = list(measures_side_by_side(hosts, report))
    results = [host.conclusion.result for host in hosts]
    num_launches = sum(result.num_launches for result in results)
    num_planned = sum(result.num_planned for result in results)
    doubts = _together((host.name, doubt) for host in hosts for doubt in host.conclusion.result.doubts)
    failures = [failure for host in hosts for failure in host.told_failures()]
    detail = _detail(hosts, report, evidence, num_headlines=len(together), num_compared=len(compared))
    result = benchmark_result(
        inner.name,
        evidence,
        measures=[*together, *compared, *others],
        doubts=doubts,
        failures=failures,
        num_launches=num_launches,
        num_planned=num_planned,
        conditions={**shared_conditions(results), "num_hosts": len(hosts)},
        detail=to_json(detail),
        headline_text=None if together else f"{report.summary.num_measured} of {len(hosts)} hosts",
    )
    causes: set[str] = {failure.cause for failure in failures}
    is_complete = num_launches >= num_planned
    result = replace(result, exit_code=_exit_code(causes, doubts, is_complete, is_empty=not num_launches))
    return Conclusion(result=result, exports=tuple(exports_of_hosts(evidence, hosts, report, result)))


def _detail(
    hosts: Sequence[HostConclusion],
    report: HostsReport,
    evidence: Evidence,
    *,
    num_headlines: int,
    num_compared: int,
) -> HostsDetail:
    return HostsDetail(
        common=_common(hosts, report, evidence),
        num_headlines=num_headlines,
        num_compared=num_compared,
        what=report.what,
        columns=report.columns,
        hosts=report.states,
        energy_title=energy_unit(report.item),
        cost_title=f"{report.currency}/million",
        apart=(*_unjudged(hosts, report), *outlier_lines(report)),
        outlying=tuple((host.host, name) for host in report.summary.apart for name, _ in host.tests),
    )


def _unjudged(hosts: Sequence[HostConclusion], report: HostsReport) -> Iterator[str]:
    """For each measured host without a rate to compare, report the value that it has instead."""
    if report.what != "figures":
        for host in hosts:
            names = [name for name, point in host.points.items() if point.validity == "INVALID"]
            if names:
                at = f" at {_some(names)}" if report.what != "launches" else ""
                yield f"{host.name}: not compared{at}: its results are INVALID"
        return
    for test in report.summary.tests:
        for host in hosts:
            if host.result.num_launches and host.rate(test.name) is None:
                measure = host.headlines.get(test.name)
                value = "none" if measure is None else measure.missing or measure.text
                yield f"{host.name}: not compared by {test.name}, which on that host is {value}"


def _exit_code(causes: set[str], doubts: Sequence[Doubt], is_complete: bool, *, is_empty: bool) -> ExitCode:
    """Return 0 if every host measured everything requested; 5 if no host could start."""
    if not is_empty and causes - {"interrupted"}:
        return ExitCode.FAILED  # only one host or one test failed
    if causes and causes <= {"environment", "disk_full"}:
        return ExitCode.UNFIT_ENVIRONMENT
    validity = None if is_empty else worst(doubts)
    return exit_code_without_lack(causes, validity, is_complete=is_complete)


def _measures_by_host(hosts: Sequence[HostConclusion]) -> tuple[list[Measure], list[Measure]]:
    """Return the measures shown side by side per host (none if hosts share points), and the rest."""
    compared: list[Measure] = []
    others: list[Measure] = []
    for host in hosts:
        headlines = () if host.points else host.headlines.values()
        shown = {id(measure) for measure in headlines}
        compared += (_of_host(host, measure) for measure in headlines)
        others += (_of_host(host, measure) for measure in host.result.measures if id(measure) not in shown)
    return compared, others


def _of_host(host: HostConclusion, measure: Measure) -> Measure:
    return replace(measure, subject=measure.subject.replace(WHOLE, f"host/{host.name}", 1))


def _together(found: Iterable[tuple[str, Doubt]]) -> tuple[Doubt, ...]:
    """Merge a warning shared by several hosts, and list the hosts; `found` pairs hosts and warnings.

    A device fault belongs to a single device, so faults of other devices are reported separately.
    """
    shared: dict[tuple[str, ...], list[tuple[str, Doubt]]] = {}
    for name, doubt in found:
        own = (doubt.reason,) if doubt.code == FAULT else ()
        shared.setdefault((doubt.validity, doubt.code, *own), []).append((name, doubt))
    told = []
    for occurrences in shared.values():
        names = list(dict.fromkeys(name for name, _ in occurrences))
        first = occurrences[0][1]
        others = f" (also {', '.join(names[1:4])}{' …' if len(names) > 4 else ''})" if len(names) > 1 else ""
        told.append(replace(first, reason=f"{names[0]}: {first.reason}{others}"))
    return invalid_first(told)


def _common(hosts: Sequence[HostConclusion], report: HostsReport, evidence: Evidence) -> Common:
    work = next((h.common.work for h in hosts if h.conclusion.result.num_launches), hosts[0].common.work)
    summary = report.summary
    how_many = f"fleet: {summary.num_measured} of {summary.num_hosts} hosts measured"
    torn_on = grouped((x.case.placement.host, note) for x in evidence.launches for note in x.torn)
    notes = [note for host in hosts for note in host.common.notes if note not in torn_on.get(host.name, ())]
    torn = [f"{x.case.placement.host}: {note}" for x in evidence.launches for note in x.torn]
    missing = _missing(summary) if report.what in ("tests", "points") else ()
    return Common(
        title=", ".join([work, how_many, *(kind.gpu_type for kind in summary.types)]),
        work=work,
        not_applied=tuple({x.key: x for host in hosts for x in host.common.not_applied}.values()),
        notes=tuple(dict.fromkeys([*notes, *torn, *missing])),
    )


def _missing(summary: SuiteSummary) -> Iterator[str]:
    """Report, once per kind of result, why results that a fleet normally has are missing."""
    measured: list[tuple[str, FleetSummary]] = [
        (t.name, t.summary) for t in summary.tests if t.summary.num_measured
    ]
    for what, reasons in (
        ("energy", [(name, test.energy_missing) for name, test in measured]),
        ("cost", [(name, test.cost_missing) for name, test in measured]),
    ):
        told = [(name, reason) for name, reason in reasons if reason is not None]
        if told:
            name, reason = told[0]
            more = f" and {len(told) - 1} more" if len(told) > 1 else ""
            yield f"no {what} for {name}{more}: {reason}"
    if summary.types_missing is not None:
        yield f"GPU types are not compared: {summary.types_missing}"


def outlier_lines(report: HostsReport) -> Iterator[str]:
    """Yield the outliers, and the limits that hosts are checked against."""
    if report.what != "launches":
        yield from _outliers_of_points(report)
    elif report.summary.num_measured:
        yield from _outliers_of_recipe(report.summary.tests[0].summary, report.item)


def _outliers_of_recipe(summary: FleetSummary, item: str) -> Iterator[str]:
    """Yield a line per outlier host, and one per GPU type with its limit."""
    for outlier in summary.outliers:
        rate = units.rate(outlier.items_per_s_per_device, item)
        yield f"{outlier.host}: {rate} a device, {_than(outlier, outlier.gpu_type)}{_score(outlier)}"
    for kind in summary.types:
        num_hosts, num_apart = kind.items_per_s_per_device.num_hosts, len(kind.outliers)
        if kind.standard is None:
            yield f"{kind.gpu_type}: no outliers can be identified: {kind.outliers_missing}"
        elif num_hosts == 2:
            yield f"{kind.gpu_type}: {_pair(kind.slower)}; the limit is {_limits([kind.standard])}"
        else:
            limit = _limits([kind.standard])
            yield (
                f"{kind.gpu_type}: outliers: {num_apart or 'none'} of {num_hosts} hosts; the limit is {limit}"
            )


def _outliers_of_points(report: HostsReport) -> Iterator[str]:
    """Yield one line per outlier host, and one on what was examined for each type."""
    for host in report.summary.apart:
        yield _outlier_line(host, report)
    judged = [test.name for test in report.summary.tests]
    if len(judged) < len(report.columns):
        others = (
            "the other results are counts, times from too few launches (set run.repeats to 3 to "
            "compare them), or depend on the point at which each host's search ended"
        )
        yield f"compared by {', '.join(judged) or 'none'}: {others}"
    for name, reach in report.reaches.items():
        if reach > TOLD_REACH:
            slower = "no host" if reach == inf else f"only a host more than {1 + reach:.2g} times as slow"
            yield f"{name}: the intervals are so wide that {slower} would be detected"
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
        yield f"{gpu_type}: no outliers can be identified: {kinds[0][1].outliers_missing}"
        return
    limits = f"one {what.removesuffix('s')} {_limits(standards)}"
    if overall is not None and overall.judged.standard is not None:
        limits = f"mean over {overall.num_tests} {what} {_limits([overall.judged.standard])}; {limits}"
    if num_hosts == 2:
        slower = [(name, kind.slower) for name, kind in kinds if kind.slower is not None]
        in_mean = overall.judged.slower if overall is not None else None
        yield f"{gpu_type}: {_pair_of_points(in_mean, slower, what)}; limits: {limits}"
    else:
        yield f"{gpu_type}: outliers: {num_apart or 'none'} of {num_hosts} hosts; limits: {limits}"
        if overall is not None and overall.judged.slower is not None:
            yield f"{gpu_type}: {_pair(overall.judged.slower)} on average over {what}"
    if overall is not None and overall.incomplete:
        names = _some(overall.incomplete)
        yield (
            f"{gpu_type}: {names} did not complete all {what} that most hosts completed, so "
            "their mean is not compared"
        )


def _outlier_line(apart: OutlierOfTests, report: HostsReport) -> str:
    parts = []
    if apart.overall is not None:
        told = _than(apart.overall, apart.gpu_type) + _score(apart.overall)
        parts.append(f"{told}, on average over {report.what}")
    if apart.tests:
        told = _some([f"{name} {_difference(o)}{_score(o)}" for name, o in apart.tests])
        parts.append(f"outlier in {len(apart.tests)} of {len(report.summary.tests)} {report.what}: {told}")
    return f"{apart.host}: {'; '.join(parts)}"


def _than(apart: OutlyingHost | Outlier, gpu_type: str) -> str:
    other = f"the other hosts with {gpu_type}" if apart.modified_z is None else f"the median of {gpu_type}"
    return f"{_difference(apart)} than {other}"


def _difference(apart: OutlyingHost | Outlier) -> str:
    side = "faster" if apart.relative_difference > 0 else "slower"
    return f"{units.share(abs(apart.relative_difference))} {side}"


def _score(apart: OutlyingHost | Outlier) -> str:
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
    if what == "figures":  # these measures have no common mean
        return f"in {len(slower)} of the results: {tests} {NOT_WHICH}"
    return f"{told} on average over {what}; in {len(slower)}: {tests}"


def _limits(standards: Sequence[Standard]) -> str:
    """Format the limits of similar tests; they differ if not every host measured every test."""
    parts = []
    by_spread = [s for s in standards if s.basis == "spread"]
    if by_spread:
        limits = [s.z_limit for s in by_spread if s.z_limit is not None]
        parts.append(f"modified Z {_range(limits)} and {units.share(by_spread[0].least_difference)}")
    by_launches = [s for s in standards if s.basis == "launches"]
    if by_launches:
        least = [units.share(x) for x in sorted(s.least_difference for s in by_launches)]
        unknown = max(s.num_without_interval for s in by_launches)
        without = f" ({unknown} without: ±{units.share(UNKNOWN_REACH)})" if unknown else ""
        told = least[0] if least[0] == least[-1] else f"{least[0]} to {least[-1]}"
        parts.append(f"{told} plus launch intervals{without}")
    return " or ".join(parts)


def _range(limits: Sequence[float]) -> str:
    low, high = f"{min(limits):.1f}", f"{max(limits):.1f}"
    return low if low == high else f"{low} to {high}"


def _some(names: Sequence[str]) -> str:
    more = len(names) - TOLD_TESTS
    return ", ".join(names[:TOLD_TESTS]) + (f", and {more} more" if more > 0 else "")

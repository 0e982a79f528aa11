"""What several hosts come to: each by itself, then all together."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace

from gpuproof.base.errors import ExitCode
from gpuproof.base.groups import grouped
from gpuproof.readings.evidence import Evidence
from gpuproof.records.codec import to_json
from gpuproof.records.result import WHOLE, Doubt, Measure, worst
from gpuproof.suites.base import Conclusion, Suite
from gpuproof.suites.by_host.apart_lines import apart_lines
from gpuproof.suites.by_host.exports import exports_of_hosts
from gpuproof.suites.by_host.host import HostConclusion, conclude_host
from gpuproof.suites.by_host.hosts import FleetSummary
from gpuproof.suites.by_host.hosts_suite import SuiteSummary
from gpuproof.suites.by_host.measures import energy_unit, headlines_of_hosts, measures_side_by_side
from gpuproof.suites.by_host.report import HostsReport, HostState, SuiteColumn, What, report_of
from gpuproof.suites.results import benchmark_result, exit_code_without_lack, shared_conditions
from gpuproof.suites.sections import Common
from gpuproof.verdict.doubts.neighbours import FAULT
from gpuproof.verdict.doubts.rules import invalid_first


@dataclass(frozen=True, slots=True, kw_only=True)
class HostsDetail:
    """What the page of several hosts needs beyond the result."""

    common: Common
    num_headlines: int
    """Of the measures, those of all hosts together: they come first."""
    num_compared: int
    """Of the measures after them, those that stand side by side."""
    what: What
    columns: tuple[SuiteColumn, ...]
    hosts: tuple[HostState, ...]
    energy_title: str
    cost_title: str
    apart: tuple[str, ...]
    """Who stands apart, and by which limits hosts were judged; first who was not judged, and why."""
    outlying: tuple[tuple[str, str], ...]
    """Host and point in which it stands apart."""


def conclude(evidence: Evidence, inner: Suite) -> Conclusion:
    """Return the result of all hosts and their files."""
    launched = grouped((launch.case.placement.host, launch) for launch in evidence.launches)
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
        apart=(*_unjudged(hosts, report), *apart_lines(report)),
        outlying=tuple((host.host, name) for host in report.summary.apart for name, _ in host.tests),
    )


def _unjudged(hosts: Sequence[HostConclusion], report: HostsReport) -> Iterator[str]:
    """Say of each host that measured, and has no rate by which others are judged, what it has instead."""
    if report.what != "figures":
        return
    for test in report.summary.tests:
        for host in hosts:
            if host.result.num_launches and host.rate(test.name) is None:
                measure = host.headlines.get(test.name)
                value = "none" if measure is None else measure.missing or measure.text
                yield f"{host.name}: not compared by {test.name}, which is {value} there"


def _exit_code(causes: set[str], doubts: Sequence[Doubt], is_complete: bool, *, is_empty: bool) -> ExitCode:
    """Return 0 where every host measured all that it was asked to; 5 where none could begin."""
    if not is_empty and causes - {"interrupted"}:
        return ExitCode.FAILED  # what one host or test lacked, others had
    if causes and causes <= {"environment", "disk_full"}:
        return ExitCode.UNFIT_ENVIRONMENT
    validity = None if is_empty else worst(doubts)
    return exit_code_without_lack(causes, validity, is_complete=is_complete)


def _measures_by_host(hosts: Sequence[HostConclusion]) -> tuple[list[Measure], list[Measure]]:
    """Return the measures that stand side by side by host, none where hosts share points, and the others."""
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
    """Tell a doubt that several hosts share once, with the hosts; `found` has the host of each.

    A device's fault is the device's own: another one is told by itself.
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
    """Say once why figures are not there that a fleet is asked for."""
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
            yield f"no {what} of {name}{more}: {reason}"
    if summary.types_missing is not None:
        yield f"types of GPU are not compared: {summary.types_missing}"

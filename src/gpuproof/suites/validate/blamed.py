"""Blame outcomes: causes of stopped launches, of slow or corrupt collectives, and open questions."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import replace

from gpuproof.base import units
from gpuproof.readings.evidence import Evidence
from gpuproof.records.collected import CaseRecords
from gpuproof.records.outcome import Actor, Judged, Outcome, pass_or_fail, skipped
from gpuproof.records.result import WHOLE, Measure
from gpuproof.records.run import Start
from gpuproof.suites.validate.measured import StageResult, conclude_case
from gpuproof.suites.validate.placing import StageCase, device_subject
from gpuproof.suites.validate.plan import FollowedUp, StageOrder
from gpuproof.suites.validate.stages import Recipes
from gpuproof.suites.validate.suspicion import MIN_PEERS
from gpuproof.verdict.blame.findings import Blamed, Findings, blamed, blamed_inside
from gpuproof.verdict.blame.hang import explain_hang

SOURCE = "tests of parts of it, see docs/guides/blame.md"
ACTORS: Mapping[str, Actor] = {"gpu": "vendor"}
"""Who should act on blamed items, by kind; an administrator for all other kinds."""
BLAME = "blame_search"
"""Label of the search that a test result belongs to."""
Names = Mapping[tuple[str, str], str]
"""The subject of each device, by host and by the index used by ranks."""


def blame_outcomes(order: StageOrder, launches: Sequence[CaseRecords]) -> Iterator[Judged]:
    """Yield outcomes for hosts that others waited for, blamed parts, and undecided searches."""
    yield from _stopped_hosts(order, launches)
    stage = next((stage for stage in order.stages if stage.name == "collective"), None)
    followed, names = order.followed(), device_names(launches)
    if stage is None or order.options.blame == "never":
        return
    for suspect in followed:
        has_time = all(map(order.has_time_for, suspect.searches))
        for outcome, is_required in _outcomes(suspect, names, has_time=has_time):
            name = f"who slows {suspect.suspicion.case.case_id}"
            yield Judged(name=name, outcome=outcome, is_required=is_required and stage.is_required)
    suspected = {suspect.suspicion.case.case_id for suspect in followed}
    measured = {case_id for case_id, _ in order.seen}
    for case in stage.cases:
        if case.is_over_all and case.case_id in measured - suspected:
            yield Judged(name=f"who slows {case.case_id}", outcome=_not_searched(), is_required=False)


def blame_measures(order: StageOrder) -> Iterator[Measure]:
    """Yield each test's result in a search; tests are evaluated together, so none has its own rule."""
    for suspect in order.followed():
        for search in suspect.searches:
            for number, test in enumerate(search.search.findings().tests):
                members = (" > " if test.group.one_way else " + ").join(test.group.members)
                level = None if test.level is None else units.bandwidth(test.level)
                yield Measure(
                    name=f"test {number + 1} of {search.name}",
                    value=test.value,
                    unit="B/s",
                    text=units.MISSING if test.value is None else units.bandwidth(test.value),
                    detail="" if level is None else f"good groups of this size reach {level}",
                    labels={BLAME: search.name, "round": test.round, "members": members},
                    missing="it produced no result" if test.value is None else None,
                )


def _stopped_hosts(order: StageOrder, launches: Sequence[CaseRecords]) -> Iterator[Judged]:
    """Check for hosts with ranks that stopped while others waited; skip truncated launch records."""
    stages = {case.case_id: stage for stage in order.stages for case in stage.cases}
    for launch in launches:
        stage, hang = stages.get(launch.case.case_id), explain_hang(launch)
        if stage is None or hang is None or launch.torn:
            continue
        for host in hang.stopped_hosts:
            outcome = pass_or_fail(
                f"host/{host}",
                False,
                hang.text,
                expected="every rank reaches each operation that the others have reached",
                source="the last records of the ranks, and which ranks left none",
                next_step=f"On {host}, look for stopped processes and check dmesg; also check the "
                "network path to it: gpuproof doctor --multi-node",
                records=(f"{launch.case.case_id}/{launch.case.replicate}",),
            )
            name = f"who stops {launch.case.case_id}"
            yield Judged(name=name, outcome=outcome, is_required=stage.is_required)


def _outcomes(followed: FollowedUp, names: Names, *, has_time: bool) -> Iterator[tuple[Outcome, bool]]:
    """Yield the outcomes of one suspicion, and whether each may decide the verdict."""
    suspicion, findings = followed.suspicion, followed.search.search.findings()
    is_slow = suspicion.reason.why is not None
    accused = tuple(_accusations(followed))
    for one in accused:
        yield _accusation(one, followed, names), True
    time = () if has_time else ("--time-budget leaves no room for more tests",)
    why = _reason_open(findings)
    if why:
        yield _undecided(suspicion.reason.why, [*why, *time], _subject_of(followed)), is_slow
    elif not accused:
        yield _no_culprit(followed, findings), is_slow
    if findings.links_tried.num_not_tried and findings.tests and followed.search.part == "host":
        yield _links(findings), False
    # the host is already known to be at fault, and is evaluated separately
    for (
        host,
        search,
    ) in followed.inside.items():
        if inside := _reason_open(search.search.findings()):
            yield _undecided(suspicion.reason.why, [*inside, *time], f"host/{host}"), False


def _reason_open(findings: Findings) -> list[str]:
    return [f"{', '.join(group.members)}: {group.why}" for group in findings.undecided]


def _accusations(followed: FollowedUp) -> Iterator[Blamed]:
    findings = followed.search.search.findings()
    if followed.search.part == "host":
        inside = {host: search.search.findings() for host, search in followed.inside.items()}
        yield from blamed(findings, inside)
    elif findings.accused or findings.links:
        case = followed.suspicion.case
        yield from blamed_inside(case.places[0].name, f"{case.case_id}: {_reason(followed)}", findings)


def _reason(followed: FollowedUp) -> str:
    return followed.suspicion.reason.why or "no problem was seen overall, and parts were compared"


def _accusation(blame: Blamed, followed: FollowedUp, names: Names) -> Outcome:
    why = f" ({_reason(followed)})" if followed.search.part == "host" else ""
    return pass_or_fail(
        _subject(blame.subject, followed, names),
        False,
        f"{blame.evidence}{why}",
        expected="as fast as others in the same tests, with correct results",
        source=SOURCE,
        next_step=blame.next_step,
        responsible=ACTORS.get(blame.part, "administrator"),
        records=tuple(_tests(followed)),
    )


def _tests(followed: FollowedUp) -> Iterator[str]:
    """Yield the launches that the searches are based on."""
    for search in followed.searches:
        yield from (f"{case_id}/0" for case_id in search.figures if case_id.startswith(f"{search.name}-"))


def _subject(subject: str, followed: FollowedUp, names: Names) -> str:
    """Name devices as usual: by UUID if available, and by the host on which the rank started."""
    if subject.startswith("link/") and "/gpu/" in subject:
        ends = subject.removeprefix("link/").split(">")
        return "link/" + ">".join(_subject(f"host/{end}", followed, names) for end in ends)
    host, separator, index = subject.removeprefix("host/").partition("/gpu/")
    return names.get((host, index), subject) if separator else subject


def device_names(launches: Sequence[CaseRecords]) -> Names:
    """Return the subject of each device that a launch used."""
    subjects: dict[tuple[str, str], str] = {}
    for launch in launches:
        placement, setups = launch.case.placement, {setup.rank: setup for setup in launch.setups}
        for start in launch.of(Start):
            setup, local = setups.get(start.rank), start.rank % placement.ranks_per_host
            if setup is not None:
                index = local if placement.devices is None else placement.devices[local]
                host = launch.host_of(start)
                subject = device_subject(host, setup.device)
                subjects[host if placement.hosts else "", str(index)] = subject
    return subjects


def _subject_of(followed: FollowedUp) -> str:
    case = followed.suspicion.case
    host = case.places[0].name
    return WHOLE if case.is_over_all or not host else f"host/{host}"


def _undecided(why: str | None, reasons: Sequence[str], subject: str) -> Outcome:
    """Return the outcome if no culprit was found: an error if something is slow, else a skip."""
    explanation = "; ".join(reasons)
    return Outcome(
        status="SKIP" if why is None else "ERROR",
        subject=subject,
        reason=explanation if why is None else f"{why}, and the cause was not located: {explanation}",
        next_step="Measure with more launches (--runs), more time, or on otherwise idle hosts",
        responsible="administrator",
    )


def _no_culprit(followed: FollowedUp, findings: Findings) -> Outcome:
    why, slowdown = followed.suspicion.reason.why, followed.suspicion.slowdown
    sought = f"by {units.share(slowdown)} or more"
    tests = f"{findings.num_tests} tests in {findings.num_rounds} rounds"
    finding = "none is slower" if why is None else f"{why}; none is slower than the others"
    return pass_or_fail(
        _subject_of(followed),
        why is None,
        f"{finding} {sought}: {tests}",
        expected="its parts perform the same" if why is None else "one that is",
        source=SOURCE,
        next_step="Check what all share: switches, NCCL settings, links between groups; "
        "intermittent problems, such as lost packets, need longer tests "
        "(validate.collective.iterations)",
        warns=True,
        minimum_detectable=slowdown if why is None else None,
    )


def _links(findings: Findings) -> Outcome:
    tried = findings.links_tried
    sets = "; ".join(", ".join(part[:4]) + (" …" if len(part) > 4 else "") for part in tried.not_tried[:8])
    more = f" (between {sets})" if len(tried.not_tried) > 1 else ""
    total = tried.num_tried + tried.num_not_tried
    return skipped(
        f"{tried.num_not_tried} of {total} links between hosts were not tested separately{more}",
        "Test with all_to_all (validate.collective), or fewer hosts at a time",
    )


def _not_searched() -> Outcome:
    return skipped(
        "no rule with a floor and none of its launches shows it to be slow; whether it could be "
        f"faster is unknown, and its parts were not compared (with fewer than {MIN_PEERS}, a slow "
        "one cannot be identified)",
        "Set a floor (--rules), or compare parts of the fleet: --validate.blame=always",
    )


def conclude_without(order: StageOrder, evidence: Evidence, recipes: Recipes) -> list[StageResult]:
    """Evaluate the collectives that were measured without the blamed members."""
    stages = [stage for stage in order.stages if stage.name == "collective"]
    added = order.added_cases()
    return [conclude_case(evidence, stage, case, recipes) for stage in stages for case in added]


def substitute(judged: Sequence[Judged], order: StageOrder, results: Sequence[StageResult]) -> list[Judged]:
    """Return all outcomes; failures that pass without the blamed members become advisory.

    A rule that only applies to the first measurement stays required: its result without the blamed members is
    unknown.
    """
    passed = {item.name for item in judged if item.outcome.status == "PASS"}
    replaced = [
        (search.suspicion.case, case)
        for search in order.followed()
        for case in order.added_cases()
        if case.name == f"{search.suspicion.case.name}-without"
        and set(case.places) <= set(search.suspicion.case.places)
        and f"{case.name} was measured" in passed
    ]
    again = {case.case_id: {_rule(item) for item in judged if _rests_on(item, case)} for _, case in replaced}
    return [
        replace(x, is_required=False)
        if any(_is_of(x, first, again[case.case_id]) for first, case in replaced)
        else x
        for x in judged
    ]


def _is_of(item: Judged, case: StageCase, again: Collection[str]) -> bool:
    """Report whether a non-passing outcome concerns this entire case, and was evaluated `again`."""
    outcome, host = item.outcome, case.places[0].name
    if outcome.status not in ("FAIL", "WARN", "ERROR") or "/gpu/" in outcome.subject:
        return False
    is_its = case.is_over_all or not host or outcome.subject == f"host/{host}"
    is_judged_again = _rests_on(item, case) and _rule(item) in again
    return is_judged_again or (is_its and item.name == f"{case.name} was measured")


def _rests_on(item: Judged, case: StageCase) -> bool:
    return any(record.split("/")[0] == case.case_id for record in item.outcome.records)


def _rule(item: Judged) -> str:
    """Return the name of a rule, without the part that distinguishes its measures."""
    return item.name.partition(" [")[0]

"""Who slows a collective, as a validation asks: which suspicion begins a search, and what it comes to."""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from collectives_by_hand import collective_records, counted_again, trial
from concluding import text_of
from gpuproof.campaign.conclude import Concluded, conclude
from gpuproof.records.case import Case, CollectiveWork
from gpuproof.records.codec import to_json
from gpuproof.records.collected import CaseRecords
from gpuproof.records.outcome import Outcome
from gpuproof.records.progress import RankProgress
from gpuproof.records.run import Environment, RankResult, Setup, Start
from gpuproof.records.work.collective import CollectiveTrial
from gpuproof.suites.base import HostPlace
from gpuproof.suites.validate import SUITE
from gpuproof.verdict.baseline import RunValues, record_baseline, stack_of
from gpuproof.verdict.facts import facts_by_host
from records_by_hand import failure, start
from validation_by_hand import device, done, host_facts, recipe, walk, written

HOSTS = tuple(HostPlace(name=f"n{number}", num_devices=2) for number in range(5))
BUS_BYTES_PER_S = 2 * 9 / 10 * 4 * 2**20 / 0.002
"""Of ten ranks that are all well."""
FLOOR_OVER: dict[str, Any] = {
    "name": "hosts talk fast",
    "each": "whole",
    "measure": {"name": "bus bandwidth", "labels": {"operation": "all_reduce", "stage": "collective"}},
    "expect": {"at_least": 0.95 * BUS_BYTES_PER_S, "unit": "B/s"},
    "contract": True,
}
OVER = {
    "aspect": "collectives",
    "each": "whole",
    "title": "an all-reduce",
    "measure": "bus bandwidth",
    "labels": {"stage": "collective"},
}


AGAIN = "hosts talk fast [num_devices=8, num_ranks=8]"
"""The same without one host."""


def told(case: Case, *, slow: str | None = None, by: float = 0.3, wrong: bool = False) -> CaseRecords:
    """A collective as it is where one host, or one device of a host, is slower or wrong."""
    assert isinstance(case.work, CollectiveWork)
    placement = case.placement
    indices = placement.devices or tuple(range(placement.ranks_per_host))
    members = {*placement.hosts, *map(str, indices if placement.num_hosts == 1 else ())}
    has_it = slow is not None and slow in members
    (operation,) = case.work.collective.operations
    trials = []
    for rank in range(placement.num_ranks):
        whole = trial(rank, operation, num_wrong=int(has_it and wrong))
        slower = 1 - by * (has_it and not wrong)
        trials.append(replace(whole, durations_s=tuple(t / slower for t in whole.durations_s)))
    found = collective_records(case, trials)
    return replace(found, records=tuple(_placed(record, case) for record in found.records))


def _placed(record: Any, case: Case) -> Any:
    """Give a rank the device that it has where it is placed."""
    placement = case.placement
    if isinstance(record, Start):
        return replace(record, local_world_size=placement.ranks_per_host)
    if isinstance(record, Environment) and placement.host:
        return Environment(host=placement.host, facts=host_facts(2, host=placement.host))
    if not isinstance(record, Setup):
        return record
    node, local = divmod(record.rank, placement.ranks_per_host)
    index = local if placement.devices is None else placement.devices[local]
    host = placement.hosts[node] if placement.hosts else "node1"
    return replace(record, device=device(index, host))


def ended(**fault: Any) -> Callable[[Case], CaseRecords]:
    return lambda case: told(case, **fault) if case.kind == "collective" else done(case)


def hung(case: Case) -> CaseRecords:
    """Jobs over hosts with n3 among them do not end."""
    if "n3" not in case.placement.hosts or case.placement.num_hosts == 1:
        return ended()(case)
    return CaseRecords(case=case, records=(start(), failure("hang", next_step="look")))


def asked(*, nproc: int = 2, **options: Any) -> Any:
    validate = {"stages": ["collective"], "rules": [FLOOR_OVER], "aspects": [OVER], **options}
    return recipe(validate=validate, distributed={"nproc": nproc})


def concluded(folder: Path, config: Any, end: Callable[[Case], CaseRecords], hosts: Any = HOSTS) -> Concluded:
    run = written(folder, walk(config, hosts, end), config)
    places = [{"name": host.name, "num_devices": host.num_devices} for host in hosts]
    described = {key: value for key, value in run.description().items() if key != "schema_version"}
    run.write_description({**described, "places": places})
    return conclude(run)


def blamed(found: Concluded, of: str = "collective-over") -> list[Outcome]:
    return [item.outcome for item in found.result.outcomes if item.name == f"who slows {of}"]


def test_a_host_that_slows_the_fleet_under_a_floor_is_named(tmp_path: Path) -> None:
    found = concluded(tmp_path, asked(), ended(slow="n3"))
    accused = [x for x in blamed(found) if x.status == "FAIL"]
    assert [x.subject for x in accused] == ["host/n3"], text_of(found)
    assert "below what the rule 'hosts talk fast' allows" in (accused[0].measured or "")
    assert (accused[0].responsible, found.result.verdict) == ("administrator", "NOT-READY")


def test_a_healthy_fleet_is_not_searched_unless_asked(tmp_path: Path) -> None:
    cases = [launch.case.case_id for launch in walk(asked(), HOSTS, ended())]
    assert not [name for name in cases if name.startswith("blame-")]
    found = concluded(tmp_path, asked(blame="always"), ended())
    first, *others = blamed(found)
    assert first.status == "PASS", text_of(found)
    assert first.minimum_detectable == pytest.approx(0.05)
    assert {x.status for x in others} <= {"SKIP"}
    assert not [x for x in found.result.outcomes if x.outcome.status == "FAIL"]


def test_without_a_floor_it_is_said_that_nobody_knows(tmp_path: Path) -> None:
    (said,) = blamed(concluded(tmp_path, asked(rules=[]), ended(slow="n3")))
    assert said.status == "SKIP"
    assert "whether it could be faster is unknown" in (said.reason or "")


def test_never_is_never() -> None:
    cases = [launch.case.case_id for launch in walk(asked(blame="never"), HOSTS, ended(slow="n3"))]
    assert not [name for name in cases if name.startswith("blame-")]


def test_a_wrong_device_of_one_machine_is_named_by_its_uuid(tmp_path: Path) -> None:
    here = (HostPlace(name=""),)
    config = asked(nproc=5, rules=[])
    found = concluded(tmp_path, config, ended(slow="3", wrong=True), here)
    (accused,) = [x for x in blamed(found, "collective-within") if x.status == "FAIL"]
    assert (accused.subject, accused.responsible) == ("host/node1/gpu/GPU-3", "vendor"), text_of(found)
    assert "elements of all_reduce" in (accused.measured or "")


def test_of_two_devices_nobody_is_named_and_that_is_said(tmp_path: Path) -> None:
    found = concluded(tmp_path, asked(rules=[]), ended(slow="1", wrong=True), (HostPlace(name=""),))
    (said,) = blamed(found, "collective-within")
    assert said.status == "ERROR"
    assert "with fewer than three members, the slow one cannot be identified" in (said.reason or "")


def test_a_host_slower_than_its_peers_is_searched_inside() -> None:
    slow = ended(slow="n3")
    names = {launch.case.case_id for launch in walk(asked(rules=[]), HOSTS, slow)}
    assert "collective-within@n3" in names
    state = SUITE.begin(asked(rules=[]), HOSTS)
    for launch in walk(asked(rules=[]), HOSTS, slow):
        state = state.settle(launch)
    (followed,) = state.followed()
    assert followed.suspicion.case.case_id == "collective-within@n3"
    assert followed.suspicion.slowdown == pytest.approx(0.8 * 0.3)


def test_the_order_in_which_launches_are_read_back_makes_no_difference() -> None:
    launches = walk(asked(), HOSTS, ended(slow="n3"))
    states = [SUITE.begin(asked(), HOSTS) for _ in range(2)]
    for launch, again in zip(launches, reversed(launches), strict=True):
        states = [states[0].settle(launch), states[1].settle(again)]
    one, other = (state.followed() for state in states)
    assert one[0].search.search.findings() == other[0].search.search.findings()
    assert [list(state.next(())) for state in states] == [[], []]


def test_a_job_that_hangs_is_searched(tmp_path: Path) -> None:
    found = concluded(tmp_path, asked(rules=[]), hung)
    assert [x.subject for x in blamed(found) if x.status == "FAIL"] == ["host/n3"], text_of(found)


def stopped(silent: str | None = "n3", late: Collection[str] = ()) -> Callable[[Case], CaseRecords]:
    """All jobs over hosts hang: the ranks of one say nothing, and others have asked for less, or for all."""

    def end(case: Case) -> CaseRecords:
        placement = case.placement
        if placement.num_hosts == 1:
            return ended()(case)
        records: list[Any] = [failure("lost_rank", rank=None)] if silent else []
        for rank in range(placement.num_ranks):
            host = placement.hosts[rank // placement.ranks_per_host]
            size: dict[str, Any] = {
                "world_size": placement.num_ranks,
                "local_world_size": placement.ranks_per_host,
            }
            records.append(replace(start(rank), **size))
            progress = RankProgress(collectives=16 if host in late else 17, launched=9, begun=9, completed=8)
            if host != silent:
                records.append(replace(failure("hang", rank=rank), progress=progress))
        return CaseRecords(case=case, records=tuple(records))

    return end


@pytest.mark.parametrize(
    ("end", "named"),
    [
        (stopped(), ["host/n3"]),
        (stopped(late=["n1"]), ["host/n3"]),  # the late ones may wait for those that are silent
        (stopped(None, late=["n1", "n2"]), ["host/n1", "host/n2"]),
        (stopped(None), []),  # all came, and it does not end: no host is known to be at fault
    ],
)
def test_a_host_whose_ranks_stop_while_others_wait_fails(
    end: Callable[[Case], CaseRecords], named: list[str], tmp_path: Path
) -> None:
    """As after SIGSTOP: `lost_rank` alone is nobody's failure, and a run may pass without that launch."""
    found = concluded(tmp_path, asked(rules=[], blame="never"), end)
    outcomes = [x for x in found.result.outcomes if x.name == "who stops collective-over"]
    assert [x.outcome.subject for x in outcomes if x.outcome.status == "FAIL"] == named, text_of(found)
    assert all(x.is_required for x in outcomes)
    if named:
        assert "wait in a step" in (outcomes[0].outcome.measured or "")
        assert found.result.verdict == "NOT-READY"


def test_a_rank_whose_last_line_is_torn_may_have_said_its_last_words(tmp_path: Path) -> None:
    config = asked(rules=[], blame="never")
    run = written(tmp_path, walk(config, HOSTS, stopped()), config)
    (journal,) = tmp_path.glob("**/collective-over/0/rank-6.jsonl")
    journal.write_text(journal.read_text() + '{"kind": "fail')
    assert not [x for x in conclude(run).result.outcomes if x.name == "who stops collective-over"]


def test_without_the_accused_the_others_are_measured_again_and_stand_in(tmp_path: Path) -> None:
    found = concluded(tmp_path, asked(rules=[], allow_exclusions=True), hung)
    judged = {item.name: item for item in found.result.outcomes}
    again = judged["collective-over-without was measured"]
    assert (again.outcome.status, again.is_required) == ("PASS", True), text_of(found)
    before = judged["collective-over was measured"]
    assert (before.outcome.status, before.is_required) == ("FAIL", False)


def test_what_failed_with_the_accused_and_passes_without_them_is_ready_with_exclusions(
    tmp_path: Path,
) -> None:
    found = concluded(tmp_path, asked(allow_exclusions=True), ended(slow="n3"))
    judged = {item.name: item for item in found.result.outcomes}
    first, again = judged["hosts talk fast [num_devices=10, num_ranks=10]"], judged[AGAIN]
    assert (first.outcome.status, first.is_required) == ("FAIL", False), text_of(found)
    assert (again.outcome.status, again.is_required) == ("PASS", True)
    assert (found.result.verdict, found.result.exit_code) == ("READY-WITH-EXCLUSIONS", 0), text_of(found)
    assert found.result.detail["readiness"]["excluded"] == ["host/n3"]


def test_what_fails_without_the_accused_too_is_not_ready(tmp_path: Path) -> None:
    over = {"at_least": 1.1 * BUS_BYTES_PER_S, "unit": "B/s"}
    config = asked(allow_exclusions=True, rules=[{**FLOOR_OVER, "expect": over}])
    found = concluded(tmp_path, config, ended(slow="n3"))
    (again,) = [item for item in found.result.outcomes if item.name == AGAIN]
    assert (again.outcome.status, again.is_required) == ("FAIL", True), text_of(found)
    assert found.result.verdict == "NOT-READY"


def test_a_rule_of_the_first_measurement_alone_is_not_met_by_the_second(tmp_path: Path) -> None:
    labels = {**FLOOR_OVER["measure"]["labels"], "case": "collective-over"}
    rule = {**FLOOR_OVER, "measure": {**FLOOR_OVER["measure"], "labels": labels}}
    found = concluded(tmp_path, asked(allow_exclusions=True, rules=[rule]), ended(slow="n3"))
    (first,) = [item for item in found.result.outcomes if item.name == "hosts talk fast"]
    assert (first.outcome.status, first.is_required) == ("FAIL", True), text_of(found)
    assert found.result.verdict == "NOT-READY"


def test_a_fleets_own_past_begins_a_search_as_a_floor_does(tmp_path: Path) -> None:
    healthy = concluded(tmp_path / "healthy", asked(rules=[]), ended())
    hosts = facts_by_host(walk(asked(rules=[]), HOSTS, ended()))
    run = RunValues(run_id="healthy", measures=healthy.result.measures, stack=stack_of(hosts))
    baseline = record_baseline("fleet", [run], recorded="2026-11-22", gpuproof_version="0")
    rule = {**FLOOR_OVER, "expect": {"baseline": 0.9}, "contract": False}
    config = asked(rules=[rule], baseline=to_json(baseline))
    found = concluded(tmp_path / "slow", config, ended(slow="n3"))
    accused = [x for x in blamed(found) if x.status == "FAIL"]
    assert [x.subject for x in accused] == ["host/n3"], text_of(found)
    assert not [x for x in walk(config, HOSTS, ended()) if x.case.case_id.startswith("blame-")]


@pytest.mark.parametrize(("stalled", "accused"), [(0.1, ["host/n3"]), (0.55, [])])
def test_iterations_that_stall_are_no_noise_of_the_others(
    stalled: float, accused: list[str], tmp_path: Path
) -> None:
    """As on a link that loses packets: few leave the median; of many the search says that it cannot tell."""

    def stalling(case: Case) -> CaseRecords:
        found = told(case, slow="n3")
        return counted_again(replace(found, records=tuple(_stalled(x, stalled) for x in found.records)))

    found = concluded(tmp_path, asked(), stalling)
    assert [x.subject for x in blamed(found) if x.status == "FAIL"] == accused, text_of(found)
    assert accused or "ERROR" in {x.status for x in blamed(found)}


def _stalled(record: Any, share: float) -> Any:
    if not isinstance(record, CollectiveTrial):
        return record
    times = record.durations_s
    num = round(share * len(times))
    return replace(record, durations_s=tuple(t * 3.0 ** (i if i < num else 0) for i, t in enumerate(times)))


def test_a_rule_that_cannot_judge_begins_no_search() -> None:
    impossible = {**FLOOR_OVER, "expect": {"at_least": 4e15, "unit": "B/s"}}
    vacuous = {**FLOOR_OVER, "expect": {"at_least": 1.0, "unit": "B/s"}}
    for rule in (impossible, vacuous):
        cases = [launch.case.case_id for launch in walk(asked(rules=[rule]), HOSTS, ended(slow="n3"))]
        assert not [name for name in cases if name.startswith("blame-collective-over")]


def test_a_budget_ends_the_search_and_that_is_said(tmp_path: Path) -> None:
    def long(case: Case) -> CaseRecords:
        found = ended(slow="n3")(case)
        ends = [replace(x, monotonic_s=130.0) if isinstance(x, RankResult) else x for x in found.records]
        return replace(found, records=tuple(ends))

    found = concluded(tmp_path, asked(time_budget_s=300.0), long)
    (said, *_) = blamed(found)
    assert said.status == "ERROR", text_of(found)
    assert "--time-budget leaves no room for more tests" in (said.reason or "")

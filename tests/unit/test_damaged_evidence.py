"""READY rests on what was recorded: with one piece of it gone, or told otherwise, it is READY no more."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from copy import deepcopy
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gpuproof.readings.evidence import Evidence
from gpuproof.records.collected import CaseRecords
from gpuproof.records.outcome import Judged, Outcome
from gpuproof.records.run import Environment, Start, Steps
from gpuproof.records.work.collective import CollectiveTrial
from gpuproof.selftest.fleet import Fleet
from gpuproof.selftest.judging import CHECKS, write_fleet
from gpuproof.suites.validate import SUITE
from gpuproof.suites.validate.cells import subjects_by_kind
from gpuproof.suites.validate.options import HARDWARE
from gpuproof.verdict.aspects import RATES, AspectCell, RequiredAspect, cells_of
from gpuproof.verdict.checks.devices import MEMORY_COUNTERS
from gpuproof.verdict.rollup import roll_up

FLEET = Fleet(hosts=("node1", "node2"), seed=1, is_counted=False)
Change = Callable[[dict[str, Any]], object]


@pytest.fixture(scope="module")
def healthy(tmp_path_factory: pytest.TempPathFactory) -> Evidence:
    """Two hosts in which nothing is wrong."""
    rules = [{"check": name} for name in CHECKS]
    return write_fleet(FLEET, tmp_path_factory.mktemp("fleet"), rules=rules)


def word(evidence: Evidence) -> str:
    """The verdict before its cap."""
    return str(SUITE.conclude(evidence).result.detail["readiness"]["uncapped"])


def with_records(evidence: Evidence, number: int, records: tuple[Any, ...]) -> Evidence:
    launches = list(evidence.launches)
    launches[number] = CaseRecords(case=launches[number].case, records=records)
    return replace(evidence, launches=tuple(launches))


def with_facts(evidence: Evidence, host: str, change: Change, *, place: int) -> Evidence:
    """Change what a host tells in one launch, counted from the first in which it tells something."""
    numbers = [
        number
        for number, launch in enumerate(evidence.launches)
        if any(each.host == host for each in launch.of(Environment))
    ]
    records = []
    for record in evidence.launches[numbers[place]].records:
        changed = record
        if isinstance(record, Environment) and record.host == host:
            facts = deepcopy(record.facts)
            change(facts)
            changed = replace(record, facts=facts)
        records.append(changed)
    return with_records(evidence, numbers[place], tuple(records))


def first_listed(facts: Mapping[str, Any]) -> dict[str, Any]:
    device: dict[str, Any] = facts["accelerators"]["devices"][0]
    return device


def one_more(facts: Mapping[str, Any]) -> None:
    facts["accelerators"]["devices"].append(
        {**first_listed(facts), "uuid": "GPU-gone", "framework_index": None}
    )


@pytest.mark.parametrize("place", [0, 1, -1])
@pytest.mark.parametrize(
    "change",
    [
        lambda facts: first_listed(facts)["state"].update(ecc_uncorrected_count=1.0),
        lambda facts: first_listed(facts)["static"].update(power_limit_w=300.0),
        lambda facts: facts["accelerators"]["drivers"].update(seeded={"version": "1"}),
        lambda facts: facts.update(torch="1"),
        one_more,
    ],
)
def test_what_a_host_told_in_any_launch_counts(change: Change, place: int, healthy: Evidence) -> None:
    """An error that a later report forgets, a GPU that is gone, a driver that was exchanged in between."""
    assert word(healthy) == "READY"
    assert word(with_facts(healthy, "node2", change, place=place)) != "READY"


@pytest.mark.parametrize(
    "damage",
    [{"num_checked": 0}, {"durations_s": (0.001,)}, {"rank": 1}, {"asked_bytes": 8}],
)
def test_a_rank_that_tells_otherwise_of_a_collective_leaves_it_open(
    damage: dict[str, Any], healthy: Evidence
) -> None:
    number = next(n for n, launch in enumerate(healthy.launches) if launch.case.kind == "collective")
    records = healthy.launches[number].records
    place = next(n for n, record in enumerate(records) if isinstance(record, CollectiveTrial))
    other = (*records[:place], replace(records[place], **damage), *records[place + 1 :])
    assert word(with_records(healthy, number, other)) == "INCONCLUSIVE"


@pytest.mark.parametrize("case_id", ["training", "gemm-bf16-device1@node2", "collective-within@node2"])
@pytest.mark.parametrize("is_same_process", [True, False])
def test_a_launch_that_is_a_copy_of_another_is_none(
    is_same_process: bool, case_id: str, healthy: Evidence
) -> None:
    """In the place of another one or beside it; under other processes, its windows tell."""
    launch = next(launch for launch in healthy.launches if launch.case.case_id == case_id)
    later: Any = {} if is_same_process else {"pid": 1, "monotonic_s": 1.0}
    records = tuple(replace(x, **later) if isinstance(x, Start) else x for x in launch.records)
    copied = replace(launch, case=replace(launch.case, replicate=1), records=records)
    with_copy = replace(healthy, launches=(*healthy.launches, copied))
    assert word(with_copy) == "INCONCLUSIVE"
    (note,) = with_copy.launches[-1].torn
    assert f"{case_id}/1 is not a separate launch: its processes or windows are those of {case_id}/0" == note
    reasons = [item.outcome.reason for item in SUITE.conclude(with_copy).result.outcomes]
    assert any(note in str(reason) for reason in reasons)


@pytest.mark.parametrize("case_id", ["training", "gemm-bf16-all@node1", "gemm-bf16-device0@node1"])
def test_a_rank_without_its_step_times_leaves_its_launch_open(case_id: str, healthy: Evidence) -> None:
    number, launch = next((n, x) for n, x in enumerate(healthy.launches) if x.case.case_id == case_id)
    for place, record in enumerate(launch.records):
        if isinstance(record, Steps):
            rest = (*launch.records[:place], *launch.records[place + 1 :])
            lost = with_records(healthy, number, rest)
            assert word(lost) == "INCONCLUSIVE"
            reason = f"0 step times of rank {record.rank} were stored for {len(record.durations_s)} steps"
            assert reason in str(SUITE.conclude(lost).result.outcomes)


def cells(evidence: Evidence) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = SUITE.conclude(evidence).result.detail["readiness"]["cells"]
    return found


def without_rules(evidence: Evidence, names: tuple[str, ...]) -> Evidence:
    options = evidence.config.suite_options["validate"]
    rules = [rule for rule in options["rules"] if (rule.get("name") or rule.get("check")) not in names]
    assert len(rules) < len(options["rules"])
    suite_options = {**evidence.config.suite_options, "validate": {**options, "rules": rules}}
    return replace(evidence, config=evidence.config.model_copy(update={"suite_options": suite_options}))


def without_gpu(evidence: Evidence, uuid: str) -> Evidence:
    """Take out every record of the ranks that ran on a GPU."""
    launches = []
    for launch in evidence.launches:
        gone = {setup.rank for setup in launch.setups if setup.device.uuid == uuid}
        records = [record for record in launch.records if getattr(record, "rank", None) not in gone]
        launches.append(CaseRecords(case=launch.case, records=tuple(records)))
    return replace(evidence, launches=tuple(launches))


def damaged(evidence: Evidence) -> Iterator[tuple[str, Evidence]]:
    """Yield the evidence without a launch or a rule that a cell rests on, a subject, or a counter."""
    rested_on = {record for cell in cells(evidence) for record in cell["records"]}
    for place, launch in enumerate(evidence.launches):
        if f"{launch.case.case_id}/{launch.case.replicate}" in rested_on:
            rest = (*evidence.launches[:place], *evidence.launches[place + 1 :])
            yield f"without {launch.case.case_id}", replace(evidence, launches=rest)
    for rule in sorted({rule for cell in cells(evidence) for rule in cell["decided_by"]}):
        yield f"without the rule {rule}", without_rules(evidence, (rule,))
    for host in FLEET.hosts:
        rest = tuple(x for x in evidence.launches if host not in x.case.placement.hosts)
        yield f"without {host}", replace(evidence, launches=rest)
        for index in range(FLEET.num_devices):
            yield f"without GPU {index} of {host}", without_gpu(evidence, FLEET.uuid_of(host, index))
    for counter in MEMORY_COUNTERS:
        yield f"without {counter}", without_counter(evidence, "node2", 1, counter)


def without_counter(evidence: Evidence, host: str, index: int, counter: str) -> Evidence:
    num_reports = sum(any(x.host == host for x in y.of(Environment)) for y in evidence.launches)
    for place in range(num_reports):
        evidence = with_facts(
            evidence,
            host,
            lambda facts: facts["accelerators"]["devices"][index]["state"].pop(counter),
            place=place,
        )
    return evidence


def test_ready_rests_on_every_cell_rule_subject_and_counter(healthy: Evidence) -> None:
    """Take any of them away: whatever is left does not say that the machine is ready."""
    assert {cell["standing"] for cell in cells(healthy)} == {"passed"}
    words = {name: word(evidence) for name, evidence in damaged(healthy)}
    assert len(words) >= 22
    assert [name for name, of in words.items() if of == "READY"] == []


def passing(row: RequiredAspect, cell: AspectCell) -> Iterator[Judged]:
    """What closes a cell: a rule that is fine enough, or each of its checks."""
    ground: Any = {"measured": "1", "expected": "≥ 1", "source": "test", "subject": cell.subject}
    if row.measure is None:
        for name in row.checks:
            yield Judged(name=name, outcome=Outcome(status="PASS", **ground))
        return
    outcome = Outcome(status="PASS", minimum_detectable=0.05, records=("a/0",), **ground)
    yield Judged(
        name=f"{cell.name} of {cell.subject}",
        outcome=outcome,
        measure=row.measure,
        labels=dict(row.labels),
        basis="baseline",
    )


@given(
    gpus=st.lists(st.integers(1, 3), min_size=1, max_size=3),
    detects=st.sampled_from((0.05, 0.1, 0.5)),
    data=st.data(),
)
@settings(max_examples=60, deadline=None)
def test_all_that_the_hardware_has_is_ready_only_with_every_outcome(
    gpus: list[int], detects: float, data: st.DataObject
) -> None:
    """Of each row, on fleets of any shape: one outcome less, failed, of something else, or too coarse."""
    there = [f"host/{host}" for host in range(len(gpus))]
    there += [f"host/{host}/gpu/{index}" for host, num in enumerate(gpus) for index in range(num)]
    subjects = subjects_by_kind(there)
    cells_by_row = [
        (row, cell)
        for row in HARDWARE
        for cell in cells_of([row], subjects, judged=[], measures=[], detects=detects).cells
    ]
    judged = list(
        {
            (item.name, item.outcome.subject): item
            for row, cell in cells_by_row
            for item in passing(row, cell)
        }.values()
    )
    assert word_of(judged, subjects, detects) == "READY"
    place = data.draw(st.integers(0, len(judged) - 1))
    item = judged[place]
    worse = [
        None,
        replace(item, is_required=False),
        replace(item, outcome=replace(item.outcome, status="FAIL", next_step="look")),
        replace(item, outcome=replace(item.outcome, subject="host/other")),
    ]
    if any(row.aspect in RATES and row.measure for row, cell in cells_by_row if item in passing(row, cell)):
        worse += [
            replace(item, outcome=replace(item.outcome, minimum_detectable=loss)) for loss in (0.51, None)
        ]
        worse += [replace(item, basis=basis) for basis in ("peers", "none")]
    for other in worse:
        rest = [*judged[:place], *([] if other is None else [other]), *judged[place + 1 :]]
        assert word_of(rest, subjects, detects) != "READY", other


def word_of(judged: list[Judged], subjects: Mapping[str, list[str]], detects: float) -> str:
    table = cells_of(HARDWARE, subjects, judged=judged, measures=[], detects=detects)
    return roll_up(judged, table=table, subjects=subjects["host"]).word


def test_ranks_that_tell_of_different_numbers_of_ranks_contradict_each_other(healthy: Evidence) -> None:
    number = next(n for n, launch in enumerate(healthy.launches) if launch.case.case_id == "training")
    records = [
        replace(record, world_size=5) if isinstance(record, Start) and record.rank == 1 else record
        for record in healthy.launches[number].records
    ]
    assert word(with_records(healthy, number, tuple(records))) == "INCONCLUSIVE"

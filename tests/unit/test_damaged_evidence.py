"""READY rests on what was recorded: with one piece of its evidence gone, or told otherwise, it is READY no more."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from copy import deepcopy
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from gpuproof.readings.evidence import Evidence
from gpuproof.records.collected import CaseRecords
from gpuproof.records.result import Measure
from gpuproof.records.run import Environment
from gpuproof.records.work.collective import CollectiveTrial
from gpuproof.selftest.fleet import Fleet
from gpuproof.selftest.judging import CHECKS, write_fleet
from gpuproof.suites.validate import SUITE
from gpuproof.suites.validate.conclude import settled_order
from gpuproof.suites.validate.readiness.cells import required_rows, subjects_by_kind
from gpuproof.verdict.aspects import AspectCell, AspectTable, cells_of
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
    facts["accelerators"]["devices"].append({**first_listed(facts), "uuid": "GPU-gone", "framework_index": None})


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

"""A collective with direct copies, the fabric or GPUDirect switched off: launched, told apart, and judged."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from collectives_by_hand import ITERATION_S, counted_again, trial
from concluding import text_of
from gpuproof.campaign.conclude import Concluded, conclude
from gpuproof.records.case import Case
from gpuproof.records.collected import CaseRecords
from gpuproof.records.run import NotApplied, Setup
from gpuproof.records.work.collective import CollectiveTrial
from gpuproof.suites.base import HostPlace
from validation_by_hand import done, recipe, walk, written

CHECK = {"check": "options have an effect", "required": False}
BANDWIDTH = "bus bandwidth, options compared"


def stages(**options: Any) -> dict[str, Any]:
    return {"stages": ["switched_off"], **options}


def profile_of(case: Case) -> str:
    return case.work.parallel.communication_profile


def at(slower: float, *not_applied: NotApplied) -> Callable[[Case], CaseRecords]:
    """End launches of which those with something switched off take so many times as long."""

    def end(case: Case) -> CaseRecords:
        found = done(case)
        if profile_of(case) == "none":
            return found
        times = tuple(slower * time for time in trial(0, "all_reduce").durations_s)
        changed = [
            replace(x, durations_s=times)
            if isinstance(x, CollectiveTrial)
            else replace(x, not_applied=not_applied)
            if isinstance(x, Setup)
            else x
            for x in found.records
        ]
        return counted_again(replace(found, records=tuple(changed)))

    return end


def concluded(folder: Path, end: Callable[[Case], CaseRecords], **options: Any) -> Concluded:
    config = recipe(validate=stages(rules=[CHECK], **options))
    return conclude(written(folder, walk(config, end=end), config))


def judged(found: Concluded) -> list[tuple[str, str]]:
    return [
        (x.outcome.status, x.outcome.measured or x.outcome.reason or "")
        for x in found.result.outcomes
        if x.name == "options have an effect"
    ]


def test_each_transport_is_switched_off_where_it_runs() -> None:
    hosts = tuple(HostPlace(name=name, num_devices=2) for name in ("a", "b"))
    launches = walk(recipe(validate=stages()), hosts)
    assert [(x.case.case_id, profile_of(x.case), x.case.placement.num_ranks) for x in launches] == [
        ("switched-within@a", "none", 2),
        ("switched-within-without-peer_to_peer@a", "no_p2p", 2),
        ("switched-within@b", "none", 2),
        ("switched-within-without-peer_to_peer@b", "no_p2p", 2),
        ("switched-over", "none", 4),
        ("switched-over-without-fabric", "no_fabric", 4),
        ("switched-over-without-gpudirect", "no_gpudirect", 4),
    ]


def test_nothing_is_switched_off_without_devices_or_between_none() -> None:
    on_processors = recipe(validate=stages(), distributed={"nproc": 2, "device": "cpu"})
    alone = recipe(validate=stages(), distributed={"nproc": 1})
    assert walk(on_processors) == []
    assert walk(alone) == []


def test_it_is_left_out_unless_it_is_named() -> None:
    named = {x.case.case_id for x in walk(recipe(validate={"stages": ["collective"]}))}
    assert not any(name.startswith("switched") for name in named)


@pytest.mark.parametrize(
    ("slower", "status", "said"),
    [
        (2.0, "PASS", "peer_to_peer on against off is 100 % faster"),
        (1.01, "WARN", "peer_to_peer on against off is 1.0 % faster"),
        (0.5, "WARN", "peer_to_peer on against off is 50 % slower"),
    ],
)
def test_what_makes_no_difference_was_probably_not_in_force(
    slower: float, status: str, said: str, tmp_path: Path
) -> None:
    found = concluded(tmp_path, at(slower))
    ((told, measured),) = judged(found)
    assert told == status, text_of(found)
    assert said in measured
    rates = {m.labels["peer_to_peer"]: m.value or 0.0 for m in found.result.measures if m.name == BANDWIDTH}
    assert rates["on"] == pytest.approx(slower * rates["off"])
    assert rates["on"] == pytest.approx(4 * 2**20 / ITERATION_S, rel=1e-3)  # factor 1 of two ranks


def test_where_nccl_is_not_used_nothing_was_switched_off(tmp_path: Path) -> None:
    ignored = NotApplied(key="distributed.communication_profile", reason="ranks talk over gloo")
    ((status, _),) = judged(concluded(tmp_path, at(1.0, ignored)))
    assert status == "NOT-APPLICABLE"


def test_no_rule_for_bus_bandwidth_takes_the_slow_launch_for_the_machines_own(tmp_path: Path) -> None:
    healthy = 4 * 2**20 / ITERATION_S
    floor = {
        "name": "fast",
        "each": "host",
        "measure": {"name": "bus bandwidth"},
        "expect": {"at_least": 0.9 * healthy, "unit": "B/s"},
    }
    config = recipe(validate={"stages": ["collective", "switched_off"], "rules": [floor]})
    found = conclude(written(tmp_path / "floor", walk(config, end=at(2.0)), config))
    assert [x.outcome.status for x in found.result.outcomes if x.name == "fast"] == ["PASS"], text_of(found)
    assert not [x for x in found.result.outcomes if x.is_required and "switched" in x.name]


def test_on_processors_it_does_not_apply(tmp_path: Path) -> None:
    options = {"stages": ["training", "switched_off"]}
    config = recipe(validate=options, distributed={"nproc": 2, "device": "cpu"})
    found = conclude(written(tmp_path, walk(config), config))
    (told,) = [x.outcome for x in found.result.outcomes if x.name == "switched_off"]
    assert (told.status, told.reason) == (
        "NOT-APPLICABLE",
        "ranks on CPUs do not communicate over NCCL",
    )

"""Two settings of serving in turns: what a launch is compared by, which there are, what is refused."""

from __future__ import annotations

from dataclasses import replace
from math import exp
from pathlib import Path
from typing import Any

import pytest

from ab_by_hand import NOISE, run_to_its_end
from gpuproof.base.errors import UsageError
from gpuproof.campaign.conclude import Concluded, conclude
from gpuproof.config.models import RunConfig
from gpuproof.records.case import Case, ServingWork
from gpuproof.records.collected import CaseRecords
from gpuproof.suites.ab import SUITE
from gpuproof.suites.results import compared_values
from planning import HERE
from records_by_hand import write_run
from served_by_hand import SPEC, records, spec_in

NUM = 200


def sections(**serving: Any) -> dict[str, Any]:
    return {
        "kind": "serving",
        "suite": "ab",
        "ab": {"b": {"serving.max_batch": 64}, "pilot_pairs": 4, "max_pairs": 8},
        "serving": {"latency_bound_s": 0.05, "rate_per_s": 100.0, "min_requests": 100, **serving},
        "monitoring": {"enabled": False},
    }


def served(case: Case, slower: float) -> CaseRecords:
    """A launch of requests that take 10 ms in the median with some noise, on B longer by a share."""
    place = 2 * case.replicate + (case.case_id == "b")
    middle_s = 0.01 * exp(NOISE[place % 5]) * (1 + slower if case.case_id == "b" else 1)
    latencies = [middle_s * (1 + (k % 11 - 5) / 100) for k in range(NUM)]
    return replace(records(latencies, spec=spec_in(case)), case=case)


def concluded(tmp_path: Path, slower: float) -> Concluded:
    launches = run_to_its_end(RunConfig.model_validate(sections()), slower, served)
    return conclude(write_run(tmp_path, launches, **sections()))


def test_a_launch_is_compared_by_goodput_and_by_what_users_wait_for() -> None:
    figures = compared_values(records([0.01] * 90 + [0.06] * 10))
    assert figures == {"goodput": pytest.approx(90 / 1.06), "p50 latency": pytest.approx(0.01)}
    no_bound = replace(SPEC, latency_bound_s=None)
    assert list(compared_values(records([0.01] * 90, spec=no_bound))) == ["p50 latency"]
    users = replace(no_bound, rate_per_s=None, scenario="closed_loop")
    assert list(compared_values(records([0.01] * 90, spec=users))) == ["answered", "p50 latency"]


@pytest.mark.parametrize(
    ("slower", "word"), [(0.2, "SLOWER"), (-0.2, "FASTER"), (0.0, "NO DIFFERENCE SHOWN")]
)
def test_a_slower_setting_is_named_and_an_equal_one_is_not(slower: float, word: str, tmp_path: Path) -> None:
    done = concluded(tmp_path, slower)
    assert (done.result.verdict, done.result.exit_code) == (word, 0)
    compared = {m["name"]: m["comparison"] for m in done.result.detail["ab"]["measures"]}
    assert list(compared) == ["goodput", "p50 latency"]
    assert compared["p50 latency"]["ratio"]["centre"] == pytest.approx(1 + slower, rel=0.01)
    assert done.result.num_launches == done.result.num_planned


def test_both_of_a_pair_have_the_same_arrivals_and_pairs_have_others() -> None:
    launches = run_to_its_end(RunConfig.model_validate(sections()), 0.0, served)
    seeds: dict[int, set[int | None]] = {}
    for launch in launches:
        assert isinstance(launch.case.work, ServingWork)
        seeds.setdefault(launch.case.replicate, set()).add(launch.case.work.arrival_seed)
    assert all(len(of_pair) == 1 for of_pair in seeds.values())
    assert len(set.union(*seeds.values())) == len(seeds)
    assert {spec_in(launch.case).max_batch for launch in launches if launch.case.case_id == "b"} == {64}


def test_a_search_has_no_rate_to_be_compared_at() -> None:
    with pytest.raises(UsageError, match=r"serving.rate_per_s: alternating requests need a fixed rate"):
        SUITE.begin(RunConfig.model_validate(sections(rate_per_s=None)), HERE)

"""Bounds on whole answers, first tokens and further tokens, each and together; and goodput."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from pydantic import ValidationError

from gpuproof.config.models import RunConfig
from gpuproof.config.rules import check_place
from gpuproof.config.rules.base import Facts
from gpuproof.launches.bounds import (
    RequestSeries,
    bounds_judged,
    judge,
    judge_rate,
    num_within,
    separate_bounds,
)
from gpuproof.launches.served import summarize_requests
from gpuproof.records.work.serving import BoundsSpec
from served_by_hand import SPEC, records

INF = float("inf")
TEXT = replace(SPEC, latency_bound_s=1.0, bounds=BoundsSpec(ttft_s=0.2, tpot_s=0.05))
SERIES = RequestSeries(
    latency_s=np.array([0.5, 0.5, 0.5, 2.0, INF]),
    first_token_s=np.array([0.1, 0.3, 0.1, 0.1, INF]),
    token_s=np.array([0.01, 0.01, 0.09, 0.01, INF]),
)


def test_a_request_is_within_all_bounds_or_it_is_not() -> None:
    assert (
        num_within(SERIES, separate_bounds(TEXT)) == 1
    )  # each of the others breaks one, the last one failed
    assert num_within(SERIES, separate_bounds(replace(TEXT, bounds=BoundsSpec()))) == 3
    (together,) = bounds_judged(replace(TEXT, bounds=replace(TEXT.bounds, goodput_percentile=90.0)))
    assert together.q == 90
    assert list(together.values(SERIES) <= together.limit) == [True, False, False, False, False]
    assert [bound.name for bound in bounds_judged(TEXT)] == [
        "latency",
        "time to first token",
        "time per token",
    ]


def test_one_bound_that_is_missed_refutes_the_rate() -> None:
    rng = np.random.default_rng(0)
    launches = [
        RequestSeries(rng.exponential(0.1, 3000), rng.exponential(0.1, 3000), rng.exponential(0.005, 3000))
        for _ in range(3)
    ]
    found = judge_rate(launches, bounds_judged(TEXT), confirmations=3)
    assert [standing.outcome for standing in found.standings] == ["met", "missed", "met"]
    assert found.outcome == "missed"
    assert judge_rate(launches[:2], bounds_judged(SPEC), confirmations=3).outcome != "met"


@pytest.mark.parametrize(
    ("over", "launches", "outcome", "reason"),
    [
        (0, 1, "undecided", "fewer than 10 separate slow spells"),
        (1, 1, "undecided", "fewer than 10 separate slow spells"),
        (40, 1, "undecided", "a single launch cannot rule out a rate"),
        (40, 2, "missed", ""),
        (0, 2, "undecided", "fewer than 10 separate slow spells"),
    ],
)
def test_few_requests_are_told_what_they_lack(over: int, launches: int, outcome: str, reason: str) -> None:
    latency_s = np.where(np.arange(40) < over, 2.0, 0.5)
    series = RequestSeries(latency_s, latency_s, np.zeros(40))
    (bound,) = bounds_judged(replace(SPEC, latency_bound_s=1.0, latency_percentile=95.0))
    found = judge([series] * launches, bound, confirmations=1)
    assert found.outcome == outcome
    assert reason in (found.reason or "")


def test_goodput_counts_no_request_that_failed() -> None:
    latencies = [0.01] * 90 + [0.2] * 6 + [None] * 4
    found = summarize_requests(records(latencies))
    assert found is not None
    assert found.num_within == 90  # the bound is 50 ms
    assert found.goodput_per_s == pytest.approx(90 / found.window.wall_s)
    assert found.requests_per_s == pytest.approx(96 / found.window.wall_s)


@pytest.mark.parametrize(
    ("serving", "key"),
    [
        ({"target": "noop", "bounds": {"ttft_s": 0.1}}, "serving.bounds.ttft_s"),
        ({"new_tokens": 1, "bounds": {"tpot_s": 0.1}}, "serving.bounds.tpot_s"),
        ({"bounds": {"goodput_percentile": 99}}, "serving.bounds.goodput_percentile"),
    ],
)
def test_bounds_that_nothing_can_keep_are_refused(serving: dict[str, Any], key: str) -> None:
    with pytest.raises(ValidationError, match=key):
        RunConfig.model_validate(
            {"kind": "serving", "model": {"name": "decoder"}, "serving": {"rate_per_s": 1.0, **serving}}
        )


def test_bounds_of_tokens_alone_can_be_searched() -> None:
    config = RunConfig.model_validate(
        {"kind": "serving", "model": {"name": "decoder"}, "serving": {"bounds": {"ttft_s": 0.5}}}
    )
    assert config.serving.latency_bound_s is None


@pytest.mark.parametrize(
    ("scenario", "instead"),
    [
        ("offline", "the search starts with a launch in which all requests arrive at once"),
        ("single_stream", "closed_loop with serving.concurrency 1"),
        ("multi_stream", "serving.samples_per_request"),
    ],
)
def test_loadgens_own_scenarios_are_refused_with_what_shows_the_same(scenario: str, instead: str) -> None:
    serving = {"scenario": scenario, "latency_bound_s": 0.1}
    config = RunConfig.model_validate({"kind": "serving", "serving": serving})  # a run of before is read
    (refusal,) = check_place(config, Facts())
    assert refusal.keys == ("serving.scenario", "kind")
    assert "no longer measured" in refusal.cause
    assert instead in refusal.next_step

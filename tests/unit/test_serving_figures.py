"""Figures of a window of requests, from records written down by hand."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest

from gpuproof.launches.bounds import find_knee, judge_bound
from gpuproof.launches.served import Served, summarize_requests
from gpuproof.records.result import Doubt
from gpuproof.suites.serving.search import ServingRun
from gpuproof.verdict.doubts.base import Measured
from gpuproof.verdict.doubts.rules import doubts_about
from gpuproof.verdict.doubts.serving import lost_requests
from served_by_hand import SPEC, records


def window(latencies_s: list[float | None] | list[float], *, late_s: float = 0.0) -> Served:
    """A hundred requests a second of two samples each."""
    found = summarize_requests(records(latencies_s, late_s=late_s))
    assert found is not None
    return found


def doubts(served: Served) -> tuple[Doubt, ...]:
    return doubts_about(Measured(launch=served.as_launch(), served=served))


def test_latency_counts_from_the_schedule_and_rates_from_the_last_answer() -> None:
    found = window([0.5] * 150)  # due from 0.01 to 1.5 s, the last answered at 2.0 s
    assert found.requests_per_s == pytest.approx(75.0)
    assert found.samples_per_s == pytest.approx(150.0)
    assert found.latencies_s == pytest.approx([0.5] * 150)
    assert found.mean_batch == pytest.approx((1 * 2 + 4 * 3) / 5)


def test_percentiles_need_their_number_of_requests() -> None:
    by_q = {found.q: found for found in window([0.01] * 100).latency_percentiles()}
    assert by_q[50.0].value == pytest.approx(0.01)
    assert by_q[99.0].value is None
    assert by_q[99.0].reason == "p99 needs at least 299 values (100 measured)"


def test_a_failed_request_is_over_every_bound_and_has_no_latency() -> None:
    found = window([0.01] * 95 + [None] * 5)
    assert len(found.latencies_s) == 95
    assert found.verdict is not None
    assert (found.verdict.num_over, found.verdict.outcome) == (5, "missed")
    assert "requests-failed" in {doubt.code for doubt in doubts(found)}


def test_tokens_beyond_what_was_asked_are_invalid() -> None:
    found = window([0.01] * 100)
    assert "tokens-surplus" not in {doubt.code for doubt in doubts(found)}
    surplus = replace(found, window=replace(found.window, num_with_surplus=2))
    (doubt,) = [doubt for doubt in doubts(surplus) if doubt.code == "tokens-surplus"]
    assert doubt.validity == "INVALID"
    assert "for 2 of 100 requests" in doubt.reason


@pytest.mark.parametrize(
    ("num_requests", "num_over", "outcome"),
    [
        (458, 0, "undecided"),
        (459, 0, "met"),  # 0.99^459 = 0.00992
        (661, 1, "undecided"),
        (662, 1, "met"),  # MLPerf's own minimum, see measuring.md 2.2
        (1000, 10, "undecided"),  # as many as the percentile allows on average
        (1000, 20, "missed"),  # P[Binomial(1000, 1 %) ≥ 20] = 0.003
    ],
)
def test_the_early_stopping_rule(num_requests: int, num_over: int, outcome: str) -> None:
    assert judge_bound(num_requests=num_requests, num_over=num_over, bound_s=1, q=99).outcome == outcome


def test_a_generator_that_is_late_is_said() -> None:
    assert [f.code for f in doubts(window([0.01] * 400, late_s=0.002))] == ["generator-late"]
    assert doubts(window([0.01] * 400, late_s=0.0009)) == ()
    # Two milliseconds beside a latency of a second shape nothing.
    assert doubts(window([1.0] * 400, late_s=0.002)) == ()


def test_a_queue_that_grows_is_said() -> None:
    growing = window([0.01 + 0.0004 * k for k in range(400)])
    assert [doubt.code for doubt in doubts(growing)] == ["queue-grows"]
    steady = window([0.01 + 0.004 * (k % 10) for k in range(400)])
    assert doubts(steady) == ()


def test_the_knee_is_where_the_curve_turns_up() -> None:
    # 1/(1 − load): the classic queue. The chord from (0.1, 1.11) to (0.95, 20) is farthest at 0.8.
    loads = [0.1, 0.3, 0.5, 0.7, 0.8, 0.9, 0.95]
    assert find_knee([(load, 1 / (1 - load)) for load in loads]) == loads.index(0.8)


@pytest.mark.parametrize(
    "points", [[(1, 1.0), (2, 2.0), (3, 3.0), (4, 4.0)], [(1, 1.0), (2, 9.0)], [(1, 2.0)] * 5, []]
)
def test_no_knee_without_a_bend(points: list[tuple[float, float]]) -> None:
    assert find_knee(points) is None


def test_requests_without_a_record_or_with_two_are_invalid() -> None:
    whole = records([0.01] * 400)
    start, requests, window, result = whole.records
    for rows in ((requests, requests), (replace(requests, **{x: getattr(requests, x)[:-1] for x in TIMES}),)):
        found = summarize_requests(replace(whole, records=(start, *rows, window, result)))
        assert found is not None
        assert "requests-lost" in {
            doubt.code for doubt in lost_requests(found) if doubt.validity == "INVALID"
        }


TIMES = ("scheduled_s", "issued_s", "begun_s", "done_s")


def test_tokens_without_their_column_are_not_0() -> None:
    whole = records([0.01] * 4)
    start, requests, window, result = whole.records
    told = replace(requests, first_token_s=requests.done_s)
    found = summarize_requests(replace(whole, records=(start, told, window, result)))
    assert found is not None
    assert (found.tokens, found.tokens_per_s) == (None, None)
    assert np.isinf(found.series.token_s).all()


def test_a_first_token_after_the_end_is_refused() -> None:
    requests = records([0.01] * 4).records[1]
    for column in ("first_token_s", "first_content_s"):
        with pytest.raises(ValueError, match="first token"):
            replace(requests, **{column: (9.0,) * 4})


def test_launches_at_one_rate_are_one_point_of_the_curve() -> None:
    launches = [
        summarize_requests(records([wait_s] * 40, spec=replace(SPEC, rate_per_s=rate)))
        for rate, waits_s in ((10.0, [0.02]), (20.0, [0.02]), (80.0, [0.021, 0.1, 0.2]))
        for wait_s in waits_s
    ]
    run = SimpleNamespace(launches=tuple(launches))
    curve = ServingRun.curve.fget(run)  # type: ignore[attr-defined]
    assert [rate for rate, _ in curve] == [10.0, 20.0, 80.0]
    assert curve[-1][1] == pytest.approx(0.1)
    assert find_knee(curve) is None  # of 3 rates; the 5 launches would have one at 80/s

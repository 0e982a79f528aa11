"""When precision ends a window: the interval by hand, its coverage by simulation, and ranks that agree."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from itertools import islice
from math import inf, sqrt

import numpy as np
import pytest

import shapes
from gpuproof.worker.engine.loop import FixedSteps
from gpuproof.worker.engine.stopping import (
    MORE,
    NO_HELP,
    REACHED,
    TIME_UP,
    BatchMeans,
    PrecisionLimit,
    feed_plan,
    rarest_seen_stall,
    student_quantile,
)

STEP_S = 0.01
CHUNK = 25
"""Steps of 10 ms in a quarter of a second."""


def plan(
    target: float = 0.01, *, min_steps: int = 50, limit_s: float = 1e9, agree: Callable[[int], int] = int
) -> PrecisionLimit:
    return PrecisionLimit(target, min_steps=min_steps, limit_s=limit_s, agree=agree, step_s=STEP_S)


def run(limit: PrecisionLimit, times_s: Iterable[float]) -> list[float]:
    """Feed times chunk by chunk as the engine does; return those that were taken when the plan says stop."""
    source, done = iter(times_s), list[float]()
    while limit.next_steps(done=len(done), elapsed_s=len(done) * STEP_S, capacity=CHUNK):
        chunk = list(islice(source, CHUNK))
        assert chunk, "not enough times for this test"
        limit.take(chunk)
        done += chunk
    return done


def autoregressive(correlation: float, chance: random.Random) -> Iterator[float]:
    """Give step times about 1 with a spread of 5 % and this correlation of neighbours."""
    away = chance.gauss(0, 0.05)
    while True:
        yield 1 + away
        away = correlation * away + chance.gauss(0, 0.05 * sqrt(1 - correlation**2))


@pytest.mark.parametrize(
    ("freedom", "expected"),
    [(19, 2.0930), (31, 2.0395), (39, 2.0227), (63, 1.9983)],  # printed tables
)
def test_student_s_quantile(freedom: int, expected: float) -> None:
    assert student_quantile(freedom) == pytest.approx(expected, abs=0.0005)


def test_the_interval_of_independent_steps_by_hand() -> None:
    batches = BatchMeans()
    # Blocks of 9, 11, 11, 9: mean 10, squares 40 · 1; neighbours differ or are alike in turn.
    batches.add([9.0, 11.0, 11.0, 9.0] * 10)
    assert (batches.size, batches.num_values, len(batches.means)) == (1, 40, 40)
    found = sum(a * b for a, b in zip([-1, 1, 1, -1] * 10, ([-1, 1, 1, -1] * 10)[1:], strict=False)) / 40
    assert batches.correlation == pytest.approx(found + (1 + 3 * found) / 40)
    rho = max(0.0, batches.correlation)
    # s² = 40/39; half-width t(39)·√(s²/40)/10 = 2.0227 · 0.16013/10 = 3.239 %, widened by the correlation.
    assert batches.relative_half_width() == pytest.approx(0.03239 * sqrt((1 + rho) / (1 - rho)), rel=1e-3)


def test_batches_are_joined_in_pairs_and_keep_the_mean() -> None:
    batches = BatchMeans()
    assert not batches.add([float(i) for i in range(63)])
    assert batches.add([63.0])
    assert (batches.size, batches.means) == (2, [0.5 + 2 * i for i in range(32)])
    assert batches.add([float(i) for i in range(64, 1000)])
    assert batches.num_values == 1000
    assert 32 <= len(batches.means) < 64
    assert batches.means[0] == pytest.approx(sum(range(batches.size)) / batches.size)


def test_too_few_steps_know_nothing() -> None:
    batches = BatchMeans()
    batches.add([1.0] * 19)
    assert (batches.relative_half_width(), batches.correlation) == (inf, 1.0)
    assert plan().half_width is None


@pytest.mark.parametrize(
    ("min_steps", "limit_s", "expected"),
    [
        (60, 1e9, 325),  # equal steps show no drift, however far it is to the limit
        (60, 6.0, 300),  # half the limit
        (1510, 60.0, 1525),  # the first chunk's end from 1,510 on
    ],
)
def test_equal_steps_end_at_the_floor_of_steps_or_half_the_limit(
    min_steps: int, limit_s: float, expected: int
) -> None:
    limit = plan(min_steps=min_steps, limit_s=limit_s)
    assert len(run(limit, [STEP_S] * 2000)) == expected
    assert limit.stop_reason == "precision reached"
    assert limit.half_width == pytest.approx(0.0, abs=1e-9)
    assert limit.rarest_seen_stall == rarest_seen_stall(expected)


def test_a_drift_is_the_slope_s_far_end_by_hand() -> None:
    batches = BatchMeans()
    # 20 means of 10 + i/100 and ± 0.1 in fours that no line explains: Σ(i − 9.5)² = 665.
    means = [10 + i / 100 + 0.1 * (-1) ** (i // 2) for i in range(20)]
    batches.add(means)
    line = np.polyfit(np.arange(20), means, 1)
    rest = float(np.sum((np.polyval(line, np.arange(20)) - means) ** 2)) / 18
    rho = max(0.0, batches.correlation)
    reach = 2.101 * sqrt(rest / 665 * (1 + rho) / (1 - rho))  # t(18) = 2.101
    expected = (abs(line[0]) + reach) * 1000 / 2 / np.mean(means)
    assert batches.relative_drift(1000) == pytest.approx(expected, rel=1e-3)
    few = BatchMeans()
    few.add([1.0] * 19)
    assert few.relative_drift(1000) == inf


@pytest.mark.parametrize(
    ("deviation", "limit_s", "least", "most"),
    [
        (0.001, 60.0, 325, 450),  # 325 steps show that over 60 s nothing moves by 1 %
        (0.01, 60.0, 600, 1200),  # 2 · 1 % · √12 / √n · 6,000 / n / 2 = 1 % at n = 755
        (0.01, 600.0, 1500, 1700),  # over 600 s that takes longer than the floor of 15 s
        (0.05, 60.0, 1500, 2500),
    ],
)
def test_steps_that_hardly_scatter_end_before_the_floor(
    deviation: float, limit_s: float, least: int, most: int
) -> None:
    rows = shapes.noisy(deviation).draw(np.random.default_rng(5), 11, 6025)
    lengths = sorted(len(run(plan(min_steps=100, limit_s=limit_s), row.tolist())) for row in rows)
    assert least <= lengths[len(lengths) // 2] <= most


@pytest.mark.parametrize(
    ("num_steps", "expected"),
    [(1, 1), (2, 1), (5, 2), (100, 33), (1500, 501), (10**8, 33_380_820)],
)
def test_the_rarest_stall_that_so_many_steps_show(num_steps: int, expected: int) -> None:
    found = rarest_seen_stall(num_steps)
    assert found == pytest.approx(expected, rel=1e-6)
    if found > 1:
        assert (1 - 1 / found) ** num_steps <= 0.05
    assert (1 - 1 / (found + 1)) ** num_steps > 0.05


def test_halves_that_differ_are_no_mean_to_stop_at() -> None:
    batches = BatchMeans()
    batches.add([0.95, 1.05] * 15)
    assert batches.halves_agree(within=0.0)
    # Half the interval of 60 steps is 2.0 · 0.058/√60 = 1.5 %, and the halves are 6 % apart.
    batches.add([1.01, 1.11] * 15)
    assert not batches.halves_agree(within=0.01)
    assert batches.halves_agree(within=0.07)
    assert batches.correlation < 0
    few = BatchMeans()
    few.add([1.0] * 19)
    assert not few.halves_agree(within=1.0)


def reached(shape: shapes.Shape, *, num_runs: int, target: float = 0.01) -> tuple[int, int]:
    """Stop by precision within 60 s; return how often it was reached, and how often that was right."""
    times, right = 0, 0
    for row in shape.draw(np.random.default_rng(11), num_runs, 6025):
        limit = plan(target, min_steps=100, limit_s=60.0)
        done = run(limit, row.tolist())
        if limit.stop_reason == "precision reached":
            assert limit.half_width is not None
            mean = sum(done) / len(done)
            times, right = times + 1, right + (abs(mean - shape.mean) <= limit.half_width * mean)
    return times, right


@pytest.mark.parametrize(
    "shape",
    [
        shapes.stalls(300, 10),
        shapes.stalls(300, 50),
        shapes.rare(0.01, 10),
        *(
            shapes.Shape(draw=shapes.levels(shapes.ramp, shapes.noisy(deviation)), mean=1.025)
            for deviation in (0.002, 0.01, 0.03)
        ),
    ],
    ids=["stalls × 10", "stalls × 50", "1 % × 10", "ramp, 0.2 %", "ramp, 1 %", "ramp, 3 %"],
)
def test_precision_is_not_reached_where_the_mean_is_not_known(shape: shapes.Shape) -> None:
    assert reached(shape, num_runs=12) == (0, 0)


def test_a_window_that_saw_no_stall_names_those_that_it_could_not_see() -> None:
    # None in n steps: 0.998ⁿ, which is 52 % of 325 and 5 % of 1,500. Such windows are the exception.
    times = 0
    for row in shapes.rare(0.002, 50).draw(np.random.default_rng(11), 40, 6025):
        limit = plan(min_steps=100, limit_s=60.0)
        done = run(limit, row.tolist())
        if limit.stop_reason == "precision reached":
            times += 1
            assert max(done) < 10  # with a stall in it, it is not reached
            assert limit.rarest_seen_stall is not None
            assert limit.rarest_seen_stall < 500 or len(done) >= 1500
    assert 0 < times <= 14


def test_small_stalls_in_regular_turns_are_reached_and_right() -> None:
    times, right = reached(shapes.stalls(300, 2), num_runs=20)
    assert times >= 18
    assert right >= 0.9 * times


@pytest.mark.parametrize("correlation", [0.0, 0.5, 0.8])
def test_the_interval_at_the_stop_covers_the_true_mean(correlation: float) -> None:
    chance = random.Random(f"steps {correlation}")
    num_runs, covered, reasons = 150, 0, Counter[str]()
    for _ in range(num_runs):
        limit = plan(0.006)
        done = run(limit, islice(autoregressive(correlation, chance), 40_000))
        mean = sum(done) / len(done)
        assert limit.half_width is not None
        covered += abs(mean - 1) <= limit.half_width * mean
        reasons[limit.stop_reason] += 1
    # 95 % less what looking again and again costs: 0.93 ± 3 standard errors of 0.02.
    assert covered / num_runs >= 0.87
    assert reasons["precision reached"] >= 0.96 * num_runs


def test_a_wide_spread_takes_more_steps_than_a_narrow_one() -> None:
    chance = random.Random(5)
    narrow, wide = ([1 + chance.gauss(0, spread) for _ in range(80_000)] for spread in (0.03, 0.12))
    few, many = (len(run(plan(0.0012), times)) for times in (narrow, wide))
    # Sixteen times, in expectation: n = (2 · spread / target)².
    assert 4 < many / few < 64


def test_steps_that_drift_are_not_measured_for_ever() -> None:
    chance = random.Random(7)
    times = [1 + 0.5 * i / 50_000 + chance.gauss(0, 0.02) for i in range(50_000)]
    limit = plan(0.001)
    assert len(run(limit, times)) < 10_000
    assert limit.stop_reason == "more samples do not help"


def test_the_time_limit_is_hard() -> None:
    chance = random.Random(9)
    limit = plan(0.001, limit_s=2.0)
    assert len(run(limit, [1 + chance.gauss(0, 0.5) for _ in range(5000)])) == 200
    assert limit.stop_reason == "time limit"
    assert limit.half_width is not None


def test_chunks_fit_the_time_that_is_left_and_the_clock() -> None:
    limit = plan(limit_s=0.875)
    assert limit.next_steps(done=0, elapsed_s=0.0, capacity=1024) == 25
    assert limit.next_steps(done=48, elapsed_s=0.75, capacity=1024) == 8  # of 1/64 s each
    assert limit.next_steps(done=32, elapsed_s=0.5, capacity=3) == 3


@pytest.mark.parametrize(
    ("others", "reason"),
    [
        (REACHED, "precision reached"),
        (NO_HELP, "more samples do not help"),
        (MORE, ""),
        (TIME_UP, "time limit"),
    ],
)
def test_a_rank_stops_when_all_do_and_for_the_reason_of_all(others: int, reason: str) -> None:
    limit = plan(agree=lambda own: min(own, others) if own <= REACHED else own)
    limit.take([STEP_S] * 100)  # this rank has reached its precision
    assert (limit.next_steps(done=100, elapsed_s=15.0, capacity=1024) == 0) == bool(reason)
    assert limit.stop_reason == reason


def test_only_a_plan_that_stops_by_times_hears_them() -> None:
    heard: list[float] = []
    assert feed_plan(FixedSteps(3), heard.extend) == heard.extend
    limit = plan()
    feed_plan(limit, heard.extend)([0.1] * 30)
    assert heard == [0.1] * 30
    assert limit.half_width == pytest.approx(0.0, abs=1e-9)

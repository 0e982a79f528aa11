"""Windows that were not steady are never called steady, flat ones seldom unsteady: simulated, fixed seeds."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import shapes
from gpuproof.statistics.series import judge_steadiness
from shapes import autoregressive, noisy

NOISES = {
    "0.1 %": noisy(0.001),
    "1 %": noisy(0.01),
    "AR(1) 0.9": noisy(0.01, autoregressive(0.9)),
    "5 %": noisy(0.05),
}
SHAPES = list(shapes.unsteady(noisy(0.01)))


def num_flagged(draw: shapes.Draw, *, windows: int, steps: int, seed: int = 0) -> int:
    found = [judge_steadiness(times) for times in draw(np.random.default_rng(seed), windows, steps)]
    return sum(one is None or one.verdict != "steady" or one.stalled for one in found)


@pytest.mark.parametrize("steps", [60, 100, 600, 5000])
@pytest.mark.parametrize("noise", NOISES)
@pytest.mark.parametrize("name", SHAPES)
def test_an_unsteady_window_is_flagged(name: str, noise: str, steps: int) -> None:
    draw = shapes.unsteady(NOISES[noise])[name]
    assert num_flagged(draw, windows=40, steps=steps) == 40


@pytest.mark.parametrize("name", shapes.STEADY)
@pytest.mark.parametrize("steps", [60, 500, 2000])
def test_a_flat_window_is_seldom_flagged(name: str, steps: int) -> None:
    shape, least = shapes.STEADY[name]
    if steps >= least:
        assert num_flagged(shape.draw, windows=150, steps=steps) <= 3  # 2 %


def test_what_scatters_too_much_to_tell_is_said_so() -> None:
    drawn = noisy(0.05).draw(np.random.default_rng(1), 300, 60)
    found = [judge_steadiness(times) for times in drawn]
    verdicts = [one.verdict for one in found if one is not None]
    assert verdicts.count("steady") <= 6
    assert verdicts.count("cannot tell") >= 270
    longer = noisy(0.05).draw(np.random.default_rng(1), 100, 1000)
    assert num_flagged(lambda *_: longer, windows=100, steps=1000) <= 2


def test_levels_and_their_places_by_hand() -> None:
    # 96 steps in parts of 8: the first 24 take 2, the others 1.
    found = judge_steadiness([2.0] * 24 + [1.0] * 72)
    assert found is not None
    assert (found.verdict, found.level_spread, found.by_noise) == ("unsteady", 1.0, 0.0)
    assert found.highest_at == pytest.approx(4 / 96)
    assert found.num_outlying == 24
    assert found.lost_share == pytest.approx(24 / 120)
    assert found.stalled


@pytest.mark.parametrize("turn", [[1.0, 1.0, 1.0, 1.6], [1.0, 3.0], [1.0, 1.0, 2.0, 1.0, 2.0, 1.0, 1.0]])
@pytest.mark.parametrize("deviation", [0.001, 0.03])
def test_the_pace_of_long_steps_is_named(turn: list[float], deviation: float) -> None:
    noise = 1 + deviation * np.random.default_rng(1).standard_normal(20 * len(turn) + 1)
    found = judge_steadiness(np.resize(turn, noise.size) * noise)
    assert found is not None
    assert (found.stalled, found.period) == (True, len(turn))


@pytest.mark.parametrize(
    ("name", "shape"), [("often", shapes.rare(0.25, 2)), ("spells", shapes.bursts(0.05, 5))]
)
@pytest.mark.parametrize("steps", [20, 60, 300])
def test_stops_by_chance_keep_no_pace(name: str, shape: shapes.Shape, steps: int) -> None:
    drawn = shape.draw(np.random.default_rng(6), 200, steps)
    judged = [found for times in drawn if (found := judge_steadiness(times)) is not None]
    assert sum(found.stalled for found in judged) >= 40, name
    assert sum(found.period is not None for found in judged) <= 2


def test_steps_that_are_long_and_short_in_turns_keep_one_level() -> None:
    for num_steps in range(20, 130):
        found = judge_steadiness([1.0 + 0.08 * (-1) ** i for i in range(num_steps)])
        assert found is not None
        assert found.level_spread == pytest.approx(0.0, abs=1e-12)


def test_each_of_a_few_steps_is_looked_at() -> None:
    assert judge_steadiness([1.0] * 9) is None
    assert judge_steadiness([0.0] * 60) is None
    few = judge_steadiness([1.0] * 11 + [1.06])
    assert few is not None
    assert (few.verdict, few.stalled) == ("cannot tell", False)


@settings(max_examples=60, derandomize=True, deadline=None)
@given(
    st.lists(st.integers(1, 1000).map(float), min_size=10, max_size=90), st.sampled_from((0.5, 2.0, 1024.0))
)
def test_the_unit_of_time_changes_nothing(times: list[float], scale: float) -> None:
    one, other = judge_steadiness(times), judge_steadiness([scale * time for time in times])
    assert one is not None
    assert one == other
    assert 0 <= one.lost_share < 1
    assert one.level_spread >= 0
    assert judge_steadiness(times[::-1]) is not None

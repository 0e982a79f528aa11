"""Spread and outliers, worked out by hand."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gpuproof.statistics.dispersion import (
    BY_CHANCE,
    Z_LIMIT,
    coefficient_of_variation,
    median_absolute_deviation,
    modified_z_scores,
    noise,
    outliers,
)

# Median 10; distances 2, 1, 0, 1, 90; their median 1.
FIVE = [8.0, 9.0, 10.0, 11.0, 100.0]


def test_median_absolute_deviation() -> None:
    assert median_absolute_deviation(FIVE) == 1.0
    assert median_absolute_deviation([]) is None


def test_modified_z_scores() -> None:
    # 0.6745·(x − 10)/1
    assert modified_z_scores(FIVE) == pytest.approx([-1.34898, -0.67449, 0, 0.67449, 60.70408], abs=1e-5)


def test_a_zero_mad_falls_back_to_the_mean_deviation() -> None:
    # Distances 0, 0, 0, 0, 5: MAD 0, mean 1; score 0.797885·5/1.
    assert modified_z_scores([1.0, 1.0, 1.0, 1.0, 6.0]) == pytest.approx([0, 0, 0, 0, 3.98942], abs=1e-5)


def test_equal_values_have_no_scores_to_speak_of() -> None:
    assert modified_z_scores([3.0, 3.0, 3.0]).tolist() == [0, 0, 0]
    assert modified_z_scores([]).size == 0


def test_outliers_are_reported_with_both_means() -> None:
    found = outliers(FIVE)
    assert found.indices == (4,)
    # (8 + 9 + 10 + 11 + 100)/5 = 27.6; (8 + 9 + 10 + 11)/4 = 9.5
    assert found.mean == pytest.approx(27.6)
    assert found.mean_without == 9.5
    assert (found.num_samples, found.z_limit) == (5, 3.5)


def test_no_samples_have_no_outliers_and_no_mean() -> None:
    found = outliers([])
    assert (found.indices, found.mean, found.mean_without) == ((), None, None)


def test_coefficient_of_variation_divides_by_n_minus_1() -> None:
    # Mean 4, squares 4 + 0 + 4 = 8, variance 8/2 = 4, sd 2: 2/4. By n it would be 0.408.
    assert coefficient_of_variation([2.0, 4.0, 6.0]) == 0.5
    assert coefficient_of_variation([-2.0, -4.0, -6.0]) == 0.5


@pytest.mark.parametrize("values", [[], [1.0], [-1.0, 1.0]])
def test_no_coefficient_of_variation(values: list[float]) -> None:
    assert coefficient_of_variation(values) is None


def test_noise_is_the_interquartile_range_over_the_median() -> None:
    # 1 … 5: quartiles at positions 1 and 3 are 2 and 4; (4 − 2)/3.
    assert noise([5.0, 4.0, 3.0, 2.0, 1.0]) == pytest.approx(2 / 3)


@pytest.mark.parametrize("values", [[], [1.0, 2.0, 3.0], [-1.0, 0.0, 0.0, 1.0]])
def test_no_noise(values: list[float]) -> None:
    assert noise(values) is None


@pytest.mark.parametrize(("values", "message"), [([1.0, np.nan], "finite"), ([[1.0], [2.0]], "dimension")])
def test_what_is_no_list_of_finite_numbers_is_refused(values: list[float], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        outliers(values)


@settings(deadline=None)
@given(
    values=st.lists(st.integers(-1000, 1000).map(float), min_size=1, max_size=50),
    shift=st.integers(-1000, 1000),
    scale=st.sampled_from((0.25, 2.0, 1024.0)),
)
def test_scores_do_not_depend_on_the_unit_or_the_origin(
    values: list[float], shift: int, scale: float
) -> None:
    moved = np.array(values) * scale + shift * scale
    assert modified_z_scores(moved) == pytest.approx(modified_z_scores(values), abs=1e-9)
    assert len(outliers(values).indices) <= len(values) / 2


@pytest.mark.parametrize("num", BY_CHANCE)
def test_how_often_chance_alone_makes_an_outlier_is_as_said(num: int) -> None:
    drawn = np.random.default_rng(num).standard_normal((2000, num))
    marked = sum(bool((np.abs(modified_z_scores(row)) > Z_LIMIT).any()) for row in drawn)
    assert marked / len(drawn) == pytest.approx(BY_CHANCE[num], abs=0.03)

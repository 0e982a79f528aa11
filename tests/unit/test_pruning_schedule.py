"""When is a model to be how sparse? Against closed forms worked out by hand."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpuproof.base.errors import UsageError
from gpuproof.records.work.training import PruningSpec
from gpuproof.worker.step.pruning import SparsityPlan

CUBIC = SparsityPlan(target=0.8, begin=100, end=500, every=50)
SPEC = PruningSpec(method="magnitude", target_sparsity=0.7)


@pytest.mark.parametrize(
    ("update", "sparsity"),
    [(0, 0), (100, 0), (200, 0.8 * (1 - 27 / 64)), (300, 0.8 * 7 / 8), (500, 0.8), (10**6, 0.8)],
)
def test_the_cubic_ramp_is_zhus_and_guptas(update: int, sparsity: float) -> None:
    assert math.isclose(CUBIC.sparsity_after(update), sparsity, abs_tol=1e-12)


@pytest.mark.parametrize(("update", "sparsity"), [(100, 0), (200, 0.2), (400, 0.6), (500, 0.8), (501, 0.8)])
def test_the_linear_ramp_is_even(update: int, sparsity: float) -> None:
    assert math.isclose(replace(CUBIC, ramp="linear").sparsity_after(update), sparsity, abs_tol=1e-12)


def test_weights_are_chosen_on_the_ramp_and_at_its_end_only() -> None:
    plan = replace(CUBIC, end=530)
    chosen = [update for update in range(1, 1000) if plan.chooses_at(update)]
    assert chosen == [150, 200, 250, 300, 350, 400, 450, 500, 530]


@given(
    begin=st.integers(0, 50),
    length=st.integers(1, 200),
    every=st.integers(1, 300),
    target=st.floats(0.01, 0.99),
)
def test_sparsity_never_falls_and_the_target_is_always_reached(
    begin: int, length: int, every: int, target: float
) -> None:
    plan = SparsityPlan(target=target, begin=begin, end=begin + length, every=every)
    chosen = [plan.sparsity_after(update) for update in range(1, 300) if plan.chooses_at(update)]
    assert chosen == sorted(chosen)
    assert chosen[-1] == target


def test_without_an_end_the_ramp_takes_three_quarters_of_all_updates() -> None:
    assert SparsityPlan.of(SPEC, total_steps=400).end == 300
    assert SparsityPlan.of(replace(SPEC, end_step=40), total_steps=None).end == 40


@pytest.mark.parametrize(
    ("spec", "total_steps", "said"),
    [
        (SPEC, None, "the number of updates is not known"),
        (replace(SPEC, begin_step=300), 400, "pruning would end at update 300, but starts after update 300"),
    ],
)
def test_pruning_without_an_update_left_for_it_is_refused(
    spec: PruningSpec, total_steps: int | None, said: str
) -> None:
    with pytest.raises(UsageError, match=said):
        SparsityPlan.of(spec, total_steps=total_steps)

"""Tests of planning without a device: which launches there are, and which hosts form the pair."""

from itertools import permutations

import pytest
from gpuproof_example_toy import TOY
from gpuproof_example_toy.plan import ToyState

from gpuproof.base.errors import UsageError
from gpuproof.config.models import RunConfig
from gpuproof.suites.base import THIS_MACHINE, HostPlace, Suite, launch_key

RATES = {"a": 30.0, "b": 10.0, "c": 20.0}
PLACES = tuple(HostPlace(name=name) for name in RATES)


def begun(places: tuple[HostPlace, ...] = PLACES, **block: object) -> ToyState:
    return TOY.begin(RunConfig.model_validate({"suite": "toy", "toy": block}), places)


def ended(state: ToyState, order: tuple[str, ...]) -> ToyState:
    for name in order:
        state = state.with_rate((f"alone@{name}", 0), RATES[name], hosts=(name,))
    return state


def keys(state: ToyState) -> list[tuple[str, int]]:
    return [launch_key(case) for case in TOY.next(state, {}, None)]


def test_each_host_comes_first_then_the_two_slowest_in_whichever_order_they_ended() -> None:
    state = begun(rounds=1)
    assert isinstance(TOY, Suite)
    assert keys(state) == [("alone@a", 0), ("alone@b", 0), ("alone@c", 0)]
    assert TOY.remaining(state).num_launches == 4
    assert all(keys(ended(state, order)) == [("pair@b+c", 0)] for order in permutations(RATES))
    assert keys(ended(begun(rounds=1, pair="fastest"), ("a", "b", "c"))) == [("pair@a+c", 0)]


def test_a_pair_that_was_begun_is_kept_though_its_rates_change() -> None:
    state = begun(rounds=2).with_rate(("pair@a+c", 0), 40.0, hosts=("a", "c"))
    assert keys(ended(state, ("a", "b", "c")))[-1] == ("pair@a+c", 1)


def test_one_host_that_measured_or_one_machine_makes_no_pair() -> None:
    state = ended(begun(PLACES[:2], rounds=1), ("a",)).with_rate(("alone@b", 0), None, hosts=("b",))
    assert (keys(state), TOY.remaining(state).num_launches) == ([], 0)
    assert keys(begun(THIS_MACHINE)) == [("alone", 0), ("alone", 1)]


def test_a_recipe_of_another_kind_is_refused() -> None:
    config = RunConfig.model_validate({"suite": "toy", "kind": "inference"})
    with pytest.raises(UsageError, match="the suite toy does not support this"):
        TOY.begin(config, PLACES)

"""Keys of a recipe that contradict each other, or decide nothing, are refused with the key and the cause."""

from __future__ import annotations

from typing import Any

import pytest

from gpuproof.base.errors import UsageError
from gpuproof.config.load import load_config
from gpuproof.config.rules.base import Facts
from gpuproof.config.settings import ConfigError
from gpuproof.suites.ab.plan import AbOptions
from gpuproof.suites.base import HostPlace
from gpuproof.suites.points.plan import config_at
from gpuproof.suites.scale.speed_up import Thresholds, advise
from gpuproof.suites.validate.plan import begin_order
from gpuproof.verdict.aspects import RequiredAspect

HERE = Facts(hosts=(), environment={})


def test_a_required_row_that_nothing_decides_is_refused() -> None:
    with pytest.raises(ValueError, match="a GPU: name the measure or the checks"):
        RequiredAspect(aspect="compute", title="a GPU", labels={"stage": "gemm"})


def test_a_point_that_contradicts_itself_says_why() -> None:
    config = load_config("quick", facts=HERE).config
    with pytest.raises(UsageError) as caught:
        config_at(config, {"distributed.strategy": "hsdp"})
    assert caught.value.place == "distributed.strategy"
    assert "creates groups of distributed.shard_size ranks" in caught.value.cause


@pytest.mark.parametrize("keys", [{"roundz": 3}, {"heat_s": "abc"}, {"heat_s": [1]}])
def test_keys_of_a_probe_stage_are_checked(keys: dict[str, Any]) -> None:
    text = str(keys).replace("'", "")
    config = load_config("validate", [f"--validate.probes={{fingerprint: {text}}}"], facts=HERE).config
    with pytest.raises(UsageError, match=f"probe.fingerprint.{next(iter(keys))}"):
        begin_order(config, [HostPlace(name="", num_devices=1)])


def test_the_number_of_pairs_has_an_end() -> None:
    with pytest.raises(ValueError, match="max_pairs must be at most 1000"):
        AbOptions(max_pairs=10**12)


@pytest.mark.parametrize("suite", ["sweep", "collective", "serving", "probe", "load", "batch_limit"])
def test_a_suite_measures_only_its_own_recipes(suite: str) -> None:
    with pytest.raises(ConfigError, match=f"the suite {suite} does not measure a recipe of kind training"):
        load_config("quick", [f"--suite={suite}"], facts=HERE)


def test_a_recipe_may_name_its_own_suite() -> None:
    assert load_config("quick", ["--suite=recipe"], facts=HERE).config.suite == "recipe"


@pytest.mark.parametrize(
    "words",
    [
        ["--serving.scenario=closed_loop", "--serving.rate_per_s=5"],
        ["--serving.scenario=closed_loop", "--serving.arrivals=ramp", "--serving.latency_bound_s=null"],
    ],
)
def test_users_of_a_closed_loop_have_no_schedule(words: list[str]) -> None:
    with pytest.raises(ConfigError, match="each user of a closed loop waits for a response"):
        load_config("serving", words, facts=HERE)


def test_the_range_in_a_rule_of_thumb_is_that_of_its_thresholds() -> None:
    own = Thresholds(medium_model_max_params=10_000_000, large_model_min_params=20_000_000)
    assert advise(15_000_000, 128, own).reason == "Model in 10M-20M param range - test required"
    assert "5M-10M" in advise(7_000_000, 128, Thresholds()).reason


@pytest.mark.parametrize("value", ["true", '"5"'])
def test_options_of_suites_and_workloads_are_not_converted(value: str) -> None:
    with pytest.raises(ConfigError, match="expected a number"):
        load_config("validate", [f"--validate.window_s={value}"], facts=HERE)
    words = ["--data.name=synthetic", "--model.num_classes=null", "--model.name=decoder"]
    with pytest.raises(ConfigError, match="expected a whole number"):
        load_config("quick", [*words, f"--model.options.num_layers={value}"], facts=HERE)

"""Keys of a recipe that contradict each other, or decide nothing, are refused with the key and the cause."""

from __future__ import annotations

from typing import Any

import pytest

from gpuproof.base.errors import UsageError
from gpuproof.config.load import load_config
from gpuproof.config.rules.base import Facts
from gpuproof.config.settings import ConfigError
from gpuproof.suites.ab.plan import AbOptions, begin
from gpuproof.suites.base import HostPlace
from gpuproof.suites.points.plan import config_at
from gpuproof.suites.scale import SUITE as SCALE
from gpuproof.suites.scale.speed_up import Thresholds, advise
from gpuproof.suites.validate import SUITE as VALIDATE
from gpuproof.suites.validate.plan import begin_order

HERE = Facts(hosts=(), environment={})


def test_a_required_row_that_nothing_decides_is_refused() -> None:
    row = "{aspect: compute, title: a GPU, labels: {stage: gemm}}"
    with pytest.raises(ConfigError, match="a GPU: name the measure or the checks"):
        load_config("validate", [f"--validate.aspects=[{row}]"], facts=HERE)


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


@pytest.mark.parametrize(
    ("recipe", "key", "value"),
    [
        ("scale", "scale.memory_safety_margin", "2"),
        ("scale", "scale.device_price", "0"),
        ("validate", "validate.window_s", "0"),
        ("validate", "validate.time_budget_s", "0"),
        ("validate", "validate.expected_gpus", "0"),
    ],
)
def test_a_value_that_a_suite_refuses_is_told_where_it_was_set(recipe: str, key: str, value: str) -> None:
    with pytest.raises(ConfigError, match=f"^command line: {key}: "):
        load_config(recipe, [f"--{key}={value}"], facts=HERE)


def test_a_file_holds_a_block() -> None:
    words = ["--probe.name=storage", "--probe.storage.folder=/tmp", "--probe.storage.file_bytes=8M"]
    with pytest.raises(ConfigError, match=r"a file of 8,388,608 bytes holds no block of 1,073,741,824"):
        load_config("probe", [*words, "--probe.storage.block_bytes=1G"], facts=HERE)
    assert load_config("probe", words, facts=HERE).config.probe.storage.file_bytes == 2**23


def test_a_scaling_study_sets_its_own_sizes() -> None:
    config = load_config("scale", ["--data.batch_size=7"], facts=HERE).config
    with pytest.raises(UsageError, match="the suite scale does not support this"):
        SCALE.begin(config, [HostPlace(name="")])


def test_a_drift_is_not_negative() -> None:
    with pytest.raises(ConfigError, match=r"max_drift must be 0 or more"):
        load_config("validate", ["--validate.max_drift=-1"], facts=HERE)


@pytest.mark.parametrize("key", ["probe.nccl_tests.program", "serving.endpoint.url"])
def test_what_a_text_must_be_is_told(key: str) -> None:
    with pytest.raises(ConfigError) as caught:
        load_config("quick", [f"--{key}=abc"], facts=HERE)
    assert "printable characters" not in str(caught.value)


@pytest.mark.parametrize(("env", "place"), [("{MY-VAR: 1}", "MY-VAR"), ("{A: [1]}", "A")])
def test_a_wrong_variable_of_a_command_is_told(env: str, place: str) -> None:
    with pytest.raises(ConfigError, match=f"command.env.{place}: expected a mapping of names"):
        load_config("quick", ["--kind=command", "--command.argv=[ls]", f"--command.env={env}"])


def test_a_matrix_of_exclusions_alone_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"matrix.exclude: no key is swept"):
        load_config("quick", ["--matrix.exclude=[]"], facts=HERE)


@pytest.mark.parametrize(
    "word", ["--matrix.kind=[training, collective]", "--matrix.include=[{kind: collective}]"]
)
def test_a_sweep_is_of_models(word: str) -> None:
    with pytest.raises(ConfigError, match=r"the points of a sweep are of kind training or inference"):
        load_config("quick", [word], facts=HERE)
    assert load_config("quick", ["--matrix.kind=[training, inference]"], facts=HERE)


def test_a_side_is_of_a_model() -> None:
    words = ["--suite=ab", "--ab.b={kind: collective}"]
    with pytest.raises(UsageError, match=r"side b is of kind collective"):
        begin(load_config("quick", words, facts=HERE).config)


def test_references_are_read_before_anything_is_measured() -> None:
    config = load_config("validate", ["--validate.references=abc"], facts=HERE).config
    with pytest.raises(UsageError) as caught:
        VALIDATE.begin(config, [HostPlace(name="", num_devices=1)])
    assert caught.value.place == "validate.references"

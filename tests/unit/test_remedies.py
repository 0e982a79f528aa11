"""Every remedy that names keys is applied to the recipe that it is printed for, and the recipe stays valid.

Troubles are launches written by hand, of each kind of recipe that runs a model; what a doubt advises is read
as a user reads it (raise KEY, set KEY to VALUE, KEY=VALUE, lower KEY), and each alternative is tried.
"""

from __future__ import annotations

import random
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import pytest

from gpuproof.config.load import load_config
from gpuproof.config.models import RunConfig
from gpuproof.hardware.boards import find_peak
from gpuproof.records.result import Doubt
from gpuproof.statistics.launches import interval_of_launches
from gpuproof.suites.load.conclude import with_suite_remedy
from gpuproof.suites.validate.measured import OF_WINDOWS, _renamed
from gpuproof.verdict.aspects import OTHER_ARITHMETIC
from gpuproof.verdict.doubts.base import Measured
from gpuproof.verdict.doubts.rules import doubts_about, doubts_about_differences
from gpuproof.worker.step.precision import USE_OTHERS
from records_by_hand import H200, QUIET, Story, case, one_rank, setup, window

BLOCKS = (
    "run|benchmark|training|data|distributed|model|inference|serving|load|monitoring|profiling|probe|validate"
)
KEY = rf"(?:{BLOCKS})(?:\.[a-z_]+)+"
KEYS = rf"{KEY}(?:(?:, or|,| or| and) {KEY})*"
PHRASES = (
    (re.compile(rf"({KEY})=(\w+)"), "set"),
    (re.compile(rf"[Ss]et ({KEY}) to (\w+)"), "set"),
    (re.compile(rf"or ({KEY}) to (\w+)"), "set"),
    (re.compile(rf"[Rr]aise ({KEYS})()"), "raise"),
    (re.compile(rf"longer \(({KEYS})\)()"), "raise"),
    (re.compile(rf"lower ({KEYS})()"), "lower"),
    (re.compile(rf"set ({KEY}) lower()"), "lower"),
    (re.compile(rf"set ({KEY})()(?! to| lower)"), "choose"),
    (re.compile(rf"(?:choose|omit) [a-z ]+ \(({KEY})\)()"), "choose"),
)
CHOSEN = {"run.target_precision": 0.05, "distributed.devices": [1]}
"""What a user would write where a remedy gives no value."""


def changes(remedy: str, config: RunConfig) -> Iterator[str]:
    """Yield the words that each alternative of a remedy stands for."""
    rest = re.sub(r"gpuproof [a-z]+ .*", "", remedy)
    for phrase, verb in PHRASES:
        for found in phrase.finditer(rest):
            for key in re.findall(KEY, found[1]):
                yield f"--{key}={found[2] if verb == 'set' else other(key, verb, config)}"
        rest = phrase.sub("", rest)
    assert not re.search(KEY, rest), f"nobody can tell what to do with {rest!r}"


def other(key: str, verb: str, config: RunConfig) -> Any:
    if verb == "choose":
        return CHOSEN[key]
    if key.startswith("validate."):
        return 10
    value: Any = config
    for part in key.split("."):
        value = value[part] if isinstance(value, Mapping) else getattr(value, part)
    default = 64 if value is None else value
    return (
        default * 2 if verb == "raise" else max(1, default // 2) if isinstance(default, int) else default / 2
    )


@dataclass(frozen=True, kw_only=True)
class Recipe:
    """A recipe as a user has it, and a launch of it by hand."""

    words: tuple[str, ...]
    case: Mapping[str, Any] = field(default_factory=dict)
    setup: Mapping[str, Any] = field(default_factory=dict)
    window: Mapping[str, Any] = field(default_factory=dict)


BY_STEPS = (
    *("--benchmark.measure_by=steps", "--benchmark.measure_steps=100", "--distributed.threads_per_rank=2"),
    *("--benchmark.count_flops=false", "--benchmark.log_step_times=false"),
)
ON_GPU = (*BY_STEPS, "--data.name=synthetic", "--model.name=resnet18", "--data.batch_size=8")
DECODER = (
    *BY_STEPS,
    "--kind=inference",
    "--data.name=synthetic",
    "--model.name=decoder",
    "--inference.phase=decode",
)
RECIPES: Mapping[str, Recipe] = {
    "by steps": Recipe(
        words=ON_GPU,
        case={"window": {"measure_by": "steps", "measure_steps": 100}},
    ),
    "by time": Recipe(
        words=(*ON_GPU, "--benchmark.measure_by=time", "--benchmark.measure_seconds=5"),
        case={"window": {"measure_by": "time", "measure_seconds": 5.0}},
    ),
    "by precision": Recipe(
        words=(*ON_GPU, "--benchmark.measure_by=precision", "--benchmark.measure_seconds=60"),
        case={"window": {"measure_by": "precision", "measure_seconds": 60.0}},
        window={"relative_half_width": 0.034, "stop_reason": "time limit", "requested_steps": None},
    ),
    "compiled": Recipe(words=(*ON_GPU, "--training.compile.enabled=true"), setup={"compiled": "default"}),
    "inference": Recipe(words=("--kind=inference", *ON_GPU), case={"kind": "inference"}),
    "decode": Recipe(
        words=DECODER,
        case={"kind": "inference", "inference": {"phase": "decode", "new_tokens": 80}},
        window={"tokens_before": 0},
    ),
    "products": Recipe(
        words=(
            *BY_STEPS,
            "--kind=inference",
            "--model.name=gemm",
            "--model.options={m: 512, n: 512, k: 512}",
        ),
        case={"kind": "inference", "model": {"name": "gemm", "options": {"m": 512, "n": 512, "k": 512}}},
    ),
    "passes over memory": Recipe(
        words=(
            *BY_STEPS,
            "--kind=inference",
            "--model.name=memory",
            "--model.options={buffer_bytes: 1048576}",
        ),
        case={"kind": "inference", "model": {"name": "memory", "options": {"buffer_bytes": 2**20}}},
    ),
}
scatter = random.Random(3)
STEPS: Mapping[str, list[float]] = {
    "few": [0.01] * 9,
    "noisy": [0.01 * (1 + 0.08 * (-1) ** i) for i in range(100)],
    "drifting": [0.01 * (1 + 0.1 * i / 287) for i in range(288)],
    "stopping": [0.01] * 99 + [0.1],
    "periodic": [0.01, 0.01, 0.01, 0.01, 0.015] * 20,
    "scattered": [0.01 * (1 + scatter.gauss(0, 0.05)) for _ in range(60)],
    "growing": [0.01 * (1 + 0.3 * i / 100) for i in range(100)],
}
WINDOWS: Mapping[str, Mapping[str, Any]] = {
    "host-bound": {"wall_s": 2.0, "clock": "device_event"},
    "interrupted": {"wall_s": 1.2, "clock": "host"},
    "crowded": {"load": replace(QUIET, busy_cpu_s=5.0, run_queue_wait_s=0.5)},
    "robbed": {"load": replace(QUIET, steal_cpu_s=0.5)},
    "not finite": {"not_finite_after": (0, 100)},
    "shared": {"neighbours": replace(window().neighbours, other_processes=2), "clock": "device_event"},
}


def launches(recipe: Recipe) -> Iterator[Story]:
    """Yield launches of a recipe with one trouble each."""
    shared: dict[str, Any] = {"case": case(**recipe.case), "setups": [setup(device=H200, **recipe.setup)]}
    for times_s in STEPS.values():
        yield replace(one_rank(times_s=times_s, **recipe.window), **shared)
    for changed in WINDOWS.values():
        yield replace(one_rank(**{**recipe.window, **changed}), **shared)
    yield replace(
        one_rank(**recipe.window),
        **shared | {"setups": [setup(device=H200, flops_per_step=None, **recipe.setup)]},
    )
    yield replace(Story(times_s=()), **shared)
    waiting = window(1, steps_s=0.9, wall_s=1.0001)
    yield replace(Story(windows=[window(0), waiting], times_s=[0.009] * 100), case=shared["case"])


def doubts_of(recipe: Recipe) -> dict[str, Doubt]:
    """Return the doubts of a recipe's launches by their remedy."""
    peak = find_peak(H200.name, "fp32")
    found = [
        doubt
        for story in launches(recipe)
        for doubt in doubts_about(Measured(launch=story.launch(), peak=peak))
    ]
    for values in ([98.0, 100.0, 120.0], [50.0, 100.0, 170.0]):
        found += doubts_about_differences(interval_of_launches(values), of="throughput")
    return {doubt.remedy: doubt for doubt in found}


@pytest.mark.parametrize("name", RECIPES)
def test_each_remedy_is_accepted_by_the_recipe_that_it_is_for(name: str) -> None:
    recipe = RECIPES[name]
    config = load_config("quick", recipe.words).config
    doubts = doubts_of(recipe)
    assert len(doubts) >= 8, sorted(doubts)
    applied = [word for remedy in doubts for word in changes(remedy, config)]
    assert len(applied) >= 5, applied
    for word in applied:
        key, _, value = word[2:].partition("=")
        changed = load_config("quick", [*recipe.words, word]).config
        assert str(config) != str(changed), f"{key} is {value} already"
        assert key not in ignored(changed), f"{key} does nothing in a recipe measured {name}"


def ignored(config: RunConfig) -> set[str]:
    """Return the keys of the window that a recipe does not heed."""
    by = config.benchmark.measure_by
    return {"steps": {"benchmark.measure_seconds"}}.get(by, {"benchmark.measure_steps"})


def test_a_window_is_made_longer_by_the_key_that_ends_it() -> None:
    for name, key in (("by steps", "measure_steps"), ("by time", "measure_seconds")):
        few = next(d for d in doubts_of(RECIPES[name]).values() if d.code == "few-steps")
        assert few.remedy == f"Raise benchmark.{key}"


def test_of_products_more_work_is_larger_matrices() -> None:
    bound = next(d for d in doubts_of(RECIPES["products"]).values() if d.code == "host-bound")
    assert bound.remedy == "Raise model.options.m, model.options.n and model.options.k"


def test_the_load_suite_and_a_validation_name_keys_of_their_own() -> None:
    few = next(d for d in doubts_of(RECIPES["by steps"]).values() if d.code == "few-steps")
    assert "load.num_batches" in with_suite_remedy(few).remedy
    for doubt in doubts_of(RECIPES["by time"]).values():
        told = _renamed(doubt, OF_WINDOWS).remedy
        config = load_config("validate", ["--validate.window_s=5"]).config
        for word in changes(told, config):
            load_config("validate", [word])
            assert not word.startswith(("--benchmark.measure", "--benchmark.warmup"))


@pytest.mark.parametrize("remedy", [OTHER_ARITHMETIC, USE_OTHERS])
def test_precisions_that_a_remedy_names_are_taken_by_a_validation(remedy: str) -> None:
    (word,) = re.findall(r"'(--validate\.[^']+)'", remedy)
    block = load_config("validate-quick", [word]).config.suite_options["validate"]
    assert set(block["gemm_precisions"]) <= {"bf16", "fp32"}

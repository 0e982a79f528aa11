"""What a report says of pruning: when it is to be doubted, and which keys had no effect."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from gpuproof.accelerators.choose import find_accelerator
from gpuproof.config.models import RunConfig
from gpuproof.records.codec import from_json, to_json
from gpuproof.records.work.training import Pruned, end_of_pruning
from gpuproof.suites.cases import build_case
from gpuproof.verdict.doubts.base import Measured
from gpuproof.verdict.doubts.plausibility import other_than_configured
from gpuproof.worker.step.applicability import not_applied
from gpuproof.workloads.info.base import InputShape
from records_by_hand import Story, window

PRUNED = Pruned(
    rank=0,
    method="magnitude",
    target_sparsity=0.7,
    end_step=75,
    num_updates=103,
    num_weights=10_000,
    num_zero=7_000,
    num_masked=7_000,
    masks_sha256="0a",
    buffers_bytes=10_000,
)
DIGIT = InputShape(kind="image", shape=(1, 32, 32), num_targets=10)


def doubts(*pruned: Pruned) -> list[tuple[str, str]]:
    story = Story(windows=[window(rank) for rank in range(len(pruned))], extra=pruned)
    return [(found.validity, found.code) for found in other_than_configured(Measured(launch=story.launch()))]


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({}, []),
        ({"num_masked": 6_991, "num_zero": 6_995}, []),
        ({"num_zero": 7_500}, []),
        ({"num_masked": 6_989, "num_zero": 6_989}, ["other-sparsity"]),
        ({"num_masked": 7_011, "num_zero": 7_011}, ["other-sparsity"]),
        ({"num_zero": 6_999}, ["pruned-weights-live"]),
        ({"num_masked": 0, "num_zero": 0, "num_updates": 60}, ["other-sparsity"]),
    ],
)
def test_a_model_that_is_not_as_sparse_as_it_was_asked_to_be_is_invalid(
    changes: dict[str, Any], expected: list[str]
) -> None:
    assert doubts(replace(PRUNED, **changes)) == [("INVALID", code) for code in expected]


def test_ranks_that_pruned_other_weights_are_invalid() -> None:
    second = replace(PRUNED, rank=1)
    assert doubts(PRUNED, second) == []
    assert doubts(PRUNED, replace(second, masks_sha256="0b")) == [("INVALID", "masks-differ")]


def recipe(**training: Any) -> RunConfig:
    model = {"name": "lenet5", "num_classes": 10}
    return RunConfig.model_validate({"model": model, "training": {"precision": "fp32", **training}})


def without_effect(config: RunConfig) -> dict[str, str]:
    case = build_case(config, 0)
    assert from_json(type(case), to_json(case)) == case
    found = not_applied(case, accelerator=find_accelerator("cpu"), shape=DIGIT, world_size=1)
    return {item.key: item.reason for item in found if item.key.startswith("training.")}


def test_keys_of_pruning_spam_and_schedules_that_nothing_reads_are_named() -> None:
    found = without_effect(
        recipe(
            optimizer="adamw",
            pruning={"target_sparsity": 0.7, "every_steps": 5},
            spam={"reset_steps": 9},
            total_steps=100,
        )
    )
    assert found["training.pruning.target_sparsity"] == "nothing is pruned"
    assert found["training.pruning.every_steps"] == "nothing is pruned"
    assert found["training.spam.reset_steps"] == "AdamW does not use it; it is for AdamWSpam"
    assert found["training.total_steps"].startswith("neither the learning rate nor pruning")


def test_keys_that_are_read_are_not_named() -> None:
    pruning = {"method": "magnitude", "target_sparsity": 0.7, "every_steps": 5}
    found = without_effect(
        recipe(optimizer="AdamWSpam", momentum=0.0, pruning=pruning, spam={"reset_steps": 9}, total_steps=90)
    )
    assert not [key for key in found if "pruning" in key or "spam" in key or "total" in key]


def test_a_case_that_trains_holds_its_pruning_and_inference_says_that_it_has_none() -> None:
    pruning = {"method": "movement", "target_sparsity": 0.5, "schedule": "linear", "begin_step": 3}
    training: Any = build_case(recipe(pruning=pruning), 0).work
    assert (training.training.pruning.method, training.training.pruning.begin_step) == ("movement", 3)
    asked = recipe(pruning=pruning, total_steps=90).model_dump()
    told = without_effect(RunConfig.model_validate({**asked, "kind": "inference"}))
    assert (
        told["training.pruning.method"] == told["training.total_steps"] == "inference does not update weights"
    )


def test_the_end_of_pruning_is_three_quarters_of_what_is_known() -> None:
    assert end_of_pruning(None, total_steps=290) == 218
    assert end_of_pruning(7, total_steps=290) == 7
    assert end_of_pruning(None, total_steps=None) is None

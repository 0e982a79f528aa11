"""The suite behind `gpuproof run`: which launches come next, and options checked on this side."""

from __future__ import annotations

from typing import Any

import pytest

from gpuproof.config.models import RunConfig
from gpuproof.errors import UsageError
from gpuproof.records.case import Case
from gpuproof.records.codec import from_json, to_json
from gpuproof.suites.training import next_cases


def config(**sections: Any) -> RunConfig:
    return RunConfig.model_validate({"model": {"name": "medium"}, **sections})


def test_every_repeat_is_a_launch_and_what_is_settled_is_not_launched_again() -> None:
    asked = config(run={"repeats": 4})
    assert [case.replicate for case in next_cases(asked, settled=())] == [0, 1, 2, 3]
    assert [case.replicate for case in next_cases(asked, settled=[("main", 0), ("main", 2)])] == [1, 3]
    assert next_cases(asked, settled=[("main", i) for i in range(4)]) == []
    assert len(next_cases(asked, settled=[("other", 0)])) == 4


def test_a_case_holds_all_that_the_config_says_and_survives_as_json() -> None:
    asked = config(
        kind="inference",
        data={"batch_size": 7, "num_workers": 3},
        model={"name": "medium", "options": {"input_dim": 9}},
        training={"precision": "bf16", "compile": {"enabled": True, "mode": "max-autotune"}},
        benchmark={"measure_by": "time", "measure_seconds": 2.5},
        distributed={"nproc": 2, "devices": [1, 3], "timeout_s": 30.0},
        profiling={"enabled": True},
        inference={"mode": "latency", "prompt_tokens": 9},
    )
    (case,) = next_cases(asked, settled=())
    assert (case.kind, case.case_id, case.data.batch_size, case.data.file) == ("inference", "main", 7, None)
    assert case.data.loader["num_workers"] == 3
    assert case.model.options["input_dim"] == 9
    assert (case.training.precision, case.training.compile_mode) == ("bf16", "max-autotune")
    assert (case.window.measure_by, case.window.measure_seconds, case.window.profile) == ("time", 2.5, True)
    assert (case.parallel.nproc, case.parallel.devices, case.parallel.timeout_s) == (2, (1, 3), 30.0)
    assert (case.inference.mode, case.inference.phase, case.inference.prompt_tokens) == (
        "latency",
        "forward",
        9,
    )
    assert case.measures_latency
    assert not case.generates
    assert from_json(Case, to_json(case)) == case


def test_real_data_names_its_file() -> None:
    asked = config(data={"name": "digits"}, model={"name": "resnet18", "num_classes": 10})
    assert next_cases(asked, settled=())[0].data.file == "data/digits.tensors"


@pytest.mark.parametrize(
    ("sections", "place", "expected"),
    [
        ({"model": {"name": "medum"}}, None, "Did you mean 'medium'"),
        ({"model": {"name": "medium", "options": {"inputdim": 9}}}, "model.options.inputdim", "input_dim"),
        (
            {"model": {"name": "medium", "options": {"input_dim": "wide"}}},
            "model.options.input_dim",
            "integer",
        ),
        ({"data": {"name": "digits"}, "model": {"name": "medium"}}, "data.name", "are images"),
        (
            {"kind": "inference", "inference": {"phase": "decode"}, "model": {"name": "transformer"}},
            "inference.phase",
            "transformer has no key-value cache, which decode works on",
        ),
        ({"model": {"name": "timm/a b"}}, "model.name", "does not name a model of timm"),
        (
            {"model": {"name": "timm/resnet18", "options": {"pretrained": True}}},
            "model.options.pretrained",
            "nothing is downloaded",
        ),
    ],
)
def test_a_mistake_ends_here_and_not_on_the_node(
    sections: dict[str, Any], place: str | None, expected: str
) -> None:
    with pytest.raises(UsageError, match=expected) as caught:
        next_cases(config(**sections), settled=())
    assert caught.value.place == place

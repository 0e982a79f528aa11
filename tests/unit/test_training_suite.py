"""The suite behind `gpuproof run`: which launches come next, and options checked on this side."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from gpuproof.base.errors import UsageError
from gpuproof.config.models import RunConfig
from gpuproof.records.case import Case, InferenceWork, TrainingWork
from gpuproof.records.codec import from_json, to_json
from gpuproof.records.collected import CaseRecords
from gpuproof.suites.cases import build_case
from planning import next_cases
from records_by_hand import one_rank, steady_times


def config(**sections: Any) -> RunConfig:
    return RunConfig.model_validate({"model": {"name": "medium"}, **sections})


def launched(asked: RunConfig, *replicates: int) -> list[CaseRecords]:
    return [CaseRecords(case=build_case(asked, replicate), records=()) for replicate in replicates]


def test_every_repeat_is_a_launch_and_what_is_settled_is_not_launched_again() -> None:
    asked = config(run={"repeats": 4})
    assert [case.replicate for case in next_cases(asked)] == [0, 1, 2, 3]
    assert [case.replicate for case in next_cases(asked, launched(asked, 0, 2))] == [1, 3]
    assert next_cases(asked, launched(asked, *range(4))) == []
    other = [replace(records, case=replace(records.case, case_id="other")) for records in launched(asked, 0)]
    assert len(next_cases(asked, other)) == 4


def launches_of(*walls_s: float) -> list[CaseRecords]:
    """Return launches of 100 steps each, of these windows, that took 12 s each in all."""
    return [
        one_rank(times_s=steady_times(100, wall_s / 100), replicate=number).records()
        for number, wall_s in enumerate(walls_s)
    ]


UNSURE = (1.0, 1.04, 0.96, 1.05, 0.97)
"""Rates of 1,000 samples/s, with an interval of ±5.1 %."""


@pytest.mark.parametrize(
    ("run", "walls_s", "more"),
    [
        ({"repeats": 5, "target_precision": 0.03, "target_time_s": 100}, UNSURE, 1),
        ({"repeats": 5, "target_precision": 0.03, "target_time_s": 100}, (*UNSURE, 1.0), 1),
        ({"repeats": 5, "target_precision": 0.06, "target_time_s": 100}, UNSURE, 0),
        ({"repeats": 5}, UNSURE, 0),
        ({"repeats": 4, "target_precision": 0.03, "target_time_s": 100}, UNSURE[:4], 0),
        ({"repeats": 5, "target_precision": 0.03, "target_time_s": 71.9}, UNSURE, 0),
        ({"repeats": 5, "target_precision": 0.03, "target_time_s": 72.0}, UNSURE, 1),
    ],
)
def test_launches_go_on_until_their_figure_is_known_or_their_time_is_over(
    run: dict[str, Any], walls_s: tuple[float, ...], more: int
) -> None:
    cases = next_cases(config(run=run), launches_of(*walls_s))
    assert [case.replicate for case in cases] == list(range(len(walls_s), len(walls_s) + more))


def test_a_launch_of_another_plan_is_no_figure_of_this_one() -> None:
    asked = config(run={"repeats": 5, "target_precision": 0.06, "target_time_s": 100})
    known = launches_of(*UNSURE)
    other = replace(known[0], case=replace(known[0].case, case_id="other"))
    slow = replace(launches_of(9.0)[0], case=other.case)
    assert next_cases(asked, [slow, *known]) == []


def test_after_a_launch_that_failed_no_further_one_is_begun() -> None:
    broken = replace(launches_of(*UNSURE)[4], records=())
    asked = config(run={"repeats": 5, "target_precision": 0.03, "target_time_s": 100})
    assert next_cases(asked, [*launches_of(*UNSURE)[:4], broken]) == []


def test_a_case_holds_all_that_the_config_says_and_survives_as_json() -> None:
    asked = config(
        kind="inference",
        data={"batch_size": 7, "num_workers": 3},
        model={"name": "medium", "options": {"input_dim": 9}},
        training={
            "precision": "bf16",
            "compile": {"enabled": True, "mode": "max-autotune", "fullgraph": True, "dynamic": False},
            "deterministic": True,
            "optimizer": "AdamW",
            "optimizer_implementation": "fused",
            "activation_checkpointing": "selective",
        },
        benchmark={"measure_by": "time", "measure_seconds": 2.5},
        distributed={"nproc": 2, "devices": [1, 3], "timeout_s": 30.0},
        profiling={"enabled": True},
        inference={"mode": "latency", "prompt_tokens": 9},
    )
    (case,) = next_cases(asked)
    work = case.work
    assert isinstance(work, InferenceWork)
    assert (case.kind, case.case_id, work.data.batch_size, work.data_file) == ("inference", "main", 7, None)
    assert work.data.loader["num_workers"] == 3
    assert work.model.options["input_dim"] == 9
    assert (work.training.precision, work.training.compile.mode) == ("bf16", "max-autotune")
    assert (work.training.compile.fullgraph, work.training.compile.dynamic) == (True, False)
    assert (work.training.deterministic, work.training.cuda_graphs) == (True, False)
    assert (work.window.measure_by, work.window.measure_seconds, work.profiling.enabled) == (
        "time",
        2.5,
        True,
    )
    assert (case.placement.ranks_per_host, case.placement.devices) == (2, (1, 3))
    assert work.parallel.timeout_s == 30.0
    assert (work.inference.mode, work.inference.phase, work.inference.prompt_tokens) == (
        "latency",
        "forward",
        9,
    )
    assert case.measures_latency
    assert not work.generates
    assert from_json(Case, to_json(case)) == case


def test_a_case_that_trains_says_how_weights_are_updated() -> None:
    asked = config(
        data={"name": "synthetic"},
        training={
            "epochs": 3,
            "optimizer": "AdamW",
            "optimizer_implementation": "fused",
            "activation_checkpointing": "selective",
            "grad_clip_norm": 2.0,
        },
    )
    case = next_cases(asked)[0]
    work = case.work
    assert isinstance(work, TrainingWork)
    assert (work.training.optimizer, work.training.optimizer_implementation) == ("AdamW", "fused")
    assert (work.training.activation_checkpointing, work.training.grad_clip_norm) == ("selective", 2.0)
    assert work.training.epochs == 3
    assert from_json(Case, to_json(case)) == case


def test_real_data_names_its_file() -> None:
    asked = config(data={"name": "digits"}, model={"name": "resnet18", "num_classes": 10})
    assert next_cases(asked)[0].model_work.data_file == "data/digits.tensors"


@pytest.mark.parametrize(
    ("data", "model", "file"),
    [
        ({"name": "synthetic", "loading": "loader"}, {}, None),
        ({"name": "CIFAR10", "path": "d"}, {"num_classes": 10}, "data/cifar10.tensors"),
        ({"name": "CIFAR100", "path": "d", "split": "test"}, {}, "data/cifar100-test.tensors"),
        ({"name": "ImageFolder", "path": "d"}, {}, "data/imagefolder-224.tensors"),
        ({"name": "ImageFolder", "path": "d", "loading": "loader"}, {}, "data/imagefolder.json"),
        ({"name": "tokens", "path": "d"}, {"name": "decoder"}, "data/tokens.json"),
    ],
)
def test_every_data_set_has_a_place_in_the_run(
    data: dict[str, Any], model: dict[str, Any], file: str | None
) -> None:
    asked = config(data=data, model={"name": "resnet18", **model})
    (case,) = next_cases(asked)[:1]
    assert (case.model_work.data_file, case.model_work.data.path) == (file, data.get("path"))


def test_a_download_is_part_of_the_case() -> None:
    data = {"name": "CIFAR100", "path": "d", "download": True, "download_url": "http://m/c.tgz"}
    asked = next_cases(config(data=data, model={"name": "resnet18"}))[0].model_work.data
    assert (asked.download, asked.download_url, asked.download_checksum) == (True, "http://m/c.tgz", None)


@pytest.mark.parametrize(
    ("sections", "place", "expected"),
    [
        ({"model": {"name": "medum"}}, None, "Did you mean 'medium'"),
        ({"model": {"name": "medium", "options": {"inputdim": 9}}}, "model.options.inputdim", "input_dim"),
        (
            {"model": {"name": "medium", "options": {"input_dim": "wide"}}},
            "model.options.input_dim",
            "expected a whole number",
        ),
        ({"data": {"name": "digits"}, "model": {"name": "medium"}}, "data.name", "are images"),
        (
            {"kind": "inference", "inference": {"phase": "decode"}, "model": {"name": "transformer"}},
            "inference.phase",
            "transformer has no key-value cache, which decode requires",
        ),
        ({"model": {"name": "timm/a b"}}, "model.name", "is not the name of a timm"),
        (
            {"model": {"name": "timm/resnet18", "options": {"pretrained": True}}},
            "model.options.pretrained",
            "nothing is downloaded",
        ),
        (
            {"data": {"name": "tokens", "path": "d"}, "model": {"name": "resnet18"}},
            "data.name",
            "resnet18 expects images, but a file of tokens contains none",
        ),
    ],
)
def test_a_mistake_ends_here_and_not_on_the_node(
    sections: dict[str, Any], place: str | None, expected: str
) -> None:
    with pytest.raises(UsageError, match=expected) as caught:
        next_cases(config(**sections))
    assert caught.value.place == place

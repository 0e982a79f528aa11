"""The work of a case: each kind as JSON and back, kinds that are not known, and specs of older schemas."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest

from gpuproof.base.errors import RecordError
from gpuproof.records.case import (
    CASE_SCHEMA_VERSION,
    Case,
    CollectiveWork,
    InferenceWork,
    ProbeWork,
    ServingWork,
    TrainingWork,
)
from gpuproof.records.codec import from_json, to_json
from gpuproof.records.work.window import MonitorSpec
from gpuproof.store.versions import upgrade_case
from records_by_hand import case, of_schema_2
from served_by_hand import SPEC, records

MONITOR = MonitorSpec(interval_s=0.5, host_interval_s=2.0)
TRAINS = replace(case(training={"epochs": 3, "optimizer": "Adam", "seed": 5}), monitor=MONITOR)
INFERS = case(
    kind="inference", training={"learning_rate": 0.1}, inference={"mode": "latency", "prompt_tokens": 7}
)
SERVES = records([0.01]).case


@pytest.mark.parametrize(
    ("asked", "work"), [(TRAINS, TrainingWork), (INFERS, InferenceWork), (SERVES, ServingWork)]
)
def test_every_kind_is_read_back_as_what_it_was(asked: Case, work: type) -> None:
    read = from_json(Case, json.loads(json.dumps(to_json(asked))))
    assert read == asked
    assert isinstance(read.work, work)
    assert read.kind == to_json(asked)["work"]["kind"]


def test_readers_of_any_work_are_told_what_its_steps_are() -> None:
    assert [asked.measures_latency for asked in (TRAINS, INFERS, SERVES)] == [False, True, False]
    decodes = case(kind="inference", inference={"phase": "decode"})
    assert [asked.model_work.generates for asked in (TRAINS, INFERS, SERVES, decodes)] == [
        False,
        False,
        False,
        True,
    ]
    accumulated = {"gradient_accumulation_steps": 4}
    assert case(parallel=accumulated).model_work.micro_batches == 4
    assert case(kind="inference", parallel=accumulated).model_work.micro_batches == 1


@pytest.mark.parametrize(
    ("work", "message"),
    [
        ({"kind": "odd"}, "'odd' is not one of the kinds known here: training, inference, serving"),
        ({"kind": ["training"]}, "not one of the kinds known here: training, inference, serving"),
        ({}, "lacks the key 'kind', which is one of training, inference, serving"),
        ([], "expected an object, found list"),
        ({"kind": "training"}, "TrainingWork lacks the key 'model'"),
    ],
)
def test_work_that_is_not_known_is_refused_with_the_kinds_that_are(work: Any, message: str) -> None:
    with pytest.raises(RecordError, match="work") as caught:
        from_json(Case, {**to_json(TRAINS), "work": work})
    assert message in str(caught.value)


@pytest.mark.parametrize("asked", [TRAINS, INFERS])
def test_a_spec_of_schema_2_is_read(asked: Case) -> None:
    old = of_schema_2(asked)
    assert "work" not in old
    read = from_json(Case, upgrade_case(json.loads(json.dumps(old))))
    assert read == replace(asked, schema_version=CASE_SCHEMA_VERSION)


@pytest.mark.parametrize("asked", [INFERS, SERVES])
def test_weights_of_schema_4_are_fp32(asked: Case) -> None:
    old = {**to_json(asked), "schema_version": 4}
    old["work"]["inference"].pop("weights")
    read = from_json(Case, upgrade_case(json.loads(json.dumps(old))))
    assert (read.model_work.weights, read.schema_version) == ("fp32", CASE_SCHEMA_VERSION)


def test_a_serving_spec_of_schema_2_is_read() -> None:
    serving = {**to_json(SPEC), "endpoint": None, "arrival_seed": 7}
    old = {**of_schema_2(INFERS), "kind": "serving", "serving": serving}
    read = from_json(Case, upgrade_case(old))
    assert isinstance(read.work, ServingWork)
    assert (read.work.serving, read.work.training) == (SPEC, INFERS.model_work.training)
    assert read.work.arrival_seed == 7


def of_schema_3(asked: Case, **work: Any) -> dict[str, Any]:
    parallel = to_json(asked.model_work.parallel)
    return {**to_json(asked), "schema_version": 3, "work": {"parallel": parallel, **work}}


@pytest.mark.parametrize("sizes", [(8, 64, 512), (4096,)])
def test_a_collective_of_schema_3_keeps_its_sizes(sizes: tuple[int, ...]) -> None:
    old = {"operations": ["broadcast"], "sizes_bytes": list(sizes), "root": 1, "seed": 0}
    read = from_json(Case, upgrade_case(of_schema_3(TRAINS, kind="collective", collective=old)))
    assert isinstance(read.work, CollectiveWork)
    assert (read.work.collective.sizes_bytes, read.work.collective.root) == (sizes, 1)


@pytest.mark.parametrize("sizes", [[], [0, 8], ["a", "b"], "abc", 7, [8.5]])
def test_sizes_of_schema_3_that_are_none_are_refused(sizes: Any) -> None:
    for work in (
        {"kind": "collective", "collective": {"sizes_bytes": sizes}},
        {"kind": "probe", "probe": {"kind": "link", "sizes_bytes": sizes}},
    ):
        with pytest.raises(RecordError, match="min_bytes"):
            from_json(Case, upgrade_case(of_schema_3(TRAINS, **work)))


@pytest.mark.parametrize("work", [None, "work", [1], 3])
def test_a_work_of_schema_3_that_is_none_is_refused(work: Any) -> None:
    with pytest.raises(RecordError, match="work"):
        from_json(Case, upgrade_case({**to_json(TRAINS), "schema_version": 3, "work": work}))


def test_probes_of_schema_3_are_read() -> None:
    pattern = {"kind": "pattern", "memory_share": 0.5, "patterns": ["random"], "passes": 2, "seed": 3}
    link = {"kind": "link", "sizes_bytes": [1024, 4096], "host_memory": ["pinned"], "iterations": 4}
    for old in (pattern, link):
        read = from_json(Case, upgrade_case(of_schema_3(TRAINS, kind="probe", probe=old)))
        assert isinstance(read.work, ProbeWork)
        assert read.work.probe.name == old["kind"]
        if old is pattern:
            spec = read.work.probe.pattern
            assert (spec.memory_share, spec.patterns, spec.passes, spec.seed) == (0.5, ("random",), 2, 3)
        else:
            assert read.work.probe.link.sizes_bytes == (1024, 4096)
            assert read.work.probe.link.iterations == 4


def test_an_old_spec_that_lacks_a_part_is_refused_by_its_name() -> None:
    old = of_schema_2(TRAINS)
    del old["model"]
    with pytest.raises(RecordError, match="lacks the key 'model'"):
        from_json(Case, upgrade_case(old))

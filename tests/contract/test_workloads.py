"""What every workload promises without torch; the torch halves are compared with it in tests/integration.

Members are all that are registered, those of the example packages in tests/fakes and examples/ included where
they are installed.
"""

from __future__ import annotations

import dataclasses
from importlib.util import find_spec
from typing import Any

import pytest

from gpuproof.base import registry
from gpuproof.workloads.info.base import InputShape, Work, WorkloadInfo
from gpuproof.workloads.info.lookup import find_workload

NAMES = registry.names(registry.WORKLOADS)
CACHED = [name for name in NAMES if find_workload(name).generation is not None]
PROMPT, NEW = 8, 4


def shape_of(info: WorkloadInfo, options: Any) -> InputShape:
    return info.input_shape(options, None, None)


def test_there_are_members() -> None:
    assert {"medium", "resnet50", "decoder", "gemm", "memory"} <= set(NAMES)
    assert CACHED


@pytest.mark.parametrize("name", NAMES)
def test_it_says_what_it_is(name: str) -> None:
    info = find_workload(name)
    assert isinstance(info, WorkloadInfo)
    assert info.name == name
    assert info.summary.strip()
    assert info.kinds
    assert set(info.kinds) <= {"training", "inference", "serving"}
    assert all(key.count(".") == 1 and reason for key, reason in info.without_effect)


@pytest.mark.parametrize("name", NAMES)
def test_its_options_are_a_dataclass_with_defaults(name: str) -> None:
    options_type = find_workload(name).options_type
    assert dataclasses.is_dataclass(options_type)
    assert options_type() == options_type()


@pytest.mark.parametrize("name", NAMES)
def test_its_input_has_a_size(name: str) -> None:
    info = find_workload(name)
    shape = shape_of(info, info.options_type())
    assert len(shape.shape) == {"image": 3, "features": 1, "tokens": 1}[shape.kind]
    assert min(shape.shape) >= 1
    assert shape.num_targets >= 1
    counted = info.items_per_sample(shape)
    assert counted == (shape.shape[0] if info.item == "tokens" else 1)


@pytest.mark.parametrize("name", NAMES)
def test_its_closed_forms_are_plausible(name: str) -> None:
    info = find_workload(name)
    options = info.options_type()
    work = info.work(options, shape_of(info, options))
    if work is None:
        assert info.bytes_per_step is not None  # else nothing at all is known of its work
        return
    assert isinstance(work, Work)
    assert work.num_parameters >= 0
    assert 0 <= work.forward_flops <= work.training_flops <= 3 * work.forward_flops
    if work.num_active_parameters is not None:
        assert 0 < work.num_active_parameters <= work.num_parameters


@pytest.mark.parametrize("name", NAMES)
def test_bytes_grow_with_the_batch(name: str) -> None:
    info = find_workload(name)
    options = info.options_type()
    if info.bytes_per_step is not None:
        shape = shape_of(info, options)
        assert 0 < info.bytes_per_step(options, shape, 1) <= info.bytes_per_step(options, shape, 2)


@pytest.mark.parametrize("name", NAMES)
def test_its_torch_half_is_there_and_not_imported(name: str) -> None:
    info = find_workload(name)
    paths = [info.implementation, *([info.tensor_parallel.plan] if info.tensor_parallel else [])]
    for path in paths:
        module, colon, function = path.partition(":")
        assert colon
        assert function.isidentifier()
        assert find_spec(module) is not None


@pytest.mark.parametrize("name", [name for name in NAMES if find_workload(name).tensor_parallel])
def test_what_is_split_divides_by_one_and_not_by_more_than_there_is(name: str) -> None:
    info = find_workload(name)
    assert info.tensor_parallel is not None
    options = info.options_type()
    sizes = info.tensor_parallel.divided(options)
    assert sizes
    assert info.tensor_parallel.undivided(options, size=1) is None
    assert info.tensor_parallel.undivided(options, size=max(sizes.values()) + 1) is not None
    whole = info.tensor_parallel.num_whole_parameters(options, shape_of(info, options))
    work = info.work(options, shape_of(info, options))
    assert work is not None
    assert 0 <= whole < work.num_parameters


@pytest.mark.parametrize("name", CACHED)
def test_text_costs_more_for_a_longer_prompt(name: str) -> None:
    info = find_workload(name)
    assert info.generation is not None
    options = info.options_type()
    short, long = (info.generation(options, prompt, NEW) for prompt in (PROMPT, 2 * PROMPT))
    assert 0 < short.prefill_flops < long.prefill_flops
    assert 0 < short.decode_flops < long.decode_flops
    assert short.cache_elements_per_token == long.cache_elements_per_token > 0
    assert short.decode_cache_elements < long.decode_cache_elements

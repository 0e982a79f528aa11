"""What a report says of memory: the estimate by its parts, and what was measured beside it."""

from __future__ import annotations

from dataclasses import replace

from gpuproof.hardware.boards import find_peak
from gpuproof.records.journal import decode, encode
from gpuproof.records.what_ran import Memory, MemoryParts
from gpuproof.records.work.parallel import Arrangement, Parallelism
from gpuproof.suites.recipe.work import memory_measures
from gpuproof.verdict.summary import summarize
from records_by_hand import Story, setup, window

MIB = 2**20
MEMORY = Memory(
    rank=0,
    estimate=MemoryParts(
        parameters_bytes=100 * MIB,
        gradients_bytes=100 * MIB,
        optimizer_bytes=200 * MIB,
        communication_bytes=0,
    ),
    counted=MemoryParts(parameters_bytes=100 * MIB, gradients_bytes=100 * MIB, optimizer_bytes=201 * MIB),
    activations_bytes=50 * MIB,
    activations_missing=None,
    device_used_bytes=None,
    device_used_missing="device memory is only reported for CUDA devices",
)
SAID = (
    "estimated for a rank: parameters 100 MiB, gradients 100 MiB, optimizer 200 MiB, activations 50.0 MiB; "
)


def told(memory: Memory | None, story: Story | None = None) -> tuple[float | None, str] | None:
    launched = replace(story or Story(), extra=() if memory is None else (memory,)).records()
    measures = memory_measures(summarize([launched], num_planned=1, find_peak=find_peak))
    return next(((found.value, found.detail) for found in measures if found.name == "memory"), None)


def test_on_the_cpu_the_estimate_stands_beside_what_the_tensors_hold() -> None:
    assert told(MEMORY) == (
        450 * MIB,
        f"{SAID}total size of tensors: 401 MiB, without activations and communication",
    )


def test_on_a_gpu_it_stands_beside_what_was_allocated_reserved_and_in_use() -> None:
    allocated = Story(windows=[window(peak_allocated_bytes=470 * MIB, peak_reserved_bytes=500 * MIB)])
    assert told(replace(MEMORY, device_used_bytes=1024 * MIB), allocated) == (
        450 * MIB,
        f"{SAID}measured peak allocated 470 MiB, reserved 500 MiB, on the device by all processes 1.00 GiB",
    )


def test_activations_that_nobody_saw_are_no_zero() -> None:
    found = told(replace(MEMORY, activations_bytes=None, activations_missing="no warm-up step to observe"))
    assert found is not None
    value, text = found
    assert value == 400 * MIB
    assert "activations not known: no warm-up step to observe" in text
    assert told(None) is None


def test_records_of_memory_and_of_what_ran_in_parallel_survive_a_journal() -> None:
    hsdp = Parallelism(strategy="hsdp", arrangement=Arrangement(replicate=2, shard=2), sharded_blocks=4)
    built = setup(parallelism=hsdp)
    assert decode(encode(MEMORY)) == MEMORY
    assert decode(encode(built)) == built


def test_tensor_groups_are_counted_once() -> None:
    both = Parallelism(strategy="fsdp_tensor", arrangement=Arrangement(shard=2, tensor=2))
    items = [10, 0, 10, 0]
    story = Story(
        windows=[window(rank, items=100 * each) for rank, each in enumerate(items)],
        setups=[setup(rank, items_per_step=each, parallelism=both) for rank, each in enumerate(items)],
    )
    launch = story.launch()
    assert (launch.world_size, launch.data_parallel_size) == (4, 2)
    assert launch.items_total == 2_000
    assert launch.samples_per_step_total == 20
    assert launch.items_per_s_total == 2_000

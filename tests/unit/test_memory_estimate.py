"""What a rank holds, against numbers worked out by hand."""

from __future__ import annotations

import pytest

from gpuproof.records.what_ran import MemoryParts
from gpuproof.records.work.parallel import Arrangement
from gpuproof.records.work.training import OptimizerName
from gpuproof.workloads.info.catalogue.mlp import MEDIUM
from gpuproof.workloads.info.held import estimate_memory

MEDIUM_PARAMETERS = 54_403
"""50·256+256 + 256·128+128 + 128·64+64 + 64·3+3 = 13,056 + 32,896 + 8,256 + 195."""
ALONE = Arrangement()


@pytest.mark.parametrize(
    ("optimizer", "momentum", "optimizer_bytes"),
    [
        ("SGD", 0.0, 0),
        ("SGD", 0.9, 217_612),
        ("Adam", 0.9, 435_224),
        ("AdamW", 0.0, 435_224),
        ("AdamWAdv", 0.0, 652_836),
    ],
)
def test_the_medium_perceptron_on_one_rank(
    optimizer: OptimizerName, momentum: float, optimizer_bytes: int
) -> None:
    found = estimate_memory(MEDIUM_PARAMETERS, arrangement=ALONE, optimizer=optimizer, momentum=momentum)
    assert found == MemoryParts(
        parameters_bytes=217_612,
        gradients_bytes=217_612,
        optimizer_bytes=optimizer_bytes,
        communication_bytes=0,
    )


def test_copies_keep_buckets_of_gradients_too() -> None:
    found = estimate_memory(MEDIUM_PARAMETERS, arrangement=Arrangement(replicate=4), optimizer="SGD")
    assert found.communication_bytes == 217_612
    assert found.total_bytes == 3 * 217_612


def test_shares_of_four_ranks_with_adam() -> None:
    found = estimate_memory(
        MEDIUM_PARAMETERS,
        arrangement=Arrangement(replicate=2, shard=4),
        optimizer="Adam",
        num_gathered_parameters=MEDIUM_PARAMETERS,
        gathered_value_bytes=2,
    )
    # 54,403 / 4 is 13,600.75: the fullest rank holds 13,601 values.
    assert found == MemoryParts(
        parameters_bytes=54_404, gradients_bytes=54_404, optimizer_bytes=108_808, communication_bytes=108_806
    )


def test_two_tensor_ranks_split_all_but_some_biases() -> None:
    plan = MEDIUM.tensor_parallel
    assert plan is not None
    options = MEDIUM.options_type()
    whole = plan.num_whole_parameters(options, MEDIUM.input_shape(options, None, None))
    assert whole == 128 + 3
    found = estimate_memory(
        MEDIUM_PARAMETERS, num_whole_parameters=whole, arrangement=Arrangement(tensor=2), optimizer="SGD"
    )
    # (54,403 − 131) / 2 + 131 = 27,267 values, and no copies of gradients.
    assert found.parameters_bytes == 109_068
    assert found.communication_bytes == 0


def test_inference_holds_parameters_only() -> None:
    found = estimate_memory(MEDIUM_PARAMETERS, arrangement=ALONE, optimizer=None)
    assert found.total_bytes == found.parameters_bytes == 217_612

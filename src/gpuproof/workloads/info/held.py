"""Memory that a rank uses before any activation, computed from sizes without torch.

>>> estimate_memory(1_000_000, arrangement=Arrangement(), optimizer="SGD").total_bytes
8000000
"""

from __future__ import annotations

from collections.abc import Mapping

from gpuproof.records.what_ran import MemoryParts
from gpuproof.records.work.parallel import Arrangement
from gpuproof.records.work.training import OptimizerName

FLOAT32_BYTES = 4
OPTIMIZER_VALUES: Mapping[OptimizerName, int] = {
    "SGD": 0,
    "Adam": 2,
    "AdamW": 2,
    "AdamWAdv": 3,
    "AdamWSpam": 2,
    "AdamWPrune": 2,
}
"""Number of values that each optimizer stores per parameter, excluding SGD's momentum."""


def estimate_memory(
    num_parameters: int,
    *,
    num_whole_parameters: int = 0,
    arrangement: Arrangement,
    optimizer: OptimizerName | None,
    momentum: float = 0.0,
    num_gathered_parameters: int = 0,
    gathered_value_bytes: int = FLOAT32_BYTES,
    value_bytes: int = FLOAT32_BYTES,
    num_fp8_weights: int = 0,
) -> MemoryParts:
    """Estimate the bytes that a rank stores, excluding activations.

    Parameters, gradients and optimizer state use `value_bytes` per value: autocast keeps float32 parameters,
    and sharded parameters are gathered in half precision from float32 shards. `num_fp8_weights` of the
    parameters use one byte each. Adam's step counters are omitted. See https://arxiv.org/abs/1910.02054.

    `num_whole_parameters` is the number of parameters that tensor parallelism does not split; `optimizer` is
    None for inference. `num_gathered_parameters` is the maximum number of parameters that a sharded model
    keeps unsharded at a time.

    >>> estimate_memory(1_000_000, arrangement=Arrangement(shard=4), optimizer="Adam").total_bytes
    4000000
    """
    split = -(-(num_parameters - num_whole_parameters) // arrangement.tensor)
    held = -(-(split + num_whole_parameters) // arrangement.shard)
    trained = held if optimizer is not None else 0
    has_momentum = optimizer == "SGD" and momentum
    values = 0 if optimizer is None else 1 if has_momentum else OPTIMIZER_VALUES[optimizer]
    if arrangement.shard > 1:
        communication = num_gathered_parameters * gathered_value_bytes
    else:  # gradient buckets, which data-parallel ranks store in addition to the gradients
        communication = trained * value_bytes if arrangement.replicate > 1 else 0
    return MemoryParts(
        parameters_bytes=held * value_bytes - num_fp8_weights * (value_bytes - 1),
        gradients_bytes=trained * value_bytes,
        optimizer_bytes=trained * values * value_bytes,
        communication_bytes=communication,
    )

"""What a rank holds in memory before any activation, from sizes alone and without torch.

>>> estimate_memory(1_000_000, arrangement=Arrangement(), optimizer="SGD").total_bytes
8000000
"""

from __future__ import annotations

from collections.abc import Mapping

from gpuproof.records.memory import MemoryParts
from gpuproof.records.parallel import Arrangement
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
"""Values that an optimizer keeps for each parameter, beside SGD's momentum."""


def estimate_memory(
    num_parameters: int,
    *,
    num_whole_parameters: int = 0,
    arrangement: Arrangement,
    optimizer: OptimizerName | None,
    momentum: float = 0.0,
    num_gathered_parameters: int = 0,
    gathered_value_bytes: int = FLOAT32_BYTES,
) -> MemoryParts:
    """Estimate the bytes of one rank before any activation, from sizes, strategy and optimizer.

    Parameters, gradients and optimizer state are float32 in every precision: autocast keeps float32
    parameters, and sharded ones are gathered in half precision from float32 shares. Adam's step counters (4
    bytes a tensor) are left out. The parts are those of Rajbhandari et al. 2020
    (https://arxiv.org/abs/1910.02054).

    `num_whole_parameters` are those that tensor parallelism leaves whole on each rank; `optimizer` is None
    for inference. `num_gathered_parameters` are those that a sharded model holds in full at its fullest.

    >>> estimate_memory(1_000_000, arrangement=Arrangement(shard=4), optimizer="Adam").total_bytes
    4000000
    """
    split = -(-(num_parameters - num_whole_parameters) // arrangement.tensor)
    in_group = split + num_whole_parameters
    held = -(-in_group // arrangement.shard)
    trained = held if optimizer is not None else 0
    values = 0 if optimizer is None else OPTIMIZER_VALUES[optimizer]
    if optimizer == "SGD" and momentum:
        values = 1
    if arrangement.shard > 1:
        communication = num_gathered_parameters * gathered_value_bytes
    else:  # buckets of gradients, which data-parallel ranks keep beside the gradients
        communication = trained * FLOAT32_BYTES if arrangement.replicate > 1 else 0
    return MemoryParts(
        parameters_bytes=held * FLOAT32_BYTES,
        gradients_bytes=trained * FLOAT32_BYTES,
        optimizer_bytes=trained * values * FLOAT32_BYTES,
        communication_bytes=communication,
    )

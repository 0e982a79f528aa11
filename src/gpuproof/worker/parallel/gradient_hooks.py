"""Gradient compression: what each choice does to the gradients of DistributedDataParallel on their way.

In: a data-parallel module and a choice. Out: the module with a communication hook, and the hook's name with
the settings that really run. https://docs.pytorch.org/docs/stable/ddp_comm_hooks.html
"""

from __future__ import annotations

from torch.nn.parallel import DistributedDataParallel

from gpuproof.errors import EnvironmentUnfitError
from gpuproof.records.case import GradientCompression

POWER_RANK = 1
POWER_START = 2
"""Backward passes that go uncompressed; torch takes 2 or more, and its 1,000 would outlast a window."""


def compress_gradients(
    module: DistributedDataParallel, choice: GradientCompression, *, backend: str
) -> str | None:
    """Install the communication hook; return what it is, None for none.

    Raises:
        EnvironmentUnfitError: the backend or this Python cannot run the hook.
    """
    if choice == "none":
        return None
    if choice == "powersgd":
        return _install_power_sgd(module)
    from torch.distributed.algorithms.ddp_comm_hooks import default_hooks

    if choice == "bf16" and backend != "nccl":
        raise EnvironmentUnfitError(
            f"gradients in bfloat16 are summed over NCCL only, and these ranks talk over {backend}",
            place="distributed.gradient_compression",
            next_step="Use fp16 or none here",
        )
    hooks = {"fp16": default_hooks.fp16_compress_hook, "bf16": default_hooks.bf16_compress_hook}
    module.register_comm_hook(None, hooks[choice])
    return hooks[choice].__name__


def _install_power_sgd(module: DistributedDataParallel) -> str:
    from torch.distributed.algorithms.ddp_comm_hooks import powerSGD_hook

    try:
        state = powerSGD_hook.PowerSGDState(
            process_group=None, matrix_approximation_rank=POWER_RANK, start_powerSGD_iter=POWER_START
        )
    except ImportError as error:  # it draws seeds with numpy
        raise EnvironmentUnfitError(
            f"PowerSGD cannot be had here: {error}",
            place="distributed.gradient_compression",
            next_step="Install numpy beside torch, or use fp16",
        ) from error
    module.register_comm_hook(state, powerSGD_hook.powerSGD_hook)
    return f"powerSGD_hook of rank {POWER_RANK}, after {POWER_START} backward passes"

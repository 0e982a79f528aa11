"""Gradients of parameters of several kinds: held back between micro-batches, and clipped by one norm.

Under tensor parallelism some parameters are split over ranks and some are whole, and torch's list-wise
kernels take no mixture. So parameters are grouped by how they are distributed: an optimizer updates group by
group, and a clip joins the norms of the groups.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext

import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel

Parameters = list[nn.Parameter]


def groups_alike(module: nn.Module) -> list[Parameters]:
    """Group the parameters of a model by the mesh that they are distributed over; plain ones are a group."""
    groups: dict[object, Parameters] = {}
    for parameter in module.parameters():
        groups.setdefault(getattr(parameter, "device_mesh", None), []).append(parameter)
    return list(groups.values())


def clip_gradients(groups: Sequence[Parameters], max_norm: float) -> None:
    """Scale all gradients so that their norm, over all groups and ranks, is `max_norm` at most."""
    if len(groups) == 1:
        nn.utils.clip_grad_norm_(groups[0], max_norm)
        return
    norms = [_total_norm(group) for group in groups]
    norm = torch.linalg.vector_norm(torch.stack(norms))
    for group in groups:
        # The shares of this rank: the same factor on every rank, and no distributed arithmetic for it.
        shares = [_local(p.grad) for p in group if p.grad is not None]
        torch._foreach_mul_(shares, torch.clamp(max_norm / (norm + 1e-6), max=1.0))


def _total_norm(group: Parameters) -> torch.Tensor:
    norm = nn.utils.get_total_norm([p.grad for p in group if p.grad is not None])
    whole = getattr(norm, "full_tensor", None)
    result: torch.Tensor = norm if whole is None else whole()
    return result


def _local(gradient: torch.Tensor) -> torch.Tensor:
    to_local = getattr(gradient, "to_local", None)
    result: torch.Tensor = gradient if to_local is None else to_local()
    return result


def without_gradient_sync(module: nn.Module) -> Callable[[], AbstractContextManager[object]]:
    """Return the context for all micro-batches but the last, whose backward pass alone sums gradients."""
    if isinstance(module, DistributedDataParallel):
        return module.no_sync
    set_sync = getattr(module, "set_requires_gradient_sync", None)  # of a sharded module, compiled or not
    if set_sync is None:
        return nullcontext

    @contextmanager
    def without_sync() -> Iterator[None]:
        set_sync(False)
        try:
            yield
        finally:
            set_sync(True)

    return without_sync

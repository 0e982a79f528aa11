"""How many FLOPs does torch itself count? Checks or replaces FLOP counts computed analytically.

In: a computation, as a function without arguments, or a module with one batch. Out: the number of operations
in its matmuls, as seen by torch's own dispatcher, with a multiply-add counted as two.

Counting runs the computation once, eagerly, in Python, several times slower than a step, so it must happen
before the window. It uses the plain module, without torch.compile, CUDA graphs and data parallelism, which
would hide operations from the counter. It leaves weights, buffers and random state unchanged.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn
from torch.utils.flop_counter import flop_registry, shape_wrapper

from gpuproof.accelerators.base import OutOfMemory
from gpuproof.accelerators.choose import accelerator_of
from gpuproof.worker.step.effective import OperatorMode, extra_formulas, hidden_share
from gpuproof.worker.step.preparation import Prepared

LossFunction = Callable[[torch.Tensor, torch.Tensor], torch.Tensor]
PRODUCT = re.compile(
    r"(^|_)(mm|bmm|addmm|addmv|addr|baddbmm|convolution|dot|einsum|gemm|ger|gru|linear|lstm|matmul|mv|rnn|"
    r"attention)(_|$)"
)
"""Names of operators that multiply; if the counter lacks a formula for one of them, the count is too low."""


class UncountableError(Exception):
    """An operator multiplies, but there is no formula for its FLOPs, so a count would be too low."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ProductFlops:
    """FLOPs of matmuls, convolutions and attention."""

    total: int
    hidden: float
    """The part of the total that an attention kernel may skip because a causal mask hides the results."""


def count_flops(work: Callable[[], object]) -> ProductFlops:
    """Return the FLOPs of one call of `work`.

    Raises:
        UncountableError: the computation contains multiplications that cannot be counted.
    """
    counter = _Counter()
    with _no_fast_path(), counter:
        work()
    if counter.uncounted:
        raise UncountableError(f"torch's counter does not know {', '.join(sorted(counter.uncounted))}")
    return ProductFlops(total=counter.total, hidden=counter.hidden)


class _Counter(OperatorMode):
    """Adds up the FLOPs of multiplications with torch's formulas and ours; records those without one."""

    def __init__(self) -> None:
        super().__init__()
        self._attention = extra_formulas()
        ours = {operator: shape_wrapper(formula) for operator, formula in self._attention.items()}
        self._formulas = {**flop_registry, **ours}
        self.total = 0
        self.hidden = 0.0
        self.uncounted: set[str] = set()

    def ran(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any], out: Any) -> None:
        """Count one operator call."""
        operator = getattr(func, "_overloadpacket", func)
        if operator in self._formulas:
            self.total += self._formulas[operator](*args, **kwargs, out_val=out)
            self._count_hidden(func, operator, args, kwargs)
        elif PRODUCT.search(operator.__name__):
            self.uncounted.add(operator.__name__)

    def _count_hidden(self, func: Any, operator: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        names = [argument.name for argument in func._schema.arguments]
        arguments = {**dict(zip(names, args, strict=False)), **kwargs}
        formula = self._attention.get(operator) if arguments.get("is_causal") else None
        if formula is not None:
            whole = formula(*(getattr(one, "shape", one) for one in args))
            self.hidden += whole * hidden_share(arguments["query"].shape[2], arguments["key"].shape[2])


@contextmanager
def _no_fast_path() -> Iterator[None]:
    """Make multi-head attention call its matmuls one by one; its fast path is not counted."""
    was_fast = torch.backends.mha.get_fastpath_enabled()
    torch.backends.mha.set_fastpath_enabled(False)
    try:
        yield
    finally:
        torch.backends.mha.set_fastpath_enabled(was_fast)


def count_forward_flops(
    module: nn.Module,
    inputs: torch.Tensor,
    *,
    autocast: Callable[[], AbstractContextManager[object]] = nullcontext,
) -> ProductFlops:
    """Return the FLOPs of a forward pass over a batch in evaluation mode; restores the module's mode."""

    def forward() -> None:
        with torch.no_grad(), autocast():
            module(inputs)

    was_training = module.training
    module.eval()
    try:
        with _restored(module, inputs.device):
            return count_flops(forward)
    finally:
        module.train(was_training)


def count_training_flops(
    module: nn.Module,
    inputs: torch.Tensor,
    targets: torch.Tensor,
    *,
    loss: LossFunction,
    autocast: Callable[[], AbstractContextManager[object]] = nullcontext,
) -> ProductFlops:
    """Return the FLOPs of forward, loss and backward for a batch; the optimizer has no matmuls.

    Gradients are cleared, so call this between steps.
    """

    def forward_and_backward() -> None:
        with autocast():
            value = loss(module(inputs), targets)
        value.backward()

    with _restored(module, inputs.device):
        try:
            return count_flops(forward_and_backward)
        finally:
            module.zero_grad(set_to_none=True)


@contextmanager
def _restored(module: nn.Module, device: torch.device) -> Iterator[None]:
    """Restore a model's buffers (running means of norm layers) and the random state afterwards."""
    state = module.state_dict(keep_vars=True)
    saved = [(buffer, buffer.detach().clone()) for name, buffer in module.named_buffers() if name in state]
    with accelerator_of(device).kept_random_state(device):
        try:
            yield
        finally:
            with torch.no_grad():
                for buffer, before in saved:
                    buffer.copy_(before)


@dataclass(frozen=True, slots=True, kw_only=True)
class CountedFlops:
    """This rank's FLOPs per step, as counted by torch; None, with the reason, if uncountable."""

    flops_per_step: float | None
    missing: str | None = None
    skippable_per_step: float | None = None
    """The part of the FLOPs per step that a kernel may skip under a causal mask."""


def count_step_flops(prepared: Prepared) -> CountedFlops:
    """Count the FLOPs of one step; uses one batch from the pool.

    If torch cannot count a model's FLOPs, the case does not fail: the reason is recorded. Running out of
    memory is a failure, since a step needs even more.

    Raises:
        torch.OutOfMemoryError: the device lacks the memory for one forward and backward pass.
    """
    work = prepared.work
    if prepared.identity.world_size > 1 and work.trains and work.parallel.strategy != "ddp":
        return CountedFlops(
            flops_per_step=None,
            missing=f"a model split across ranks ({work.parallel.strategy}) hides its products",
        )
    if work.generates:
        return CountedFlops(
            flops_per_step=None,
            missing="the FLOPs of a generation phase are known only from its closed form",
        )
    try:
        flops, times = _count(prepared), prepared.work.micro_batches
        return CountedFlops(
            flops_per_step=float(flops.total * times), skippable_per_step=flops.hidden * times
        )
    except OutOfMemory:
        raise
    except UncountableError as error:
        return CountedFlops(flops_per_step=None, missing=str(error))
    except Exception as error:  # noqa: BLE001  # whatever a user's model or a mode of torch's may raise
        first_line = (str(error).splitlines() or [""])[0]
        return CountedFlops(
            flops_per_step=None, missing=f"torch could not count: {type(error).__name__}: {first_line}"
        )


def _count(prepared: Prepared) -> ProductFlops:
    """Count the FLOPs of one micro-batch."""
    module, workload = prepared.workload.module, prepared.workload
    inputs, targets = prepared.pool.next_batch()
    autocast = prepared.precision.autocast
    if not prepared.work.trains:
        return count_forward_flops(module, inputs, autocast=autocast)
    return count_training_flops(module, inputs, targets, loss=workload.loss, autocast=autocast)

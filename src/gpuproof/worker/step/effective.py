"""What the kernels of a step were given: arithmetic and layout of all that costs FLOPs, from the operands.

A flag says what was asked for; this looks at the tensors that reach torch's kernels, after autocast and
whatever else, and weighs each operation by its FLOPs (torch's own formulas). It slows the step that it looks
at: the first of the warm-up, or where there is none, one more before the window. Here, too, are the formulas
that torch's counter lacks, or gets wrong (attention, groups of convolutions and of experts), as `flop_count`
takes them: from shapes of an operator's arguments to operations, a multiply-add being two. Attention is
counted as model FLOPs are: two products forward and four backward, over the full square, whichever kernel
runs. Torch's own formulas leave the CPU's kernel out, and add a fifth product backward, the scores that fused
kernels work out once more (PaLM, appendix B, https://arxiv.org/abs/2204.02311).
"""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.flop_counter import flop_registry

from gpuproof.records.what_ran import Effective, Layout, ObservedWork, Operation

OPERATIONS: dict[str, Operation] = {
    **dict.fromkeys(
        ("mm", "addmm", "bmm", "baddbmm", "_scaled_mm", "_grouped_mm", "_scaled_grouped_mm"), "matrix product"
    ),
    **dict.fromkeys(("convolution", "_convolution", "convolution_backward"), "convolution"),
}
HIDDEN_BY_COMPILER = (
    "kernels that torch.compile generates are not torch's operations, and what is looked at runs uncompiled"
)
FIRST_OPERAND = {"addmm": 1, "baddbmm": 1}
"""Where the two operands begin among the arguments, if not at the first."""
CONVOLVED = {"convolution_backward": 1}
"""Where a convolution's input is among the arguments, if not the first."""
ATTENTION_KERNELS = (
    "_scaled_dot_product_flash_attention",
    "_scaled_dot_product_efficient_attention",
    "_scaled_dot_product_cudnn_attention",
    "_scaled_dot_product_flash_attention_for_cpu",
)
Shape = tuple[int, ...]


def classify_operation(function: Any) -> Operation | None:
    """Name the kind of an ATen operation; None where it is none that costs much."""
    if getattr(function, "namespace", None) != "aten":
        return None
    name = function._schema.name.removeprefix("aten::")  # its name without the overload
    if name in OPERATIONS:
        return OPERATIONS[name]
    attention = "attention" in name and name.startswith(("_scaled_dot", "_flash", "_efficient", "_cudnn"))
    return "attention" if attention else None


@dataclass(slots=True)
class Seen:
    """Sums over the operations of one step."""

    flops: dict[tuple[Operation, str, Layout | None], float] = field(default_factory=dict)
    calls: dict[tuple[Operation, str, Layout | None], int] = field(default_factory=dict)
    uncounted: set[str] = field(default_factory=set)

    def add(self, function: Any, operation: Operation, args: Sequence[Any], kwargs: Any, out: Any) -> None:
        """Take one operation in."""
        name = function._schema.name.removeprefix("aten::")  # as above
        flops = count_call_flops(function, name, args, kwargs, out)
        if flops is None:
            self.uncounted.add(name)
            return
        layout = memory_layout(args[CONVOLVED.get(name, 0)]) if operation == "convolution" else None
        key = (operation, _operand_types(name, args), layout)
        self.flops[key] = self.flops.get(key, 0.0) + flops
        self.calls[key] = self.calls.get(key, 0) + 1

    def record(self, rank: int) -> Effective:
        """Return the record, the largest share first."""
        work = [
            ObservedWork(operation=operation, dtype=dtype, layout=layout, flops=flops, calls=self.calls[key])
            for key, flops in sorted(self.flops.items(), key=lambda item: -item[1])
            for operation, dtype, layout in [key]
        ]
        missing = None if work else "no product, convolution or attention of known work was seen"
        return Effective(
            rank=rank, work=tuple(work), uncounted=tuple(sorted(self.uncounted)), missing=missing
        )


def count_call_flops(function: Any, name: str, args: Sequence[Any], kwargs: Any, out: Any) -> float | None:
    """Return the FLOPs of one call, a multiply-add counting as two; None where no formula is known."""
    if name in ATTENTION_KERNELS:  # torch's own formula may want as many heads of keys as of queries
        return float(attention_flops(*(operand.shape for operand in args[:3])))
    if name.startswith("_scaled_dot_product_flash_attention_for_cpu"):
        return _cpu_attention_flops(args)
    formula = flop_registry.get(function._overloadpacket)  # the registry's own key
    return None if formula is None else float(formula(*args, **kwargs, out_val=out))


def _cpu_attention_flops(args: Sequence[Any]) -> float:
    """Five products of (queries × keys × width) a head backward, the scores being made again."""
    query, key, value = args[1:4]
    pairs = math.prod(query.shape[:-1]) * key.shape[-2]
    return float(2 * pairs * (3 * query.shape[-1] + 2 * value.shape[-1]))


def _operand_types(name: str, args: Sequence[Any]) -> str:
    first = FIRST_OPERAND.get(name, 0)
    names = [str(operand.dtype).removeprefix("torch.") for operand in args[first : first + 2]]
    return names[0] if names[0] == names[1] else " × ".join(names)


def memory_layout(image: torch.Tensor) -> Layout:
    """Name the order in which a batch of images lies in memory; NHWC stands for any channels-last order."""
    channels_last = torch.channels_last if image.dim() == 4 else torch.channels_last_3d
    by_channel = image.is_contiguous()
    by_pixel = image.dim() in (4, 5) and image.is_contiguous(memory_format=channels_last)
    if by_channel and by_pixel:
        return "either"
    return "NCHW" if by_channel else "NHWC" if by_pixel else "other"


class OperatorMode(TorchDispatchMode):
    """Runs every operator, and hands each that ran to `ran`."""

    def __init__(self) -> None:
        """Begin with nothing seen."""
        super().__init__()  # type: ignore[no-untyped-call]  # torch has no types here

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        """Say no: torch would import its compiler, seconds long, to keep it from compiling this class."""
        return False

    def stays_whole(self, func: Any) -> bool:
        """Say whether an operator is to be seen as it is, though it has parts."""
        return False

    @abstractmethod
    def ran(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any], out: Any) -> None:
        """Take note of an operator, its arguments and what it returned."""

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        """Run the operator, or its parts where it has some: inference mode gives composite ones whole."""
        kwargs = kwargs or {}
        if isinstance(func, torch._ops.OpOverload) and not self.stays_whole(func):
            with self:
                parts = func.decompose(*args, **kwargs)
            if parts is not NotImplemented:
                return parts
        out = func(*args, **kwargs)
        self.ran(func, args, kwargs, out)
        return out


class _Watch(OperatorMode):
    def __init__(self, seen: Seen) -> None:
        super().__init__()
        self._seen = seen

    def stays_whole(self, func: Any) -> bool:
        return classify_operation(func) is not None

    def ran(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any], out: Any) -> None:
        operation = classify_operation(func)
        if operation is not None:
            self._seen.add(func, operation, args, kwargs, out)


@contextmanager
def watching() -> Iterator[Seen]:
    """Look at every operation that runs inside."""
    seen = Seen()
    with _Watch(seen):
        yield seen


def hidden(reason: str, *, rank: int) -> Effective:
    """Return the record of a step that cannot be looked into."""
    return Effective(rank=rank, work=(), uncounted=(), missing=reason)


def observe(step: Callable[[], None], *, rank: int) -> Effective:
    """Run a step and say what its kernels were given."""
    with watching() as seen:
        step()
    return seen.record(rank)


class ObservedStep:
    """A step whose first run is looked at; `seen` is what that showed, None until then."""

    def __init__(self, step: Callable[[], None], *, rank: int) -> None:
        self.seen: Effective | None = None
        self._step = step
        self._rank = rank

    def __call__(self) -> None:
        """Run one step."""
        if self.seen is None:
            self.seen = observe(self._step, rank=self._rank)
        else:
            self._step()


def extra_formulas() -> dict[object, Callable[..., int]]:
    """Return every formula of ours by the operator that it is for; not every version of torch has all."""
    formulas: dict[object, Callable[..., int]] = {
        **_attention_formulas(),
        torch.ops.aten.convolution_backward: convolution_backward_flops,
    }
    grouped = getattr(torch.ops.aten, "_grouped_mm", None)
    return formulas if grouped is None else {**formulas, grouped: grouped_product_flops}


def _attention_formulas() -> dict[object, Callable[..., int]]:
    formulas: dict[object, Callable[..., int]] = {}
    for name in ATTENTION_KERNELS:
        for suffix, formula in (("", attention_flops), ("_backward", attention_backward_flops)):
            kernel = getattr(torch.ops.aten, name + suffix, None)
            if kernel is not None:
                formulas[kernel] = formula
    return formulas


def attention_flops(query: Shape, key: Shape, value: Shape, *_: object, **__: object) -> int:
    """Count Q·Kᵀ and P·V; shapes are (batch, heads, length, width)."""
    batch, heads, length, width = query
    return 2 * batch * heads * length * key[2] * (width + value[3])


def attention_backward_flops(
    _gradient: Shape, query: Shape, key: Shape, value: Shape, *_: object, **__: object
) -> int:
    """Count the gradients of Q, K, V and P: twice the forward pass."""
    return 2 * attention_flops(query, key, value)


def hidden_share(queries: int, keys: int) -> float:
    """Return which share of the scores a causal mask hides: query i sees the keys up to its own place.

    >>> hidden_share(4, 4), hidden_share(1, 4)
    (0.375, 0.75)
    """
    seen = sum(min(place, keys) for place in range(1, queries + 1))
    return 1 - seen / (queries * keys)


def grouped_product_flops(first: Shape, second: Shape, *_: object, **__: object) -> int:
    """Count products whose rows, columns or inner places are shared out among groups.

    >>> grouped_product_flops((6, 4), (3, 4, 5))  # 6 rows, each in one of 3 groups
    240
    """
    groups = first[0] if len(first) == len(second) == 3 else 1
    return int(2 * groups * first[-2] * first[-1] * second[-1])


def convolution_backward_flops(
    gradient: Shape, inputs: Shape, weights: Shape, *rest: Any, **_: object
) -> int:
    """Count the gradients that are asked for, of inputs and of weights, each at the cost of the forward pass.

    torch's own formula takes no account of groups in the gradient of the weights, and so gives a depthwise
    convolution the work of a full one: a factor as large as its channels.
    """
    _bias, _stride, _padding, _dilation, transposed, _output_padding, _groups, output_mask = rest[:8]
    placed = inputs if transposed else gradient
    forward = 2 * placed[0] * math.prod(placed[2:]) * math.prod(weights)
    return int(forward * sum(output_mask[:2]))

"""Facts about a workload that do not need torch: its options, input, size and work.

A plug-in registers one `WorkloadInfo` under the entry-point group `gpuproof.workloads`. The control side
reads it to validate options and to determine the FLOPs per step. The worker resolves `implementation` and
builds the torch module.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields
from importlib import import_module
from typing import Any, Literal

from gpuproof.records.work.device_sizes import DeviceSizes


@dataclass(frozen=True, slots=True, kw_only=True)
class InputShape:
    """One sample, without the batch dimension: (channels, height, width), (features,) or (tokens,)."""

    kind: Literal["image", "features", "tokens"]
    shape: tuple[int, ...]
    num_targets: int
    """Number of classes (images) or target values (features), or the vocabulary size (tokens)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Work:
    """The size of a model and the FLOPs per sample, computed analytically.

    A multiply-add counts as two operations. `training_flops` is the forward pass plus the gradients of
    weights and inputs, minus the input gradient of the first layer, which is not needed.
    """

    num_parameters: int
    forward_flops: float
    training_flops: float
    num_active_parameters: int | None = None
    """Number of parameters that are active per token; None if all of them are active."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TensorParallel:
    """How a workload's layers are split over ranks that work on the same samples.

    `plan` is `module:function`, a function of (module, size) that prepares the module for groups of `size`
    ranks and returns the torch.distributed.tensor.parallel style for each part, keyed by the part's name.
    `divided(options)` lists the sizes that are divided equally among the ranks.
    `num_whole_parameters(options, input_shape)` counts the parameters that every rank stores in full.
    """

    plan: str
    divided: Callable[[Any], Mapping[str, int]]
    num_whole_parameters: Callable[[Any, InputShape], int]

    def undivided(self, options: Any, *, size: int) -> str | None:
        """Return a size that groups of `size` ranks cannot divide evenly; None if all can be divided."""
        return next(
            (f"{name} {value}" for name, value in self.divided(options).items() if value % size), None
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class GenerationWork:
    """The cost of generating text with a key-value cache, per sequence, computed analytically.

    Decode values are means over the new tokens; each new token attends to one more token than the one before.
    """

    prefill_flops: float
    """FLOPs for the whole prompt, with scores for its last token only."""
    decode_flops: float
    cache_elements_per_token: int
    """Number of key and value elements for one token across all layers."""
    decode_cache_elements: float
    """Number of key and value elements read and written to generate one token."""
    decode_weights: int | None
    """Number of weights that a step reads, regardless of the number of sequences; None if it depends on the
    tokens."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkloadInfo:
    """A registered workload.

    `item` is the unit of a rate: samples, whatever they are called, or tokens if samples are sequences. A
    batch, an epoch and `work` are always counted in samples. `options_type` is a standard-library dataclass
    with a `__post_init__` that may raise `ValueError`. An instance of it is passed to `input_shape(options,
    image_size, num_classes)`, which may raise `UsageError`, and to `work(options, input_shape)`, which
    returns None if the FLOP count is unknown. `implementation` is `module:function`, a function of (options,
    input_shape) that returns a `torch.nn.Module`; `loss` is one of the worker's losses. `generation(options,
    prompt_tokens, new_tokens)` is set if the module is a `gpuproof.workloads.torch.generation.CachedModel`.
    """

    name: str
    summary: str
    item: Literal["samples", "tokens", "products", "passes"]
    options_type: type[Any]
    input_shape: Callable[[Any, int | None, int | None], InputShape]
    work: Callable[[Any, InputShape], Work | None]
    implementation: str
    loss: Literal["cross_entropy", "token_cross_entropy", "mean_squared_error"]
    tensor_parallel: TensorParallel | None = None
    """How to split the workload over ranks; None if it cannot be split."""
    fitted: Callable[[Any, DeviceSizes], dict[str, int]] | None = None
    """Values for the `auto` options on a device with these memory sizes; None if there are no such
    options."""
    bytes_per_step: Callable[[Any, InputShape, int], float] | None = None
    """Number of bytes that one step with this batch size moves to and from device memory; None if there is no
    closed-form count, since cache effects cannot be computed analytically."""
    activation_values: Callable[[Any, InputShape], int] | None = None
    """Minimum number of values that one sample stores for the backward pass without compilation or
    checkpointing; None if there is no closed-form count."""
    kinds: tuple[str, ...] = ("training", "inference", "serving")
    """The kinds of runs that the workload supports."""
    without_effect: tuple[tuple[str, str], ...] = ()
    """Recipe keys that have no effect on this workload, each with the reason."""
    reason_it_waits: str | None = None
    """Reason why the forward pass waits for the device and thus cannot be captured in a graph; None if it can
    be."""
    generation: Callable[[Any, int, int], GenerationWork] | None = None

    def items_per_sample(self, shape: InputShape) -> int:
        """Number of items that a sample adds to a rate: its tokens if tokens are counted, else one."""
        return shape.shape[0] if self.item == "tokens" else 1

    def resolve_shape(self, options: Any, image_size: int | None, num_classes: int | None) -> InputShape:
        """Return the actual input shape; called only on the node, where more may be known."""
        return self.input_shape(options, image_size, num_classes)

    def resolve_implementation(self) -> Callable[[Any, InputShape], Any]:
        """Import the torch implementation; called only on the node."""
        function: Callable[[Any, InputShape], Any] = resolve(self.implementation)
        return function


def resolve(path: str) -> Any:
    """Import `module:name`; called only on the node if this is a torch implementation."""
    module, _, attribute = path.partition(":")
    return getattr(import_module(module), attribute)


def require_positive(options: Any) -> None:
    """Check that every integer option is at least 1.

    Raises:
        ValueError: an integer option is less than 1.
    """
    for field in fields(options):
        value = getattr(options, field.name)
        if isinstance(value, int) and not isinstance(value, bool) and value < 1:
            raise ValueError(f"{field.name} is {value}, but must be 1 or more")

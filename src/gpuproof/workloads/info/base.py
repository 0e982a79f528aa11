"""What is known of a workload without torch: its options, its input, its size and its work.

A plug-in registers one `WorkloadInfo` under the entry-point group `gpuproof.workloads`. The control side
reads it to validate options and to know how much work a step is; the worker resolves `implementation`
and builds the torch module.
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
    """Classes for images, target values for features, the vocabulary for tokens."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Work:
    """The size of a model and the floating-point work of one sample, from closed forms.

    A multiply-add counts as two operations. `training_flops` is forward plus the gradients of weights
    and inputs, less the input gradient of the first layer, which nothing asks for.
    """

    num_parameters: int
    forward_flops: float
    training_flops: float
    num_active_parameters: int | None = None
    """Parameters that one token goes through; None where it goes through all of them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TensorParallel:
    """How the layers of a workload are split over ranks that work on the same samples.

    `plan` is `module:function`, a function of (module, size) that makes the module ready for groups of `size`
    ranks and returns the styles of torch.distributed.tensor.parallel by the names of its parts.
    `divided(options)` names the sizes of which each rank gets an equal share. `num_whole_parameters(options,
    input_shape)` counts the parameters that every rank holds in full.
    """

    plan: str
    divided: Callable[[Any], Mapping[str, int]]
    num_whole_parameters: Callable[[Any, InputShape], int]

    def undivided(self, options: Any, *, size: int) -> str | None:
        """Name a size that groups of `size` ranks cannot share evenly; None where they share all."""
        return next(
            (f"{name} {value}" for name, value in self.divided(options).items() if value % size), None
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class GenerationWork:
    """What making text with a key-value cache takes of one sequence, from closed forms.

    Decode's figures are means over the new tokens: each attends to one more than the one before.
    """

    prefill_flops: float
    """Of the whole prompt, with scores for its last token alone."""
    decode_flops: float
    cache_elements_per_token: int
    """Keys and values of one token in all layers."""
    decode_cache_elements: float
    """Keys and values read and written for one token."""
    decode_weights: int | None
    """Weights that a step reads, however many sequences are in it; None where it depends on the tokens."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkloadInfo:
    """A workload as the registry knows it.

    `item` is what a rate counts: samples, whatever they are called, or the tokens of samples that are
    sequences. A batch, an epoch
    and `work` count samples always. `options_type` is a standard-library dataclass, whose `__post_init__`
    may raise `ValueError`. `input_shape(options, image_size, num_classes)`, which may raise `UsageError`,
    and `work(options, input_shape)` take an instance of it; the work is None where it is not known.
    `implementation` is `module:function`, a function of (options, input_shape) that returns a
    `torch.nn.Module`; `loss` names a loss of the worker. `generation(options, prompt_tokens, new_tokens)` is
    there where the module is a `gpuproof.workloads.torch.generation.CachedModel`.
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
    """None where the workload cannot be split over ranks."""
    fitted: Callable[[Any, DeviceSizes], dict[str, int]] | None = None
    """Values for those options that are `auto`, on a device of such sizes; None where none can be."""
    bytes_per_step: Callable[[Any, InputShape, int], float] | None = None
    """Bytes that one step with a batch of so many samples moves to and from the device's memory; None where
    no closed form is known, since what caches keep is not."""
    activation_values: Callable[[Any, InputShape], int] | None = None
    """Values that one sample leaves for the backward pass at least, in a module that runs as it is written;
    None where no closed form is known."""
    kinds: tuple[str, ...] = ("training", "inference", "serving")
    """The kinds of run that it is for."""
    without_effect: tuple[tuple[str, str], ...] = ()
    """Keys of a recipe that change nothing for it, each with the reason."""
    reason_it_waits: str | None = None
    """Why its forward pass waits for the device, so that no graph holds it; None where it does not."""
    generation: Callable[[Any, int, int], GenerationWork] | None = None

    def items_per_sample(self, shape: InputShape) -> int:
        """What one sample counts for in a rate: its tokens where tokens are counted, else itself."""
        return shape.shape[0] if self.item == "tokens" else 1

    def resolve_shape(self, options: Any, image_size: int | None, num_classes: int | None) -> InputShape:
        """Return the input as it will be; called on the node only, which may know more."""
        return self.input_shape(options, image_size, num_classes)

    def resolve_implementation(self) -> Callable[[Any, InputShape], Any]:
        """Import the torch half; called on the node only."""
        function: Callable[[Any, InputShape], Any] = resolve(self.implementation)
        return function


def resolve(path: str) -> Any:
    """Import what `module:name` says; called on the node only, where it is a torch half."""
    module, _, attribute = path.partition(":")
    return getattr(import_module(module), attribute)


def require_positive(options: Any) -> None:
    """Check that every whole number among the options is 1 or more.

    Raises:
        ValueError: one is not.
    """
    for field in fields(options):
        value = getattr(options, field.name)
        if isinstance(value, int) and not isinstance(value, bool) and value < 1:
            raise ValueError(f"{field.name} is {value}, and must be 1 or more")

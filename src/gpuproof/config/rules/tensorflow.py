"""Training with TensorFlow: what is supported, and where it can run."""

from __future__ import annotations

from collections.abc import Iterator
from operator import attrgetter
from typing import TYPE_CHECKING

from gpuproof.config.rules.base import Facts, Refusal, Refusals, RuleSet

if TYPE_CHECKING:
    from gpuproof.config.models import RunConfig

TENSORFLOW = "tensorflow"
CAN = {
    "kind": ("training",),
    "model.name": ("medium", "large"),
    "data.name": ("synthetic",),
    "data.loading": ("device",),
    "training.precision": ("fp32", "tf32"),
    "training.optimizer": ("Adam", "SGD"),
}
"""Keys for which the TensorFlow program supports only some values."""
OF_TORCH = {
    "training": (
        *("weight_decay", "grad_clip_norm", "deterministic", "activation_checkpointing", "cuda_graphs"),
        *("weights", "compile", "pruning", "total_steps"),
    ),
    "distributed": (
        "gradient_accumulation_steps",
        "strategy",
        "gradient_compression",
        "communication_profile",
    ),
    "profiling": ("enabled", "ceilings"),
}
"""Keys that only the torch program reads, by section: setting them would change nothing."""


def tensorflow_trains_perceptrons(config: RunConfig) -> Refusals:
    """Reject settings the TensorFlow program lacks: it exists to compare S2's models with torch's."""
    if config.training.framework != TENSORFLOW:
        return
    for key, values in CAN.items():
        if (value := attrgetter(key)(config)) not in values:
            yield Refusal(
                keys=(key, "training.framework"),
                cause=f"under TensorFlow, {key} must be {' or '.join(values)}, not {value}",
                next_step=f"Set {key} to one of them, or training.framework to torch",
            )
    for key in _torch_keys(config):
        yield Refusal(
            keys=(key, "training.framework"),
            cause="this key is for torch, but training.framework is tensorflow",
            next_step="Omit it, or set training.framework to torch",
        )


def reduction_is_of_tensorflow(config: RunConfig) -> Refusals:
    """Reject a choice that does not exist in torch."""
    if config.training.framework != TENSORFLOW and config.training.reduction != "auto":
        yield Refusal(
            keys=("training.reduction", "training.framework"),
            cause="training.reduction is how TensorFlow sums gradients, but training.framework is torch",
            next_step="Set training.framework to tensorflow, or omit it; torch uses distributed.backend",
        )


def tensorflow_runs_here(config: RunConfig, facts: Facts) -> Refusals:
    """Reject hosts and launchers: one process trains on the devices of this machine."""
    if config.training.framework != TENSORFLOW or not (facts.hosts or facts.is_attached):
        return
    yield Refusal(
        keys=("training.framework",),
        cause=(
            "under TensorFlow, one process trains on the devices of this machine, without other "
            "hosts or torchrun"
        ),
        next_step="Start it on the host itself",
    )


def _torch_keys(config: RunConfig) -> Iterator[str]:
    for section, keys in OF_TORCH.items():
        yield from (f"{section}.{key}" for key in getattr(config, section).changed() if key in keys)
    if config.distributed.nodes > 1:
        yield "distributed.nodes"


RULES = RuleSet(
    of_recipe=(tensorflow_trains_perceptrons, reduction_is_of_tensorflow), of_place=(tensorflow_runs_here,)
)

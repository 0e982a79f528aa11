"""Which options make a step that no CUDA graph can hold."""

from __future__ import annotations

from typing import TYPE_CHECKING

from gpuproof.config.rules.base import Refusal, Refusals

if TYPE_CHECKING:
    from gpuproof.config.models import RunConfig

OWN_GRAPHS = ("reduce-overhead", "max-autotune")
"""Modes in which torch.compile makes CUDA graphs by itself."""


def a_graph_can_hold_the_step(config: RunConfig) -> Refusals:
    """Refuse what cannot be captured whatever the device; the worker refuses what a device cannot do."""
    training, ranks = config.training, config.distributed
    obstacles = {
        "training.precision": (
            training.precision == "amp" and config.kind == "training",
            "amp's gradient scaler waits for the device in each step",
            "Set training.precision to bf16",
        ),
        "training.activation_checkpointing": (
            training.activation_checkpointing != "none" and config.kind == "training",
            "checkpointing saves and restores the random state on the host",
            "Set training.activation_checkpointing to none",
        ),
        "training.compile.mode": (
            training.compile.enabled and training.compile.mode in OWN_GRAPHS,
            f"torch.compile makes graphs of its own in mode {training.compile.mode}",
            "Set training.compile.mode to default or max-autotune-no-cudagraphs, or "
            "training.cuda_graphs to false",
        ),
        "kind": (
            config.kind == "serving",
            "requests come in batches of several sizes",
            "Set training.cuda_graphs to false",
        ),
        "inference.phase": (
            config.kind == "inference" and config.inference.phase != "forward",
            f"{config.inference.phase} works on a cache that grows",
            "Set training.cuda_graphs to false, or inference.phase to forward",
        ),
        "data.loading": (
            config.data.loading == "loader",
            "a loader brings each batch to another place",
            "Set data.loading to device",
        ),
        "distributed.device": (
            ranks.device == "cpu",
            "the device is cpu",
            "Set training.cuda_graphs to false",
        ),
        "distributed.nproc": (ranks.nproc > 1, "a graph holds one rank only", "Set distributed.nproc to 1"),
    }
    if training.cuda_graphs:
        for key, (holds, cause, next_step) in obstacles.items():
            if holds:
                yield Refusal(
                    keys=("training.cuda_graphs", key),
                    cause=f"the step cannot be captured: {cause}",
                    next_step=next_step,
                )
                return

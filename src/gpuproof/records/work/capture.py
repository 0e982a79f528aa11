"""What keeps a step from being captured as one CUDA graph on any device, as a recipe or a case tells it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from gpuproof.records.work.data import DataSpec
from gpuproof.records.work.training import TrainingSpec

OWN_GRAPHS = ("reduce-overhead", "max-autotune")
"""Modes in which torch.compile makes CUDA graphs by itself."""
CHANGING = ("AdamWAdv", "AdamWSpam")
"""Optimizers whose updates are not all alike."""
WITHOUT_GRAPHS = "Set training.cuda_graphs to false"
BATCHES_VARY = "requests come in batches of several sizes"


class CaptureObstacle(NamedTuple):
    """A key whose value a graph cannot hold, and why."""

    key: str
    cause: str
    next_step: str = WITHOUT_GRAPHS


def capture_obstacles(
    training: TrainingSpec, data: DataSpec, *, updates_weights: bool
) -> Iterator[CaptureObstacle]:
    """Yield what stands in the way in how a step computes, updates weights and comes by its samples."""
    compiled = training.compile
    if updates_weights:
        yield from _update_obstacles(training)
    if compiled.enabled and compiled.mode in OWN_GRAPHS:
        yield CaptureObstacle(
            "training.compile.mode",
            f"torch.compile makes graphs of its own in mode {compiled.mode}",
            f"Set training.compile.mode to default or max-autotune-no-cudagraphs, or {WITHOUT_GRAPHS[4:]}",
        )
    if data.loading == "loader":
        cause = "a loader brings each batch to another place"
        yield CaptureObstacle("data.loading", cause, "Set data.loading to device")


def _update_obstacles(training: TrainingSpec) -> Iterator[CaptureObstacle]:
    prunes = training.pruning.method != "none"
    if training.precision == "amp":
        cause = "amp's gradient scaler waits for the device in each step"
        yield CaptureObstacle("training.precision", cause, "Set training.precision to bf16")
    if training.activation_checkpointing != "none":
        yield CaptureObstacle(
            "training.activation_checkpointing",
            "checkpointing saves and restores the random state on the host",
            "Set training.activation_checkpointing to none",
        )
    if prunes or training.optimizer in CHANGING:
        yield CaptureObstacle(
            "training.pruning.method" if prunes else "training.optimizer",
            f"updates are not all alike with {'pruning' if prunes else training.optimizer}, and a graph "
            "replays always the same",
        )

"""Pruning, and optimizers with their own rules: requirements and conflicts."""

from __future__ import annotations

from typing import TYPE_CHECKING

from gpuproof.config.rules.base import Refusal, Refusals, RuleSet
from gpuproof.records.work.training import end_of_pruning

if TYPE_CHECKING:
    from gpuproof.config.models import RunConfig

METHOD = "training.pruning.method"
OPTIMIZER = "training.optimizer"


def a_method_has_its_target(config: RunConfig) -> Refusals:
    """Require the fraction of weights to prune if the method prunes."""
    pruning = config.training.pruning
    if pruning.method != "none" and pruning.target_sparsity is None:
        yield Refusal(
            keys=(METHOD, "training.pruning.target_sparsity"),
            cause="the fraction of weights to prune is not set: training.pruning.target_sparsity is null",
            next_step="Set training.pruning.target_sparsity, for example to 0.7",
        )


def state_pruning_is_of_adamwprune(config: RunConfig) -> Refusals:
    """Reject state pruning without its optimizer, and its optimizer with another method."""
    method, optimizer = config.training.pruning.method, config.training.optimizer
    if method == "state" and optimizer != "AdamWPrune":
        yield Refusal(
            keys=(METHOD, OPTIMIZER),
            cause=f"state pruning reads the moments of AdamWPrune, but the optimizer is {optimizer}",
            next_step=f"Set {OPTIMIZER} to AdamWPrune, or {METHOD} to magnitude or movement",
        )
    if method in ("magnitude", "movement") and optimizer == "AdamWPrune":
        yield Refusal(
            keys=(METHOD, OPTIMIZER),
            cause=f"AdamWPrune prunes by its own moments, but the method is {method}",
            next_step=f"Set {METHOD} to state or none, or {OPTIMIZER} to AdamW, the same without pruning",
        )


def schedules_have_an_end(config: RunConfig) -> Refusals:
    """Require the number of updates if a schedule depends on it but the window ends by time."""
    training, pruning = config.training, config.training.pruning
    falls, ramps = training.optimizer == "AdamWAdv", pruning.method != "none" and pruning.end_step is None
    if (falls or ramps) and _total_steps(config) is None and config.benchmark.enabled:
        what = "AdamWAdv's learning rate falls" if falls else "pruning increases"
        yield Refusal(
            keys=("training.total_steps", OPTIMIZER if falls else METHOD, "benchmark.measure_by"),
            cause=f"{what} over all updates, whose number is unknown: the window is measured by "
            f"{config.benchmark.measure_by}",
            next_step="Set training.total_steps, or benchmark.measure_by to steps",
        )


def pruning_ends_in_the_window(config: RunConfig) -> Refusals:
    """Reject a schedule that is empty or continues beyond the last update."""
    pruning, total = config.training.pruning, _total_steps(config)
    end = end_of_pruning(pruning.end_step, total_steps=total)
    if pruning.method == "none" or end is None:
        return
    if end <= pruning.begin_step:
        yield Refusal(
            keys=("training.pruning.begin_step", "training.pruning.end_step"),
            cause=f"pruning starts after update {pruning.begin_step} and ends at update {end}",
            next_step="Set training.pruning.begin_step to an earlier update",
        )
    window = _steps_of_window(config)
    if window is not None and end > window:
        yield Refusal(
            keys=("training.pruning.end_step", "benchmark.measure_steps", METHOD),
            cause=f"the target is reached at update {end}, but warm-up and window have only {window} updates",
            next_step=f"Set training.pruning.end_step to {window} or less, or raise benchmark.measure_steps",
        )


def whole_weights_are_pruned(config: RunConfig) -> Refusals:
    """Reject anything that needs whole weights if each rank holds only a shard of them."""
    training, strategy = config.training, config.distributed.strategy
    by = "pruning" if training.pruning.method != "none" else training.optimizer
    if by in ("pruning", "AdamWSpam") and strategy != "ddp" and config.kind == "training":
        yield Refusal(
            keys=("distributed.strategy", METHOD if by == "pruning" else OPTIMIZER),
            cause=f"{by} works on whole weights, but {strategy} gives each rank a shard",
            next_step="Set distributed.strategy to ddp",
        )


def scores_see_whole_gradients(config: RunConfig) -> Refusals:
    """Reject updates that a kernel may skip unnoticed."""
    training = config.training
    if (
        training.pruning.method == "movement"
        and training.precision == "amp"
        and training.optimizer_implementation == "fused"
    ):
        yield Refusal(
            keys=("training.optimizer_implementation", METHOD),
            cause="a fused optimizer under amp skips updates on its own, and movement pruning "
            "would accumulate overflowed gradients",
            next_step="Set training.optimizer_implementation to auto, or training.precision to bf16",
        )


def _steps_of_window(config: RunConfig) -> int | None:
    """Return the number of updates during warm-up and window; None if they end by time or by epochs."""
    window = config.benchmark
    by_steps = window.enabled and window.measure_by == "steps" and window.measure_steps is not None
    return window.warmup_steps + (window.measure_steps or 0) if by_steps else None


def _total_steps(config: RunConfig) -> int | None:
    return config.training.total_steps or _steps_of_window(config)


RULES = RuleSet(
    of_recipe=(
        a_method_has_its_target,
        state_pruning_is_of_adamwprune,
        schedules_have_an_end,
        pruning_ends_in_the_window,
        whole_weights_are_pruned,
        scores_see_whole_gradients,
    )
)

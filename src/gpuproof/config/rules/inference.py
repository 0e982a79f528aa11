"""Prefill (reading prompts) and decode (generating tokens): what a key-value cache rules out."""

from __future__ import annotations

from typing import TYPE_CHECKING

from gpuproof.config.rules.base import Refusal, Refusals, RuleSet
from gpuproof.config.rules.workload import ChosenWorkload

if TYPE_CHECKING:
    from gpuproof.config.models import RunConfig


def _uses_a_cache(config: RunConfig) -> bool:
    return config.inference.phase != "forward"


def prompts_are_synthetic(config: RunConfig) -> Refusals:
    """Reject non-synthetic data for prompts, since prompts are generated."""
    if _uses_a_cache(config) and config.data.name != "synthetic":
        yield Refusal(
            keys=("data.name", "inference.phase"),
            cause=f"{config.inference.phase} reads prompts of random tokens, but data.name is "
            f"{config.data.name}",
            next_step="Set data.name to synthetic",
        )


def a_cache_is_not_split(config: RunConfig) -> Refusals:
    """Reject splitting a model's attention heads if the model's cache is not split."""
    if _uses_a_cache(config) and config.distributed.strategy == "tensor":
        yield Refusal(
            keys=("distributed.strategy", "inference.phase"),
            cause=f"{config.inference.phase} keeps a whole cache on each rank, but strategy tensor "
            "splits the attention heads across ranks",
            next_step="Remove distributed.strategy, or set inference.phase to forward",
        )


def a_phase_has_a_cache(config: RunConfig, chosen: ChosenWorkload) -> Refusals:
    """Reject prefill and decode for a model without a cache."""
    if _uses_a_cache(config) and chosen.info.generation is None:
        yield Refusal(
            keys=("inference.phase", "model.name"),
            cause=f"{chosen.info.name} has no key-value cache, which {config.inference.phase} requires",
            next_step="Set it to forward, or model.name to decoder or moe_decoder",
        )


RULES = RuleSet(
    of_recipe=(prompts_are_synthetic, a_cache_is_not_split),
    of_workload=(a_phase_has_a_cache,),
)

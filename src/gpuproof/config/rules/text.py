"""Text from a key-value cache: which models make it, and what a cache does not go with.

Inference reads prompts (prefill) and makes tokens (decode); serving answers requests so. An endpoint makes
text always; a model of our own does where it has a cache, unless `serving.new_tokens` is 0.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from gpuproof.config.rules.base import Refusal, Refusals
from gpuproof.config.rules.workload import ChosenWorkload

if TYPE_CHECKING:
    from gpuproof.config.models import RunConfig


def _uses_a_cache(config: RunConfig) -> bool:
    return config.kind == "inference" and config.inference.phase != "forward"


def prompts_are_synthetic(config: RunConfig) -> Refusals:
    """Refuse other data for prompts, which are drawn."""
    if _uses_a_cache(config) and config.data.name != "synthetic":
        yield Refusal(
            keys=("data.name", "inference.phase"),
            cause=f"{config.inference.phase} reads prompts of drawn tokens, and data.name is "
            f"{config.data.name}",
            next_step="Set data.name to synthetic",
        )


def a_cache_is_not_compiled(config: RunConfig) -> Refusals:
    """Refuse torch.compile, which would compile for each length of the cache."""
    if _uses_a_cache(config) and config.training.compile.enabled:
        yield Refusal(
            keys=("training.compile.enabled", "inference.phase"),
            cause=f"{config.inference.phase} works on a cache that grows, and torch.compile would compile "
            "each length anew",
            next_step="Set training.compile.enabled to false",
        )


def a_cache_is_not_split(config: RunConfig) -> Refusals:
    """Refuse to split the heads of a model whose cache is whole."""
    if _uses_a_cache(config) and config.distributed.strategy == "tensor":
        yield Refusal(
            keys=("distributed.strategy", "inference.phase"),
            cause=f"{config.inference.phase} keeps a whole cache on each rank, and strategy tensor splits "
            "the heads over ranks",
            next_step="Remove distributed.strategy, or set inference.phase to forward",
        )


def a_phase_has_a_cache(config: RunConfig, chosen: ChosenWorkload) -> Refusals:
    """Refuse prefill and decode of a model without a cache."""
    if _uses_a_cache(config) and chosen.info.generation is None:
        yield Refusal(
            keys=("inference.phase", "model.name"),
            cause=f"{chosen.info.name} has no key-value cache, which {config.inference.phase} works on",
            next_step="Set it to forward, or model.name to decoder or moe_decoder",
        )


def requests_are_answered(config: RunConfig, chosen: ChosenWorkload) -> Refusals:
    """Refuse tokens of a model that makes none, and what a cache does not go with."""
    serving = config.serving
    if config.kind != "serving" or serving.target != "model" or serving.new_tokens == 0:
        return
    if chosen.info.generation is not None:
        yield from _cache_refusals(config)
        return
    features = {
        "new_tokens": serving.new_tokens,
        "prompt_tokens": serving.prompt_tokens,
        "bounds.ttft_s": serving.bounds.ttft_s,
        "bounds.tpot_s": serving.bounds.tpot_s,
    }
    feature = next((key for key, value in features.items() if value is not None), None)
    if feature is not None:
        yield Refusal(
            keys=(f"serving.{feature}", "model.name"),
            cause=f"{chosen.info.name} has no key-value cache to make tokens from",
            next_step=f"Remove serving.{feature}, or set model.name to decoder or moe_decoder",
        )


def _cache_refusals(config: RunConfig) -> Refusals:
    whole = "or serving.new_tokens to 0, which runs whole sequences forward"
    if config.training.compile.enabled:
        yield Refusal(
            keys=("training.compile.enabled", "kind"),
            cause="requests are answered from a cache that grows, and torch.compile would compile each "
            "length anew",
            next_step=f"Set it to false, {whole}",
        )
    if config.data.name != "synthetic":
        yield Refusal(
            keys=("data.name", "kind"),
            cause=f"requests are prompts of drawn tokens, and data.name is {config.data.name}",
            next_step=f"Set it to synthetic, {whole}",
        )

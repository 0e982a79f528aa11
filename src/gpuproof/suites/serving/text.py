"""Are requests prompts, and how long are they and their answers? Decided here, before anything starts.

In: the config. Out: the sizes of prompt and answer, or None where a request brings whole samples. An endpoint
makes text always; a model of our own does where it has a key-value cache, unless `serving.new_tokens` is 0.
"""

from __future__ import annotations

from dataclasses import dataclass

from gpuproof.config.models import RunConfig
from gpuproof.config.sections.serving import NEW_TOKENS, PROMPT_TOKENS
from gpuproof.errors import UsageError
from gpuproof.workloads.info.lookup import find_workload


@dataclass(frozen=True, slots=True, kw_only=True)
class TextSizes:
    """Tokens of each prompt, and of each answer."""

    prompt_tokens: int
    new_tokens: int


def text_of(config: RunConfig) -> TextSizes | None:
    """Return the sizes of prompts and answers; None where none are made.

    Raises:
        UsageError: tokens are asked of a model without a cache, or with what a cache does not go with.
    """
    serving = config.serving
    sizes = TextSizes(
        prompt_tokens=serving.prompt_tokens or PROMPT_TOKENS,
        new_tokens=NEW_TOKENS if serving.new_tokens is None else serving.new_tokens,
    )
    if serving.target == "endpoint":
        return sizes
    if serving.target == "noop" or serving.new_tokens == 0:
        return None
    info = find_workload(config.model.name)
    if info.generation is not None:
        _check_cache(config)
        return sizes
    asked = next((key for key in ("new_tokens", "prompt_tokens") if getattr(serving, key) is not None), None)
    if asked is not None:
        raise UsageError(
            f"{info.name} has no key-value cache to make tokens from",
            place=f"serving.{asked}",
            next_step=f"Remove serving.{asked}, or set model.name to decoder or moe_decoder",
        )
    return None


def _check_cache(config: RunConfig) -> None:
    whole = "or serving.new_tokens to 0, which runs whole sequences forward"
    if config.training.compile.enabled:
        raise UsageError(
            "requests are answered from a cache that grows, and torch.compile would compile each length anew",
            place="training.compile.enabled",
            next_step=f"Set it to false, {whole}",
        )
    if config.data.name != "synthetic":
        raise UsageError(
            f"requests are prompts of drawn tokens, and data.name is {config.data.name}",
            place="data.name",
            next_step=f"Set it to synthetic, {whole}",
        )

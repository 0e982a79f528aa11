"""Are requests prompts, and how long are they and their answers? Decided before anything starts.

In: the config. Out: the sizes of prompt and answer, or None where a request brings whole samples. An endpoint
makes text always; a model of our own does where it has a key-value cache, unless `serving.new_tokens` is 0.
"""

from __future__ import annotations

from dataclasses import dataclass

from gpuproof.config.models import RunConfig
from gpuproof.records.work.serving import NEW_TOKENS, PROMPT_TOKENS
from gpuproof.workloads.info.lookup import find_workload


@dataclass(frozen=True, slots=True, kw_only=True)
class TextSizes:
    """Tokens of each prompt, and of each answer."""

    prompt_tokens: int
    new_tokens: int


def text_sizes(config: RunConfig) -> TextSizes | None:
    """Return the sizes of prompts and answers; None where none are made."""
    serving = config.serving
    sizes = TextSizes(
        prompt_tokens=serving.prompt_tokens or PROMPT_TOKENS,
        new_tokens=NEW_TOKENS if serving.new_tokens is None else serving.new_tokens,
    )
    if serving.target == "endpoint":
        return sizes
    if serving.target == "noop" or serving.new_tokens == 0:
        return None
    return sizes if find_workload(config.model.name).generation is not None else None

"""`inference`: what a forward run measures, whole batches or the two halves of making text."""

from __future__ import annotations

from pydantic import Field

from gpuproof.config.sections.base import ConfigSection
from gpuproof.records.case import InferenceMode, InferencePhase

MAX_TOKENS = 2**20


class InferenceConfig(ConfigSection):
    """How a model is run forward."""

    mode: InferenceMode = "throughput"
    """throughput queues steps and waits for none; latency waits for each and times it alone."""
    phase: InferencePhase = "forward"
    """forward runs whole samples; prefill reads prompts into a key-value cache; decode makes one token a step
    from it."""
    prompt_tokens: int = Field(default=512, ge=1, le=MAX_TOKENS)
    """Tokens of each prompt, for prefill and decode."""
    new_tokens: int = Field(default=128, ge=1, le=MAX_TOKENS)
    """Tokens that decode makes, a step each, before the cache goes back to the prompt."""

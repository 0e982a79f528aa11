"""Steps of making text: prefill reads a batch of prompts, decode adds a token to every sequence.

A prefill step begins with an empty cache. A decode step gives each sequence its most likely next token; after
`new_tokens` of them the cache goes back to the prompt, so that steps see every length again and again. What a
step is, counts and moves is said here too, in one place.
"""

from __future__ import annotations

import torch
from torch import nn

from gpuproof.records.case import Case
from gpuproof.worker.batch_source import Batches
from gpuproof.worker.precision import PrecisionPolicy
from gpuproof.workloads.base import GenerationWork, InputShape, WorkloadInfo
from gpuproof.workloads.generation import Generation


class PrefillStep:
    """One batch of prompts into an empty cache, as a function of nothing."""

    last_loss: torch.Tensor | None = None

    def __init__(self, generation: Generation, *, pool: Batches, precision: PrecisionPolicy) -> None:
        self.generation = generation
        self.module: nn.Module = generation.model  # type: ignore[assignment]  # a CachedModel is one
        self._pool = pool
        self._autocast = precision.autocast()
        self()  # allocates the cache

    def __call__(self) -> None:
        """Run one step."""
        prompts, _ = self._pool.next_batch()
        with torch.inference_mode(), self._autocast:
            self.generation.prefill(prompts)


class DecodeStep:
    """One more token for each sequence of a batch, as a function of nothing."""

    last_loss: torch.Tensor | None = None

    def __init__(self, generation: Generation, *, pool: Batches, precision: PrecisionPolicy) -> None:
        self.generation = generation
        self.module: nn.Module = generation.model  # type: ignore[assignment]  # a CachedModel is one
        self._autocast = precision.autocast()
        prompts, _ = pool.next_batch()
        with torch.inference_mode(), self._autocast:
            self._first = generation.prefill(prompts).argmax(dim=-1)
        self._prompt_tokens = generation.length
        self._tokens = self._first

    def __call__(self) -> None:
        """Run one step."""
        if self.generation.length == self.generation.cache.max_tokens:
            self.generation.rewind(self._prompt_tokens)
            self._tokens = self._first
        with torch.inference_mode(), self._autocast:
            self._tokens = self.generation.decode(self._tokens).argmax(dim=-1)


def generation_step(
    case: Case, module: nn.Module, *, pool: Batches, precision: PrecisionPolicy
) -> PrefillStep | DecodeStep:
    """Build the step of the case's phase, its cache allocated."""
    sizes = case.inference
    new_tokens = sizes.new_tokens if sizes.phase == "decode" else 0
    generation = Generation(
        module.eval(),  # type: ignore[arg-type]  # the workload says that it is a CachedModel
        num_slots=case.data.batch_size,
        max_tokens=sizes.prompt_tokens + new_tokens,
    )
    chosen = DecodeStep if sizes.phase == "decode" else PrefillStep
    return chosen(generation, pool=pool, precision=precision)


def item_of(case: Case, info: WorkloadInfo, shape: InputShape) -> tuple[str, int]:
    """Return what a rate of the case counts, and how many of them a sample is in one step."""
    if not case.generates:
        return info.item, info.items_per_sample(shape)
    decodes = case.inference.phase == "decode"
    return ("generated tokens", 1) if decodes else ("prompt tokens", case.inference.prompt_tokens)


def generation_work(case: Case, info: WorkloadInfo) -> GenerationWork:
    """Return the closed forms of the case's prompts and new tokens."""
    assert info.generation is not None  # the control side has refused other workloads
    sizes = case.inference
    options = info.options_type(**case.model.options)
    return info.generation(options, sizes.prompt_tokens, sizes.new_tokens)


def bytes_per_step(case: Case, info: WorkloadInfo, module: nn.Module, step: object) -> float | None:
    """Return the bytes that a decode step cannot but move, the mean over the new tokens.

    All weights once, as they are stored; keys and values of every sequence once, and those of the new tokens
    written. Activations and the few rows of the embedding are left out. None for other steps, and where the
    weights read depend on the tokens (experts).
    """
    if not isinstance(step, DecodeStep):
        return None
    work = generation_work(case, info)
    if work.decode_weights is None:
        return None
    weight_bytes = work.decode_weights * next(module.parameters()).element_size()
    elements = case.data.batch_size * work.decode_cache_elements
    return weight_bytes + elements * step.generation.cache.element_bytes


def kv_cache_bytes(step: object) -> int | None:
    """Return the bytes of the step's cache; None where it has none."""
    return step.generation.cache.num_bytes if isinstance(step, (PrefillStep, DecodeStep)) else None


def notes_of(case: Case) -> tuple[str, ...]:
    """Say what a step is, where that is not plain."""
    sizes = case.inference
    if sizes.phase == "prefill":
        return (f"a step reads {sizes.prompt_tokens} tokens of each sequence into an empty cache",)
    return (
        f"a step adds one token to each sequence, the most likely one; behind a prompt of "
        f"{sizes.prompt_tokens} come {sizes.new_tokens}, then the cache goes back to the prompt: "
        "work and bytes of a step are the mean over these",
    )

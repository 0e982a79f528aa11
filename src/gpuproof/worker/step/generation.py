"""Steps of making text: prefill reads a batch of prompts, decode adds a token to every sequence.

A prefill step begins with an empty cache. A decode step gives each sequence its most likely next token; after
`new_tokens` of them the cache goes back to the prompt, so that steps see every length again and again. What a
step is, counts and moves is said here too, in one place.
"""

from __future__ import annotations

import torch
from torch import nn

from gpuproof.records.case import Case
from gpuproof.worker.data.batch_source import Batches
from gpuproof.worker.step.precision import PrecisionPolicy
from gpuproof.workloads.info.base import GenerationWork, InputShape, WorkloadInfo
from gpuproof.workloads.torch.generation import Generation


class GenerationStep:
    """A step of a model with a key-value cache, as a function of nothing."""

    last_loss: torch.Tensor | None = None

    def __init__(self, generation: Generation, *, pool: Batches, precision: PrecisionPolicy) -> None:
        self.generation = generation
        self.module: nn.Module = generation.model  # type: ignore[assignment]  # a CachedModel is one
        self._pool = pool
        self._autocast = precision.autocast()
        self._begin()

    def _begin(self) -> None:
        """Run once, so that the cache is allocated."""
        self()

    def __call__(self) -> None:
        """Run one step: read a batch of prompts into an empty cache."""
        prompts, _ = self._pool.next_batch()
        with torch.inference_mode(), self._autocast:
            self.generation.prefill(prompts)

    def _first_tokens(self, prompts: torch.Tensor) -> torch.Tensor:
        with torch.inference_mode(), self._autocast:
            return self.generation.prefill(prompts).argmax(dim=-1)


class DecodeStep(GenerationStep):
    """One more token for each sequence of a batch."""

    def _begin(self) -> None:
        prompts, _ = self._pool.next_batch()
        self._tokens = self._first = self._first_tokens(prompts)
        self._prompt_tokens = self.generation.length

    def __call__(self) -> None:
        """Run one step."""
        if self.generation.length == self.generation.cache.max_tokens:
            self.generation.rewind(self._prompt_tokens)
            self._tokens = self._first
        with torch.inference_mode(), self._autocast:
            self._tokens = self.generation.decode(self._tokens).argmax(dim=-1)


class AnswerStep(GenerationStep):
    """A batch of prompts and the whole answer of each, every one as long as the cache has room for.

    The most likely token comes next and none ends an answer. Tokens stay on the device: nothing waits for
    each of them.
    """

    def _begin(self) -> None:
        self._prompts, _ = self._pool.next_batch()
        self()

    def __call__(self) -> None:
        """Answer a full batch."""
        self.read(len(self._prompts))
        self.go_on()

    def read(self, num_prompts: int) -> None:
        """Begin anew with so many prompts, and make the first token of each."""
        self._tokens = self._first_tokens(self._prompts[:num_prompts])

    def go_on(self) -> None:
        """Make the other tokens of the prompts that were read; the last token is never read."""
        with torch.inference_mode(), self._autocast:
            while self.generation.length < self.generation.cache.max_tokens:
                self._tokens = self.generation.decode(self._tokens).argmax(dim=-1)


def _served_tokens(case: Case) -> tuple[int, int]:
    assert case.serving is not None
    assert case.serving.prompt_tokens is not None
    assert case.serving.new_tokens is not None
    return case.serving.prompt_tokens, case.serving.new_tokens


def prompt_length(case: Case) -> int:
    """Return the length of the prompts of a case that makes text."""
    return _served_tokens(case)[0] if case.serves_text else case.inference.prompt_tokens


def generation_step(
    case: Case, module: nn.Module, *, pool: Batches, precision: PrecisionPolicy
) -> GenerationStep:
    """Build the step of the case's phase, its cache allocated."""
    sizes = case.inference
    kind = DecodeStep if sizes.phase == "decode" else GenerationStep
    max_tokens = sizes.prompt_tokens + (sizes.new_tokens if sizes.phase == "decode" else 0)
    if case.serves_text:
        prompt_tokens, new_tokens = _served_tokens(case)
        kind, max_tokens = AnswerStep, prompt_tokens + new_tokens - 1
    generation = Generation(
        module.eval(),  # type: ignore[arg-type]  # the workload says that it is a CachedModel
        num_slots=case.data.batch_size,
        max_tokens=max_tokens,
    )
    return kind(generation, pool=pool, precision=precision)


def counted_item(case: Case, info: WorkloadInfo, shape: InputShape) -> tuple[str, int]:
    """Return what a rate of the case counts, and how many of them a sample is in one step."""
    if not case.generates:
        return info.item, info.items_per_sample(shape)
    if case.serves_text:
        return "generated tokens", _served_tokens(case)[1]
    decodes = case.inference.phase == "decode"
    return ("generated tokens", 1) if decodes else ("prompt tokens", case.inference.prompt_tokens)


def generation_work(case: Case, info: WorkloadInfo) -> GenerationWork:
    """Return the closed forms of the case's prompts and new tokens."""
    assert info.generation is not None  # the control side has refused other workloads
    sizes = case.inference
    options = info.options_type(**case.model.options)
    return info.generation(options, sizes.prompt_tokens, sizes.new_tokens)


def generation_flops(case: Case, info: WorkloadInfo) -> float:
    """Return the FLOPs of one sequence in one step of the case, from the closed forms."""
    if not case.serves_text:
        work = generation_work(case, info)
        return work.decode_flops if case.inference.phase == "decode" else work.prefill_flops
    assert info.generation is not None  # the control side has refused other workloads
    prompt_tokens, new_tokens = _served_tokens(case)
    decoded = new_tokens - 1  # prefill makes the first
    work = info.generation(info.options_type(**case.model.options), prompt_tokens, max(1, decoded))
    return work.prefill_flops + decoded * work.decode_flops


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
    return step.generation.cache.num_bytes if isinstance(step, GenerationStep) else None


def generation_notes(case: Case) -> tuple[str, ...]:
    """Say what a step is, where that is not plain."""
    if case.serves_text:
        prompt_tokens, new_tokens = _served_tokens(case)
        return (
            f"a request is a prompt of {prompt_tokens} tokens, answered with {new_tokens}; batches are "
            "static: the next begins when all tokens of the one before are made (no continuous batching)",
        )
    sizes = case.inference
    if sizes.phase == "prefill":
        return (f"a step reads {sizes.prompt_tokens} tokens of each sequence into an empty cache",)
    return (
        f"a step adds one token to each sequence, the most likely one; behind a prompt of "
        f"{sizes.prompt_tokens} come {sizes.new_tokens}, then the cache goes back to the prompt: "
        "work and bytes of a step are the mean over these",
    )

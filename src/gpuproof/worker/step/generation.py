"""Generation steps: prefill reads a batch of prompts, and decode adds a token to every sequence.

A prefill step starts with an empty cache. A decode step appends the most likely next token to each sequence.
After `new_tokens` decode steps, the cache is reset to the prompt, so that steps cycle through all lengths
repeatedly. This module is also the only one that defines a step, the items it counts, and the number of bytes
it moves.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal, NamedTuple

import torch
from torch import nn

from gpuproof.base.errors import UsageError
from gpuproof.base.units import memory
from gpuproof.records.case import InferenceWork, ModelWork, ServingWork
from gpuproof.records.what_ran import Effective
from gpuproof.worker.data.batch_source import Batches
from gpuproof.worker.step.cuda_graph import Capture, CapturedStep, Step, Uncaptured
from gpuproof.worker.step.decoding import BUCKET, Decoding, bucket_end, bucket_ends
from gpuproof.worker.step.fp8 import count_linear_layers
from gpuproof.worker.step.precision import AUTOCAST_TYPES, PrecisionPolicy
from gpuproof.workloads.info.base import GenerationWork, InputShape, WorkloadInfo
from gpuproof.workloads.torch.generation import Generation


class GenerationStep:
    """A step of a model with a key-value cache, as a function without arguments."""

    last_loss: torch.Tensor | None = None

    def __init__(self, decoding: Decoding, *, pool: Batches, limit: int) -> None:
        """Build a step; a sequence has at most `limit` tokens."""
        self.decoding, self.generation = decoding, decoding.generation
        self.module: nn.Module = self.generation.model  # type: ignore[assignment]  # a CachedModel is one
        self.limit = limit
        self._pool = pool
        self._begin()

    @property
    def outputs(self) -> torch.Tensor | None:
        """The logits of the latest tokens."""
        return self.decoding.outputs

    def _begin(self) -> None:
        """Run once, so that the cache gets allocated."""
        self()

    def __call__(self) -> None:
        """Run one step: read a batch of prompts into an empty cache."""
        self.decoding.begin(self._pool.next_batch()[0])


class DecodeStep(GenerationStep):
    """A step that adds one more token to each sequence in a batch."""

    def _begin(self) -> None:
        super().__call__()
        self._first, self._prompt_tokens = self.decoding.tokens, self.generation.length

    @property
    def tokens_before(self) -> int:
        """Number of tokens after the prompt that are in the cache before the next step."""
        return (self.generation.length - self._prompt_tokens) % (self.limit - self._prompt_tokens)

    def __call__(self) -> None:
        """Run one step, launched from the host."""
        self._go_back_where_full()
        self.decoding.step_from_host()

    def next_within_bucket(self) -> None:
        """Run one step with fixed shapes."""
        self._go_back_where_full()
        self.decoding.step()

    def _go_back_where_full(self) -> None:
        if self.generation.length == self.limit:
            self._go_back()

    def _go_back(self) -> None:
        self.generation.rewind(self._prompt_tokens)
        self.decoding.go_on_from(self._first)

    def capture(self, observe: Callable[[Step], Effective]) -> CapturedStep:
        """Prepare all length buckets, and observe one step with `observe`."""
        seen: list[Effective] = []
        for end in bucket_ends(self._prompt_tokens + 1, self.limit):
            self.generation.cache.length = max(self._prompt_tokens, end - BUCKET)
            self.decoding.bucket_step(lambda step: seen.append(observe(step)))
        self._go_back()
        is_graph = not isinstance(self.decoding.capture, Uncaptured)
        return CapturedStep(eager=self, run=self.next_within_bucket, effective=seen[0], is_graph=is_graph)


class AnswerStep(GenerationStep):
    """Processes a batch of prompts and generates full responses, each as long as the cache allows.

    The most likely token is always chosen, and no token ends a response. Tokens stay on the device, so
    nothing waits for individual tokens.
    """

    def _begin(self) -> None:
        self._prompts, _ = self._pool.next_batch()
        self()

    def __call__(self) -> None:
        """Generate responses for a full batch."""
        self.read(len(self._prompts))
        self.go_on()

    def read(self, num_prompts: int) -> None:
        """Start over with this many prompts, and generate the first token of each answer."""
        self.decoding.begin(self._prompts[:num_prompts])

    def go_on(self) -> None:
        """Generate the remaining tokens for the prompts that were read; the last one is never read."""
        while self.generation.length < self.limit:
            self.decoding.step()


class _Sizes(NamedTuple):
    """Definition of a step, with the number of tokens in a prompt and the number generated after it."""

    phase: Literal["prefill", "decode", "answer"]
    prompt_tokens: int
    new_tokens: int


def _sizes(work: ModelWork) -> _Sizes:
    if isinstance(work, InferenceWork):
        inference = work.inference
        phase: Literal["prefill", "decode"] = "decode" if inference.phase == "decode" else "prefill"
        return _Sizes(phase, inference.prompt_tokens, inference.new_tokens)
    assert isinstance(work, ServingWork)
    assert work.serving.prompt_tokens is not None
    assert work.serving.new_tokens is not None
    return _Sizes("answer", work.serving.prompt_tokens, work.serving.new_tokens)


def prompt_length(work: ModelWork) -> int:
    """Return the prompt length for a workload that generates text."""
    return _sizes(work).prompt_tokens


def generation_step(
    work: ModelWork,
    module: nn.Module,
    *,
    pool: Batches,
    precision: PrecisionPolicy,
    capture: Capture | None = None,
) -> GenerationStep:
    """Build the requested step and allocate its cache; with `capture`, tokens are generated by graphs."""
    phase, prompt_tokens, new_tokens = _sizes(work)
    step, added = {
        "prefill": (GenerationStep, 0),
        "decode": (DecodeStep, new_tokens),
        "answer": (AnswerStep, new_tokens - 1),
    }[phase]
    limit = prompt_tokens + added
    if capture is None and work.training.compile.enabled:
        capture = Uncaptured()  # otherwise each length might cause a recompilation
    by_bucket = capture is not None and added > 0
    generation = Generation(
        module.eval(),  # type: ignore[arg-type]  # the workload says that it is a CachedModel
        num_slots=work.data.batch_size,
        max_tokens=bucket_end(limit) if by_bucket else limit,
    )
    decoding = Decoding(generation, precision=precision, capture=capture if by_bucket else None)
    return step(decoding, pool=pool, limit=limit)


def counted_item(work: ModelWork, info: WorkloadInfo, shape: InputShape) -> tuple[str, int]:
    """Return the item that a rate counts, and the number of items that a sample contributes per step."""
    if not work.generates:
        return info.item, info.items_per_sample(shape)
    phase, prompt_tokens, new_tokens = _sizes(work)
    if phase == "prefill":
        return "prompt tokens", prompt_tokens
    return "generated tokens", 1 if phase == "decode" else new_tokens


def _generation_work(work: ModelWork, info: WorkloadInfo) -> GenerationWork:
    """Return the closed-form counts for the prompts and for the tokens generated by decoding."""
    assert info.generation is not None  # the control side has rejected all other workloads
    phase, prompt_tokens, new_tokens = _sizes(work)
    # prefill already generates the first token of an answer
    decoded = max(1, new_tokens - 1) if phase == "answer" else new_tokens
    return info.generation(info.options_type(**work.model.options), prompt_tokens, decoded)


def require_room(work: ModelWork, info: WorkloadInfo, *, num_parameters: int, free_bytes: int) -> None:
    """Reject a batch whose cache does not fit next to the weights; other memory use is ignored.

    Raises:
        UsageError: the batch is too large; the message states the largest one that fits.
    """
    sizes, once = _sizes(work), work.training.precision == "fp8" and work.stored_type != "float32"
    weight_bytes = 1 if once else getattr(torch, work.stored_type).itemsize
    value_bytes = AUTOCAST_TYPES.get(work.training.precision, torch.float32).itemsize
    places = sizes.prompt_tokens + (0 if sizes.phase == "prefill" else sizes.new_tokens - 1)
    sequence_bytes = _generation_work(work, info).cache_elements_per_token * value_bytes * places
    fitting = (free_bytes - num_parameters * weight_bytes) // sequence_bytes
    if fitting < work.data.batch_size:
        fits = f"{fitting} at most" if fitting > 0 else "not even one fits next to the weights"
        raise UsageError(
            f"{work.data.batch_size} sequences of {places} tokens do not fit in "
            f"{memory(free_bytes)} of free memory: {fits}",
            place="data.batch_size",
            next_step=f"Set it to {fitting} or less" if fitting > 0 else "Use a smaller model",
        )


def generation_flops(work: ModelWork, info: WorkloadInfo) -> float:
    """Return the FLOPs for one sequence in one step, computed analytically."""
    sizes, costs = _sizes(work), _generation_work(work, info)
    if sizes.phase == "answer":
        return costs.prefill_flops + (sizes.new_tokens - 1) * costs.decode_flops
    return costs.decode_flops if sizes.phase == "decode" else costs.prefill_flops


def bytes_per_step(work: ModelWork, info: WorkloadInfo, module: nn.Module, step: object) -> float | None:
    """Return the minimum bytes that a decode step must move, averaged over the new tokens.

    All weights are read once, as stored (in fp8, one byte each). Keys and values of every sequence are read
    once, and the new tokens' keys and values are written. Activations and the few embedding rows are omitted.
    None for other steps, or if the tokens determine which weights are read (experts).
    """
    if not isinstance(step, DecodeStep):
        return None
    costs = _generation_work(work, info)
    if costs.decode_weights is None:
        return None
    # size of embedding values, which no fp8 matmul reads
    value_bytes = next(module.parameters()).element_size()
    saved_bytes = count_linear_layers(module).stored_weights * (value_bytes - 1)
    weight_bytes = costs.decode_weights * value_bytes - saved_bytes
    elements = work.data.batch_size * costs.decode_cache_elements
    return weight_bytes + elements * step.generation.cache.element_bytes


def padded_bytes_per_step(work: ModelWork, info: WorkloadInfo, step: object) -> float | None:
    """Return the cache bytes that a decode step reads past the last token, averaged over new tokens.

    If steps are captured, attention reads to the end of a bucket; None for other steps.
    """
    if not isinstance(step, DecodeStep) or step.decoding.capture is None:
        return None
    _, prompt_tokens, new_tokens = _sizes(work)
    keys = range(prompt_tokens + 1, prompt_tokens + new_tokens + 1)
    places = sum(bucket_end(key) - key for key in keys) / new_tokens
    elements = _generation_work(work, info).cache_elements_per_token * work.data.batch_size * places
    return elements * step.generation.cache.element_bytes


def graph_ends(step: object) -> tuple[int, ...]:
    """Return the position where attention stops reading in each bucket with a graph; may be empty."""
    if not isinstance(step, GenerationStep):
        return ()
    return tuple(sorted({end for _, end in step.decoding.steps}))


def generation_notes(work: ModelWork) -> tuple[str, ...]:
    """Describe what the step does, if it is not obvious."""
    phase, prompt_tokens, new_tokens = _sizes(work)
    if phase == "answer":
        return (
            f"a request is a prompt of {prompt_tokens} tokens, answered with {new_tokens}; batches "
            "are static: the next batch starts when all tokens of the previous batch are "
            "generated (no continuous batching)",
        )
    if phase == "prefill":
        return (f"a step reads {prompt_tokens} tokens of each sequence into an empty cache",)
    return (
        f"a step adds the most likely next token to each sequence; a prompt of {prompt_tokens} is "
        f"followed by {new_tokens}, then the cache returns to the prompt: a step's work and bytes "
        "are the mean over these lengths",
    )

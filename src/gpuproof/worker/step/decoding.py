"""Greedy decoding after a prefill, either step by step from the host or with a graph per bucket.

A graph has fixed shapes. So attention reads up to the end of a bucket of `BUCKET` positions, and a mask hides
positions that have no token yet. Tokens and their positions stay on the device, so nothing waits for them.
Graphs are captured on first use for each combination of batch size and bucket.
"""

from __future__ import annotations

from collections.abc import Callable

import torch

from gpuproof.worker.step.cuda_graph import STEPS_BEFORE_CAPTURE, Capture, Step, captured
from gpuproof.worker.step.precision import PrecisionPolicy
from gpuproof.workloads.torch.generation import Generation

BUCKET = 64
"""Number of positions per bucket: attention reads 32 too many on average, and kernels prefer a multiple of
8."""


def bucket_end(num_places: int) -> int:
    """Return the position up to which attention reads when a step needs this many positions.

    >>> bucket_end(1), bucket_end(64), bucket_end(65)
    (64, 64, 128)
    """
    return -(-num_places // BUCKET) * BUCKET


def bucket_ends(first: int, last: int) -> range:
    """Return the upper ends of the buckets for steps that need from `first` to `last` positions.

    >>> list(bucket_ends(60, 64)), list(bucket_ends(64, 200))
    ([64], [64, 128, 192, 256])
    """
    return range(bucket_end(first), bucket_end(last) + 1, BUCKET)


def _run(step: Step) -> None:
    step()


class Decoding:
    """Repeatedly appends the most likely token to each sequence."""

    outputs: torch.Tensor
    """The logits from which the latest tokens were chosen."""
    tokens: torch.Tensor
    """The latest token of each sequence, (batch,)."""

    def __init__(
        self, generation: Generation, *, precision: PrecisionPolicy, capture: Capture | None = None
    ) -> None:
        """Decode with graphs if `capture` is given."""
        self.generation = generation
        self.steps: dict[tuple[int, int], tuple[Step, list[torch.Tensor]]] = {}
        """Steps that append a token, and the scores that they write, keyed by batch size and end of the
        bucket."""
        self.capture = capture
        self._autocast = precision.autocast()
        self._inputs = generation.cache.position.new_zeros(generation.cache.num_slots)
        self._placed: int | None = None
        """The sequence length stored on the device; None if it must be set."""

    def begin(self, prompts: torch.Tensor) -> None:
        """Read prompts (batch, tokens) into an empty cache, and generate the first token of each."""
        with torch.inference_mode(), self._autocast:
            self.outputs = self.generation.prefill(prompts)
            self.go_on_from(self.outputs.argmax(dim=-1))

    def go_on_from(self, tokens: torch.Tensor) -> None:
        """Continue from these tokens, placed after the current content of the cache."""
        self.tokens, self._placed = tokens, None

    def step_from_host(self) -> None:
        """Append a token; attention reads no more than necessary."""
        with torch.inference_mode(), self._autocast:
            self.outputs = self.generation.decode(self.tokens)
            self.go_on_from(self.outputs.argmax(dim=-1))

    @torch.inference_mode()
    def step(self) -> None:
        """Append a token, using a graph if possible."""
        if self.capture is None:
            self.step_from_host()
            return
        run, scores = self.bucket_step()
        if self._placed != self.generation.length:
            self._place(self.tokens)
        run()
        self.generation.cache.length += 1
        self._placed = self.generation.length
        self.outputs, self.tokens = scores[0], self._inputs[: self.generation.batch]

    @torch.inference_mode()
    def bucket_step(self, look: Callable[[Step], None] = _run) -> tuple[Step, list[torch.Tensor]]:
        """Return the step for the current batch and bucket, capturing it if needed; append nothing.

        `look` runs the last step before the capture.

        Raises:
            UsageError: the step does something that a graph cannot contain.
        """
        batch, end = self.generation.batch, bucket_end(self.generation.length + 1)
        if (batch, end) not in self.steps:
            self.steps[batch, end] = self._captured(batch, end, look)
        return self.steps[batch, end]

    def _captured(
        self, batch: int, end: int, look: Callable[[Step], None]
    ) -> tuple[Step, list[torch.Tensor]]:
        inputs, first, scores = self._inputs[:batch], self.tokens.clone(), list[torch.Tensor]()

        def run() -> None:
            with self._autocast:
                scores[:] = [self.generation.decode_within(inputs, end)]
                inputs.copy_(scores[0].argmax(dim=-1))

        def warm_up() -> None:
            for look_at in (*[_run] * (STEPS_BEFORE_CAPTURE - 1), look):
                self._place(first)
                look_at(run)

        assert self.capture is not None
        self.capture.run_aside(warm_up)
        self.go_on_from(first)
        return captured(run, self.capture, key="inference.cuda_graphs"), scores

    def _place(self, tokens: torch.Tensor) -> None:
        self._inputs[: len(tokens)].copy_(tokens)
        self.generation.cache.place()

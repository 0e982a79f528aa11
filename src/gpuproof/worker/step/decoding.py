"""Greedy decoding behind a prefill: step by step from the host, or by graphs, one for each bucket of lengths.

A graph has fixed shapes. So attention reads to the end of a bucket of `BUCKET` places, a mask hides those
that hold no token yet, and tokens and their place are kept on the device: nothing waits for any of them.
Graphs are captured for each size of batch and bucket when it is first met.
"""

from __future__ import annotations

from collections.abc import Callable

import torch

from gpuproof.worker.step.cuda_graph import STEPS_BEFORE_CAPTURE, Capture, Step, captured
from gpuproof.worker.step.precision import PrecisionPolicy
from gpuproof.workloads.torch.generation import Generation

BUCKET = 64
"""Places: attention reads 32 too many on average, and kernels want a multiple of 8."""


def bucket_end(num_places: int) -> int:
    """Return up to where attention reads that needs so many places.

    >>> bucket_end(1), bucket_end(64), bucket_end(65)
    (64, 64, 128)
    """
    return -(-num_places // BUCKET) * BUCKET


def bucket_ends(first: int, last: int) -> range:
    """Return the ends of the buckets of steps that need from `first` to `last` places.

    >>> list(bucket_ends(60, 64)), list(bucket_ends(64, 200))
    ([64], [64, 128, 192, 256])
    """
    return range(bucket_end(first), bucket_end(last) + 1, BUCKET)


def _run(step: Step) -> None:
    step()


class Decoding:
    """Adds the most likely token to each sequence, again and again."""

    outputs: torch.Tensor
    """The scores of the latest tokens."""
    tokens: torch.Tensor
    """The latest of each sequence, (batch,)."""

    def __init__(
        self, generation: Generation, *, precision: PrecisionPolicy, capture: Capture | None = None
    ) -> None:
        """Decode by graphs where there is a `capture`."""
        self.generation = generation
        self.steps: dict[tuple[int, int], tuple[Step, list[torch.Tensor]]] = {}
        """By size of batch and end of the bucket: what adds a token, and the scores that it writes."""
        self.capture = capture
        self._autocast = precision.autocast()
        self._inputs = generation.cache.position.new_zeros(generation.cache.num_slots)
        self._placed: int | None = None
        """The length that the device knows; None where it is to be told."""

    def begin(self, prompts: torch.Tensor) -> None:
        """Read prompts (batch, tokens) into an empty cache, and make the first token of each."""
        with torch.inference_mode(), self._autocast:
            self.outputs = self.generation.prefill(prompts)
            self.go_on_from(self.outputs.argmax(dim=-1))

    def go_on_from(self, tokens: torch.Tensor) -> None:
        """Take these tokens as the latest, behind what the cache holds."""
        self.tokens, self._placed = tokens, None

    def step_from_host(self) -> None:
        """Add a token; attention reads no more than it must."""
        with torch.inference_mode(), self._autocast:
            self.outputs = self.generation.decode(self.tokens)
            self.go_on_from(self.outputs.argmax(dim=-1))

    @torch.inference_mode()
    def step(self) -> None:
        """Add a token, by a graph where there may be one."""
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
        """Return the step of the present batch and bucket, captured if it was not yet; add nothing.

        `look` runs the last step before the capture.

        Raises:
            UsageError: the step does what a graph cannot hold.
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

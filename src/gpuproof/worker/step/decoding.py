"""Greedy decoding behind a prefill: step by step from the host, or by graphs, one for each bucket of lengths.

A graph has fixed shapes. So attention reads to the end of a bucket of `BUCKET` places, a mask hides those
that hold no token yet, and tokens and their place are kept on the device: nothing waits for any of them.
Graphs are captured for each size of batch and bucket when it is first met.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

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


@dataclass(frozen=True, slots=True)
class BucketStep:
    """A step for one size of batch in one bucket."""

    run: Step
    scores: list[torch.Tensor]
    """The latest, which a replay writes to the same place each time."""


class Decoding:
    """Adds the most likely token to each sequence, again and again."""

    def __init__(
        self,
        generation: Generation,
        *,
        precision: PrecisionPolicy,
        capture: Capture | None = None,
        is_static: bool = False,
    ) -> None:
        """Decode by graphs where there is a `capture`; `is_static` has fixed shapes without graphs."""
        self.generation = generation
        self.outputs: torch.Tensor | None = None
        self.tokens = torch.zeros(0)
        """The latest of each sequence, (batch,)."""
        self.is_static = is_static or capture is not None
        self.steps: dict[tuple[int, int], BucketStep] = {}
        """By size of batch and end of the bucket."""
        self._autocast = precision.autocast()
        self._capture = capture
        self._inputs = torch.zeros(
            generation.cache.num_slots, dtype=torch.long, device=generation.cache.position.device
        )
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
        """Add a token, exactly as long as attention must read."""
        with torch.inference_mode(), self._autocast:
            self.outputs = self.generation.decode(self.tokens)
            self.go_on_from(self.outputs.argmax(dim=-1))

    def step(self) -> None:
        """Add a token."""
        if not self.is_static:
            self.step_from_host()
            return
        with torch.inference_mode():
            step = self.prepared_step()
            if self._placed != self.generation.length:
                self._place(self.tokens)
            step.run()
        self.generation.added()
        self._placed = self.generation.length
        self.outputs, self.tokens = step.scores[0], self._inputs[: self.generation.batch]

    def prepared_step(self, look: Callable[[Step], None] | None = None) -> BucketStep:
        """Return the step of the present batch and bucket, captured if it was not yet; add nothing.

        `look` runs the last step before the capture.

        Raises:
            UsageError: the step does what a graph cannot hold.
        """
        batch, end = self.generation.batch, bucket_end(self.generation.length + 1)
        if (batch, end) not in self.steps:
            with torch.inference_mode():
                self.steps[batch, end] = self._make(batch, end, look)
        return self.steps[batch, end]

    def _make(self, batch: int, end: int, look: Callable[[Step], None] | None) -> BucketStep:
        inputs, first, scores = self._inputs[:batch], self.tokens.clone(), list[torch.Tensor]()

        def run() -> None:
            with self._autocast:
                scores[:] = [self.generation.decode_within(inputs, end)]
                inputs.copy_(scores[0].argmax(dim=-1))

        def warm_up() -> None:
            for _ in range(STEPS_BEFORE_CAPTURE - 1):
                self._place(first)
                run()
            self._place(first)
            run() if look is None else look(run)

        if self._capture is None:
            return BucketStep(run, scores)
        self._capture.run_aside(warm_up)
        replay = captured(run, self._capture, key="inference.cuda_graphs")
        self.tokens, self._placed = first, None
        return BucketStep(replay, scores)

    def _place(self, tokens: torch.Tensor) -> None:
        self._inputs[: len(tokens)].copy_(tokens)
        self.generation.cache.place()

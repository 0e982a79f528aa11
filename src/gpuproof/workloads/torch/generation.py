"""Making text with a key-value cache: prompts are read once, then each step adds a token to every sequence.

Whoever measures or serves a decoder drives a `Generation`. It has so many slots, a sequence in each; a batch
takes the first of them, is read by `prefill`, and goes on by `decode`, all sequences in step. The cache is
allocated once, at the first prefill, in the type that the model's keys have there.
"""

from __future__ import annotations

from typing import Protocol

import torch


class CachedModel(Protocol):
    """A model that can read on where it stopped."""

    def new_cache(self, *, num_slots: int, max_tokens: int) -> KeyValueCache:
        """Return an empty cache of the model's sizes."""

    def next_scores(self, tokens: torch.Tensor, cache: KeyValueCache) -> torch.Tensor:
        """Map (batch, tokens) that follow what the cache holds to scores (batch, vocab_size) of the last."""


class LayerCache:
    """Keys and values of one layer, each (slots, key-value heads, tokens, head width)."""

    def __init__(self, *, num_slots: int, max_tokens: int) -> None:
        self._num_slots, self._max_tokens = num_slots, max_tokens
        self._tensors: tuple[torch.Tensor, torch.Tensor] | None = None
        self.length = 0

    @property
    def num_bytes(self) -> int:
        """Bytes allocated."""
        return sum(tensor.numel() * tensor.element_size() for tensor in self._tensors or ())

    @property
    def element_bytes(self) -> int:
        """Bytes of one number; 0 before the first prefill."""
        return 0 if self._tensors is None else self._tensors[0].element_size()

    def append(self, keys: torch.Tensor, values: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Write (batch, heads, tokens, head width) behind what is there; return all of it, as views."""
        if self._tensors is None or self._tensors[0].dtype != keys.dtype:
            shape = (self._num_slots, keys.shape[1], self._max_tokens, keys.shape[3])
            self._tensors = (keys.new_empty(shape), values.new_empty(shape))
        batch, begin, end = keys.shape[0], self.length, self.length + keys.shape[2]
        for stored, new in zip(self._tensors, (keys, values), strict=True):
            stored[:batch, :, begin:end] = new
        self.length = end
        return self._tensors[0][:batch, :, :end], self._tensors[1][:batch, :, :end]


class KeyValueCache:
    """What a model remembers of the tokens it has read, layer by layer, and the angles of all positions."""

    def __init__(self, *, num_layers: int, num_slots: int, max_tokens: int, angles: torch.Tensor) -> None:
        self.num_slots, self.max_tokens = num_slots, max_tokens
        self._angles = angles
        self.layers = [LayerCache(num_slots=num_slots, max_tokens=max_tokens) for _ in range(num_layers)]

    @property
    def length(self) -> int:
        """Tokens of each sequence that are in the cache."""
        return self.layers[0].length

    @property
    def num_bytes(self) -> int:
        """Bytes allocated; 0 before the first prefill."""
        return sum(layer.num_bytes for layer in self.layers)

    @property
    def element_bytes(self) -> int:
        """Bytes of one key or value; 0 before the first prefill."""
        return self.layers[0].element_bytes

    def rewind(self, length: int) -> None:
        """Forget all tokens but the first `length`."""
        for layer in self.layers:
            layer.length = length

    def next_angles(self, num_tokens: int) -> torch.Tensor:
        """Return the angles of the next positions, (2, num_tokens, head width)."""
        return self._angles[:, self.length : self.length + num_tokens]


class Generation:
    """A model and its cache. Scores are (batch, vocab_size), those of the token to come."""

    def __init__(self, model: CachedModel, *, num_slots: int, max_tokens: int) -> None:
        self.model = model
        self._batch = 0
        self.cache = model.new_cache(num_slots=num_slots, max_tokens=max_tokens)

    @property
    def length(self) -> int:
        """Tokens of each sequence that have been read."""
        return self.cache.length

    def prefill(self, prompts: torch.Tensor) -> torch.Tensor:
        """Begin anew with prompts (batch, tokens).

        Raises:
            ValueError: there are more prompts than slots, or more tokens than places.
        """
        self._batch = prompts.shape[0]
        self.cache.rewind(0)
        return self._read(prompts)

    def decode(self, tokens: torch.Tensor) -> torch.Tensor:
        """Add one token (batch,) to each sequence of the last prefill.

        Raises:
            ValueError: there are not as many tokens as sequences, or the cache is full.
        """
        if tokens.shape[0] != self._batch:
            raise ValueError(f"{tokens.shape[0]} tokens do not go on with {self._batch} sequences")
        return self._read(tokens[:, None])

    def rewind(self, length: int) -> None:
        """Forget all tokens of each sequence but the first `length`.

        Raises:
            ValueError: there are fewer.
        """
        if not 0 <= length <= self.length:
            raise ValueError(f"the cache holds {self.length} tokens of a sequence, not {length}")
        self.cache.rewind(length)

    def _read(self, tokens: torch.Tensor) -> torch.Tensor:
        batch, num_tokens = tokens.shape
        if batch > self.cache.num_slots or self.length + num_tokens > self.cache.max_tokens:
            raise ValueError(
                f"the cache has {self.cache.num_slots} slots of {self.cache.max_tokens} tokens: "
                f"{batch} × {num_tokens} do not fit behind the {self.length} that it holds"
            )
        with torch.inference_mode():
            return self.model.next_scores(tokens, self.cache)

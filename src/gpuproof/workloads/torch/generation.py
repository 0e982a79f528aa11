"""Making text with a key-value cache: prompts are read once, then each step adds a token to every sequence.

Whoever measures or serves a decoder drives a `Generation`. It has so many slots, a sequence in each; a batch
takes the first of them, is read by `prefill`, and goes on by `decode`, all sequences in step. The cache is
allocated once, at the first prefill, in the type that the model's keys have there.

A step whose shapes may not depend on the length (`decode_within`), as in a captured graph, writes where the
device says and attends to all places up to `end`; a mask hides those behind the new token.
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

    def __init__(self, cache: KeyValueCache) -> None:
        self.cache = cache
        self.tensors: tuple[torch.Tensor, torch.Tensor] | None = None

    def append(self, keys: torch.Tensor, values: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Write (batch, heads, tokens, head width) behind what is there; return all of it, as views."""
        cache = self.cache
        if self.tensors is None or self.tensors[0].dtype != keys.dtype:
            shape = (cache.num_slots, keys.shape[1], cache.max_tokens, keys.shape[3])
            self.tensors = (keys.new_zeros(shape), values.new_zeros(shape))  # a mask hides no NaN
        batch, begin, end = keys.shape[0], cache.length, cache.end
        for stored, new in zip(self.tensors, (keys, values), strict=True):
            if end is None:
                stored[:batch, :, begin : begin + keys.shape[2]] = new
            else:
                stored[:batch].index_copy_(2, cache.position, new)
        end = begin + keys.shape[2] if end is None else end
        return self.tensors[0][:batch, :, :end], self.tensors[1][:batch, :, :end]


class KeyValueCache:
    """What a model remembers of the tokens it has read, layer by layer, and the angles of all positions."""

    def __init__(self, *, num_layers: int, num_slots: int, max_tokens: int, angles: torch.Tensor) -> None:
        self.num_slots, self.max_tokens = num_slots, max_tokens
        self._angles = angles
        self.layers = [LayerCache(self) for _ in range(num_layers)]
        self.length = 0
        """Tokens of each sequence that are in the cache."""
        self.end: int | None = None
        """Up to where attention reads while the device says where the next token goes, which is at:"""
        self.position = torch.zeros(1, dtype=torch.long, device=angles.device)
        self._mask = torch.zeros(0)

    @property
    def num_bytes(self) -> int:
        """Bytes allocated; 0 before the first prefill."""
        tensors = [tensor for layer in self.layers for tensor in layer.tensors or ()]
        return sum(tensor.numel() * tensor.element_size() for tensor in tensors)

    @property
    def element_bytes(self) -> int:
        """Bytes of one key or value; 0 before the first prefill."""
        tensors = self.layers[0].tensors
        return 0 if tensors is None else tensors[0].element_size()

    @property
    def mask(self) -> torch.Tensor | None:
        """What is added to the scores of attention, (1, 1, 1, end); None where all that is read counts."""
        return None if self.end is None else self._mask[None, None, None, : self.end]

    def place(self) -> None:
        """Tell the device where the next token goes."""
        tensors = self.layers[0].tensors
        assert tensors is not None
        if self._mask.dtype != tensors[0].dtype or not self._mask.numel():
            self._mask = tensors[0].new_empty(
                self.max_tokens + 1
            )  # one, so that `advance` may go past the end
        self._mask.fill_(-torch.inf)[: self.length + 1] = 0
        self.position.fill_(self.length)

    def advance(self) -> None:
        """Have the device go on by a token: its place, and what attention sees."""
        self.position.add_(1)
        self._mask.index_fill_(0, self.position, 0)

    def next_angles(self, num_tokens: int) -> torch.Tensor:
        """Return the angles of the next positions, (2, num_tokens, head width)."""
        if self.end is not None:
            return self._angles.index_select(1, self.position)
        return self._angles[:, self.length : self.length + num_tokens]


class Generation:
    """A model and its cache. Scores are (batch, vocab_size), those of the token to come."""

    def __init__(self, model: CachedModel, *, num_slots: int, max_tokens: int) -> None:
        self.model = model
        self.next_scores = model.next_scores
        """What runs: the model's own, or that compiled."""
        self.batch = 0
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
        self.batch = prompts.shape[0]
        self.cache.length = 0
        return self._read(prompts)

    def decode(self, tokens: torch.Tensor) -> torch.Tensor:
        """Add one token (batch,) to each sequence of the last prefill.

        Raises:
            ValueError: there are not as many tokens as sequences, or the cache is full.
        """
        if tokens.shape[0] != self.batch:
            raise ValueError(f"{tokens.shape[0]} tokens do not go on with {self.batch} sequences")
        return self._read(tokens[:, None])

    def decode_within(self, tokens: torch.Tensor, end: int) -> torch.Tensor:
        """Do on the device alone what `decode` does, and attend up to `end`: a graph may hold it.

        `KeyValueCache.place` has said where; whoever has it run counts the tokens.
        """
        self.cache.end = end
        try:
            with torch.inference_mode():
                scores = self.next_scores(tokens[:, None], self.cache)
                self.cache.advance()
                return scores
        finally:
            self.cache.end = None

    def rewind(self, length: int) -> None:
        """Forget all tokens of each sequence but the first `length`.

        Raises:
            ValueError: there are fewer.
        """
        if not 0 <= length <= self.length:
            raise ValueError(f"the cache holds {self.length} tokens of a sequence, not {length}")
        self.cache.length = length

    def _read(self, tokens: torch.Tensor) -> torch.Tensor:
        batch, num_tokens = tokens.shape
        if batch > self.cache.num_slots or self.length + num_tokens > self.cache.max_tokens:
            raise ValueError(
                f"the cache has {self.cache.num_slots} slots of {self.cache.max_tokens} tokens: "
                f"{batch} × {num_tokens} do not fit behind the {self.length} that it holds"
            )
        with torch.inference_mode():
            scores = self.next_scores(tokens, self.cache)
        self.cache.length += num_tokens
        return scores

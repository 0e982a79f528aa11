"""Text generation with a key-value cache: prefill once, then each step adds a token per sequence.

Code that measures or serves a decoder uses a `Generation`, which has a fixed number of slots with one
sequence each. A batch uses the first slots. `prefill` reads the prompts, and `decode` adds a token to each,
all sequences in lockstep. The cache is allocated once, at the first prefill, with the dtype of the model's
keys.

A step with shapes that must not depend on the length (`decode_within`), as in a captured graph, writes at the
position stored on the device and attends to all positions up to `end`; a mask hides the positions after the
new token.
"""

from __future__ import annotations

from typing import Protocol

import torch


class CachedModel(Protocol):
    """A model that can continue from the tokens in a cache."""

    def new_cache(self, *, num_slots: int, max_tokens: int) -> KeyValueCache:
        """Return an empty cache for a model of this size."""

    def next_scores(self, tokens: torch.Tensor, cache: KeyValueCache) -> torch.Tensor:
        """Map tokens (batch, tokens) that follow the cache to the last one's scores (batch, vocab_size)."""


class LayerCache:
    """Keys and values for one layer, each (slots, key-value heads, tokens, head width)."""

    def __init__(self, cache: KeyValueCache) -> None:
        self.cache = cache
        self.tensors: tuple[torch.Tensor, torch.Tensor] | None = None

    def append(self, keys: torch.Tensor, values: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Append (batch, heads, tokens, head width) to the cached tokens; return all of them as views."""
        cache = self.cache
        if self.tensors is None or self.tensors[0].dtype != keys.dtype:
            shape = (cache.num_slots, keys.shape[1], cache.max_tokens, keys.shape[3])
            # zeroed, because a mask does not hide NaN
            self.tensors = (
                keys.new_zeros(shape),
                values.new_zeros(shape),
            )
        batch, begin, end = keys.shape[0], cache.length, cache.end
        for stored, new in zip(self.tensors, (keys, values), strict=True):
            if end is None:
                stored[:batch, :, begin : begin + keys.shape[2]] = new
            else:
                stored[:batch].index_copy_(2, cache.position, new)
        end = begin + keys.shape[2] if end is None else end
        return self.tensors[0][:batch, :, :end], self.tensors[1][:batch, :, :end]


class KeyValueCache:
    """Keys and values of the tokens that a model has read, by layer, and the angles of all positions."""

    def __init__(self, *, num_layers: int, num_slots: int, max_tokens: int, angles: torch.Tensor) -> None:
        self.num_slots, self.max_tokens = num_slots, max_tokens
        self._angles = angles
        self.layers = [LayerCache(self) for _ in range(num_layers)]
        self.length = 0
        """Number of tokens per sequence in the cache."""
        self.end: int | None = None
        """Position where attention stops reading; None unless the device stores the position to write."""
        self.position = torch.zeros(1, dtype=torch.long, device=angles.device)
        self._mask = torch.zeros(0)

    @property
    def num_bytes(self) -> int:
        """Number of bytes allocated; 0 before the first prefill."""
        tensors = [tensor for layer in self.layers for tensor in layer.tensors or ()]
        return sum(tensor.numel() * tensor.element_size() for tensor in tensors)

    @property
    def element_bytes(self) -> int:
        """Number of bytes per key or value element; 0 before the first prefill."""
        tensors = self.layers[0].tensors
        return 0 if tensors is None else tensors[0].element_size()

    @property
    def mask(self) -> torch.Tensor | None:
        """Mask added to the attention scores, (1, 1, 1, end); None if no position has to be masked."""
        return None if self.end is None else self._mask[None, None, None, : self.end]

    def place(self) -> None:
        """Tell the device the position of the next token."""
        tensors = self.layers[0].tensors
        assert tensors is not None
        if self._mask.dtype != tensors[0].dtype or not self._mask.numel():
            # one extra value, so that `advance` may go past the end
            self._mask = tensors[0].new_empty(self.max_tokens + 1)
        self._mask.fill_(-torch.inf)[: self.length + 1] = 0
        self.position.fill_(self.length)

    def advance(self) -> None:
        """Advance the position, and the positions that attention can see, by one token on the device."""
        self.position.add_(1)
        self._mask.index_fill_(0, self.position, 0)

    def next_angles(self, num_tokens: int) -> torch.Tensor:
        """Return the angles for the next positions, (2, num_tokens, head width)."""
        if self.end is not None:
            return self._angles.index_select(1, self.position)
        return self._angles[:, self.length : self.length + num_tokens]


class Generation:
    """A model and its cache. Scores for the next token have shape (batch, vocab_size)."""

    def __init__(self, model: CachedModel, *, num_slots: int, max_tokens: int) -> None:
        self.model = model
        self.next_scores = model.next_scores
        """The function to run: the model's own, or a compiled version of it."""
        self.batch = 0
        self.cache = model.new_cache(num_slots=num_slots, max_tokens=max_tokens)

    @property
    def length(self) -> int:
        """Number of tokens per sequence that have been read."""
        return self.cache.length

    def prefill(self, prompts: torch.Tensor) -> torch.Tensor:
        """Start over with prompts (batch, tokens).

        Raises:
            ValueError: there are more prompts than slots, or more tokens than positions in the cache.
        """
        self.batch = prompts.shape[0]
        self.cache.length = 0
        return self._read(prompts)

    def decode(self, tokens: torch.Tensor) -> torch.Tensor:
        """Add one token (batch,) to each sequence of the last prefill.

        Raises:
            ValueError: the number of tokens differs from the number of sequences, or the cache is full.
        """
        if tokens.shape[0] != self.batch:
            raise ValueError(f"{tokens.shape[0]} tokens cannot continue {self.batch} sequences")
        return self._read(tokens[:, None])

    def decode_within(self, tokens: torch.Tensor, end: int) -> torch.Tensor:
        """Like `decode`, but only on the device and attending up to `end`; graphs can capture it.

        `KeyValueCache.place` has set the position; the caller counts the tokens.
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
        """Discard all but the first `length` tokens in each sequence.

        Raises:
            ValueError: there are fewer tokens than that.
        """
        if not 0 <= length <= self.length:
            raise ValueError(f"the cache contains {self.length} tokens per sequence, not {length}")
        self.cache.length = length

    def _read(self, tokens: torch.Tensor) -> torch.Tensor:
        batch, num_tokens = tokens.shape
        if batch > self.cache.num_slots or self.length + num_tokens > self.cache.max_tokens:
            raise ValueError(
                f"the cache has {self.cache.num_slots} slots of {self.cache.max_tokens} tokens: "
                f"{batch} × {num_tokens} do not fit after the {self.length} already cached"
            )
        with torch.inference_mode():
            scores = self.next_scores(tokens, self.cache)
        self.cache.length += num_tokens
        return scores

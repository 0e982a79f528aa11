"""The sample pool: everything a window will read, on the device before the window begins.

Drawing or loading samples is never part of a step: a step takes the next slice of the pool, in a fixed
order, over and over, each slice a full batch.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from pathlib import Path

import torch

from gpuproof.records.dataset_files import TokenFile
from gpuproof.records.run import DataUsed
from gpuproof.records.tensor_file import TensorFileHeader
from gpuproof.worker.data.batch_source import Batch
from gpuproof.worker.data.datasets import TokenFileSamples, map_tensor_file, resized
from gpuproof.worker.data.sharding import require_a_batch
from gpuproof.workloads.info.base import InputShape

POOL_BYTES = 256 * 2**20
"""A pool is about this large: far over any cache, small beside a device's memory."""
MIN_BATCHES, MAX_BATCHES = 2, 64


@dataclass(slots=True)
class SamplePool:
    """Inputs (n, *shape) and targets (n, …) on the device, n a multiple of the batch size."""

    inputs: torch.Tensor
    targets: torch.Tensor
    batch_size: int
    used: DataUsed
    _batches: list[Batch] = field(init=False, repr=False)
    _position: int = field(default=0, init=False)

    def __post_init__(self) -> None:
        """Cut the batches once: a slice costs microseconds, which a short step would be charged with."""
        inputs, targets = self.inputs.split(self.batch_size), self.targets.split(self.batch_size)
        self._batches = list(zip(inputs, targets, strict=True))

    @property
    def num_samples(self) -> int:
        """Samples in the pool."""
        return self.inputs.shape[0]

    @property
    def held(self) -> tuple[torch.Tensor, ...]:
        """All samples."""
        return self.inputs, self.targets

    def next_batch(self) -> Batch:
        """Return the next full batch, as views; wraps round at the end."""
        batch = self._batches[self._position]
        self._position = (self._position + 1) % len(self._batches)
        return batch

    def take_wait_s(self) -> None:
        """Return None: every batch is there."""

    def close(self) -> None:
        """Do nothing: nothing was started."""


def synthetic_pool(
    shape: InputShape,
    *,
    batch_size: int,
    max_batches: int | None,
    seed: int,
    device: torch.device,
    channels_last: bool,
    used: DataUsed,
) -> SamplePool:
    """Draw a pool on the device, of no more batches than are read where that is known.

    Images are standard normal and their classes uniform; features and their targets are those of S2's data
    set; tokens are uniform over the vocabulary, and the target of each is the one that follows it.
    """
    generator = torch.Generator(device).manual_seed(seed)
    num_batches = _num_batches(shape, batch_size)
    if max_batches is not None:
        num_batches = min(num_batches, max(max_batches, MIN_BATCHES))
    num_samples = batch_size * num_batches
    if shape.kind == "tokens":
        tokens = _random_tokens(shape, num_samples, generator)
        return SamplePool(tokens[:, :-1].contiguous(), tokens[:, 1:].contiguous(), batch_size, used)
    inputs = torch.randn(num_samples, *shape.shape, generator=generator, device=device)
    if shape.kind == "features":
        _correlate_features(inputs, generator)
        targets = torch.randn(num_samples, shape.num_targets, generator=generator, device=device)
    else:
        targets = torch.randint(shape.num_targets, (num_samples,), generator=generator, device=device)
    return SamplePool(laid_out(inputs, channels_last=channels_last), targets, batch_size, used)


def _random_tokens(shape: InputShape, num_samples: int, generator: torch.Generator) -> torch.Tensor:
    size = (num_samples, shape.shape[0] + 1)
    return torch.randint(shape.num_targets, size, generator=generator, device=generator.device)


def _num_batches(shape: InputShape, batch_size: int) -> int:
    element_bytes = 8 if shape.kind == "tokens" else 4
    batch_bytes = batch_size * element_bytes * math.prod(shape.shape)
    return min(MAX_BATCHES, max(MIN_BATCHES, POOL_BYTES // batch_bytes))


def _correlate_features(inputs: torch.Tensor, generator: torch.Generator) -> None:
    """Make the second and third feature depend on the first as in requirement S2.15."""
    if inputs.shape[1] < 3:
        return
    noise = torch.randn(2, inputs.shape[0], generator=generator, device=inputs.device)
    inputs[:, 1] = 0.7 * inputs[:, 0] + 0.3 * noise[0]
    inputs[:, 2] = 0.5 * inputs[:, 0] - 0.3 * inputs[:, 1] + 0.4 * noise[1]


def image_pool(
    path: Path,
    header: TensorFileHeader,
    offset: int,
    shape: InputShape,
    *,
    share: Share,
    device: torch.device,
    channels_last: bool,
    used: DataUsed,
) -> SamplePool:
    """Load this rank's share of a raw tensor file of images, shuffled, scaled to [-1, 1] and resized.

    Raises:
        EnvironmentUnfitError: the file holds fewer samples than one batch for each rank.
    """
    images, labels = map_tensor_file(path, header, offset)
    chosen = share.of(len(images), num_batches=_num_batches(shape, share.batch_size))
    inputs = scaled(images[chosen].to(device)).expand(-1, shape.shape[0], -1, -1)
    if inputs.shape[-1] != shape.shape[-1]:
        inputs = resized(inputs, shape.shape[-2:])
    targets = labels[chosen].long().to(device)
    return SamplePool(laid_out(inputs, channels_last=channels_last), targets, share.batch_size, used)


def token_pool(
    listing: TokenFile, shape: InputShape, *, share: Share, device: torch.device, used: DataUsed
) -> SamplePool:
    """Load this rank's share of the sequences of a file of tokens, shuffled.

    Raises:
        EnvironmentUnfitError: the file holds fewer sequences than one batch for each rank.
    """
    samples = TokenFileSamples(listing, seq_len=shape.shape[0])
    chosen = share.of(len(samples), num_batches=_num_batches(shape, share.batch_size))
    pairs = [samples[int(number)] for number in chosen]
    inputs, targets = (torch.stack([torch.as_tensor(pair[i]) for pair in pairs]).to(device) for i in (0, 1))
    return SamplePool(inputs, targets, share.batch_size, used)


@dataclass(frozen=True, slots=True, kw_only=True)
class Share:
    """Which samples of a set are this rank's."""

    batch_size: int
    seed: int
    rank: int
    world_size: int

    def of(self, num_samples: int, *, num_batches: int) -> torch.Tensor:
        """Return the numbers of at most `num_batches` batches, disjoint from those of all other ranks.

        As many as any other's: ranks that share a model pass over their samples together.

        Raises:
            EnvironmentUnfitError: there is no batch for each rank.
        """
        require_a_batch(num_samples, batch_size=self.batch_size, world_size=self.world_size)
        generator = torch.Generator().manual_seed(self.seed)
        order = torch.randperm(num_samples, generator=generator)[self.rank :: self.world_size]
        return order[: self.batch_size * min(num_samples // self.world_size // self.batch_size, num_batches)]


def scaled(images: torch.Tensor) -> torch.Tensor:
    """Return bytes as floats from -1 to 1."""
    return images.float().div_(127.5).sub_(1.0)


def laid_out(inputs: torch.Tensor, *, channels_last: bool) -> torch.Tensor:
    """Return images in the memory layout that the model has."""
    memory_format = torch.channels_last if channels_last else torch.contiguous_format
    return inputs.contiguous(memory_format=memory_format)

"""The sample pool: everything a window will read, on the device before the window begins.

Drawing or loading samples is never part of a step: a step takes the next slice of the pool, in a fixed
order, over and over, each slice a full batch.
"""

from __future__ import annotations

import math
from array import array
from dataclasses import dataclass, field
from pathlib import Path

import torch
from torch.nn import functional

from gpuproof.errors import EnvironmentUnfitError
from gpuproof.records.tensor_file import read_header
from gpuproof.workloads.base import InputShape

POOL_BYTES = 256 * 2**20
"""A pool is about this large: far over any cache, small beside a device's memory."""
MIN_BATCHES, MAX_BATCHES = 2, 64


@dataclass(slots=True)
class SamplePool:
    """Inputs (n, *shape) and targets (n, …) on the device, n a multiple of the batch size."""

    inputs: torch.Tensor
    targets: torch.Tensor
    batch_size: int
    _batches: list[tuple[torch.Tensor, torch.Tensor]] = field(init=False, repr=False)
    _position: int = field(default=0, init=False)

    def __post_init__(self) -> None:
        """Cut the batches once: a slice costs microseconds, which a short step would be charged with."""
        inputs, targets = self.inputs.split(self.batch_size), self.targets.split(self.batch_size)
        self._batches = list(zip(inputs, targets, strict=True))

    @property
    def num_samples(self) -> int:
        """Samples in the pool."""
        return self.inputs.shape[0]

    def next_batch(self) -> tuple[torch.Tensor, torch.Tensor]:
        """Return the next full batch, as views; wraps round at the end."""
        batch = self._batches[self._position]
        self._position = (self._position + 1) % len(self._batches)
        return batch


def synthetic_pool(
    shape: InputShape, *, batch_size: int, seed: int, device: torch.device, channels_last: bool
) -> SamplePool:
    """Draw a pool on the device.

    Images are standard normal and their classes uniform; features and their targets are those of S2's data
    set; tokens are uniform over the vocabulary, and the target of each is the one that follows it.
    """
    generator = torch.Generator(device).manual_seed(seed)
    num_samples = batch_size * _num_batches(shape, batch_size)
    if shape.kind == "tokens":
        return _token_pool(shape, num_samples=num_samples, batch_size=batch_size, generator=generator)
    inputs = torch.randn(num_samples, *shape.shape, generator=generator, device=device)
    if shape.kind == "features":
        _correlate_features(inputs, generator)
        targets = torch.randn(num_samples, shape.num_targets, generator=generator, device=device)
    else:
        targets = torch.randint(shape.num_targets, (num_samples,), generator=generator, device=device)
    return SamplePool(_laid_out(inputs, channels_last=channels_last), targets, batch_size)


def _token_pool(
    shape: InputShape, *, num_samples: int, batch_size: int, generator: torch.Generator
) -> SamplePool:
    (seq_len,) = shape.shape
    tokens = torch.randint(
        shape.num_targets, (num_samples, seq_len + 1), generator=generator, device=generator.device
    )
    return SamplePool(tokens[:, :-1].contiguous(), tokens[:, 1:].contiguous(), batch_size)


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


def file_pool(
    path: Path,
    shape: InputShape,
    *,
    batch_size: int,
    seed: int,
    rank: int,
    world_size: int,
    device: torch.device,
    channels_last: bool,
) -> SamplePool:
    """Load this rank's share of a raw tensor file of images, shuffled, scaled to [-1, 1] and resized.

    Raises:
        EnvironmentUnfitError: the file holds fewer samples than one batch for each rank.
        RecordError: the file is not a whole tensor file.
    """
    if not path.is_file():
        raise EnvironmentUnfitError(
            f"the samples that rank 0 prepared are not on this host: expected {path}",
            place="data.name",
            next_step="Use a disk that all hosts share, or data.name=synthetic",
        )
    header, offset = read_header(path)
    values = array("B")
    with path.open("rb") as file:
        file.seek(offset)
        values.fromfile(file, header.num_bytes)
    count, *image_shape = header.shape
    images = torch.frombuffer(values, dtype=torch.uint8, count=header.num_elements).view(count, *image_shape)
    labels = torch.frombuffer(values, dtype=torch.uint8, offset=header.num_elements).long()
    order = _share_of(count, seed=seed, rank=rank, world_size=world_size)
    usable = batch_size * min(len(order) // batch_size, _num_batches(shape, batch_size))
    if usable == 0:
        raise EnvironmentUnfitError(
            f"{count} samples make no batch of {batch_size} for each of {world_size} ranks",
            place="data.batch_size",
            next_step=f"Use at most {count // world_size}",
        )
    chosen = order[:usable]
    inputs = images[chosen].to(device).float().div_(127.5).sub_(1.0)
    inputs = inputs.expand(-1, shape.shape[0], -1, -1)
    if inputs.shape[-1] != shape.shape[-1]:
        inputs = functional.interpolate(inputs, size=shape.shape[-2:], mode="bilinear", antialias=True)
    return SamplePool(_laid_out(inputs, channels_last=channels_last), labels[chosen].to(device), batch_size)


def _share_of(count: int, *, seed: int, rank: int, world_size: int) -> torch.Tensor:
    """Draw this rank's samples, as many as any other's: ranks that share a model pass over it together."""
    order = torch.randperm(count, generator=torch.Generator().manual_seed(seed))
    return order[rank::world_size][: count // world_size]


def _laid_out(inputs: torch.Tensor, *, channels_last: bool) -> torch.Tensor:
    memory_format = torch.channels_last if channels_last else torch.contiguous_format
    return inputs.contiguous(memory_format=memory_format)

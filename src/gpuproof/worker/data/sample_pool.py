"""The sample pool: everything a window will read, on the device before the window begins.

Drawing or loading samples is never part of a step: a step takes the next slice of the pool, in a fixed
order, over and over, each slice a full batch.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import torch

from gpuproof.records.dataset_files import TokenFile
from gpuproof.records.work.data import DataUsed
from gpuproof.worker.data.batch_source import Batch
from gpuproof.worker.data.datasets import TensorFile, TokenFileSamples, resized
from gpuproof.worker.data.loader import Share, hold_out
from gpuproof.worker.data.pool_size import num_pool_batches
from gpuproof.workloads.info.base import InputShape


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


def draw_samples(shape: InputShape, num_samples: int, *, seed: int, device: torch.device) -> Batch:
    """Draw samples on the device.

    Images are standard normal and their classes uniform; features and their targets are those of S2's data
    set; tokens are uniform over the vocabulary, and the target of each is the one that follows it.
    """
    generator = torch.Generator(device).manual_seed(seed)
    if shape.kind == "tokens":
        size = (num_samples, shape.shape[0] + 1)
        tokens = torch.randint(shape.num_targets, size, generator=generator, device=device)
        return tokens[:, :-1].contiguous(), tokens[:, 1:].contiguous()
    inputs = torch.randn(num_samples, *shape.shape, generator=generator, device=device)
    if shape.kind == "features":
        _correlate_features(inputs, generator)
        return inputs, torch.randn(num_samples, shape.num_targets, generator=generator, device=device)
    return inputs, torch.randint(shape.num_targets, (num_samples,), generator=generator, device=device)


def _correlate_features(inputs: torch.Tensor, generator: torch.Generator) -> None:
    """Make the second and third feature depend on the first as in requirement S2.15."""
    if inputs.shape[1] < 3:
        return
    noise = torch.randn(2, inputs.shape[0], generator=generator, device=inputs.device)
    inputs[:, 1] = 0.7 * inputs[:, 0] + 0.3 * noise[0]
    inputs[:, 2] = 0.5 * inputs[:, 0] - 0.3 * inputs[:, 1] + 0.4 * noise[1]


def load_images(
    file: TensorFile, shape: InputShape, *, held_out: float = 0.0, share: Share, device: torch.device
) -> Batch:
    """Load this rank's share of the images that steps take, shuffled, scaled to [-1, 1] and resized.

    Raises:
        EnvironmentUnfitError: there are fewer samples than one batch for each rank.
    """
    taken, _ = hold_out(file.header.shape[0], held_out)
    chosen = share.choose(len(taken), max_batches=num_pool_batches(shape, share.batch_size))
    return chosen_images(file, shape, taken[chosen], device)


def chosen_images(file: TensorFile, shape: InputShape, chosen: torch.Tensor, device: torch.device) -> Batch:
    """Load these images, scaled to [-1, 1] and resized, and their classes."""
    images, labels = file.map()
    inputs = scaled(images[chosen].to(device)).expand(-1, shape.shape[0], -1, -1)
    if inputs.shape[-1] != shape.shape[-1]:
        inputs = resized(inputs, shape.shape[-2:])
    return inputs, labels[chosen].long().to(device)


def load_tokens(listing: TokenFile, shape: InputShape, *, share: Share, device: torch.device) -> Batch:
    """Load this rank's share of the sequences of a file of tokens, shuffled.

    Raises:
        EnvironmentUnfitError: the file holds fewer sequences than one batch for each rank.
    """
    samples = TokenFileSamples(listing, seq_len=shape.shape[0])
    chosen = share.choose(len(samples), max_batches=num_pool_batches(shape, share.batch_size))
    pairs = [samples[int(number)] for number in chosen]
    inputs, targets = (torch.stack([torch.as_tensor(pair[i]) for pair in pairs]).to(device) for i in (0, 1))
    return inputs, targets


def scaled(images: torch.Tensor) -> torch.Tensor:
    """Return bytes as floats from -1 to 1."""
    return images.float().div_(127.5).sub_(1.0)


def laid_out(inputs: torch.Tensor, *, channels_last: bool) -> torch.Tensor:
    """Return images in the memory layout that the model has."""
    memory_format = torch.channels_last if channels_last else torch.contiguous_format
    return inputs.contiguous(memory_format=memory_format)

"""Data sets for a DataLoader: samples are looked up by index and built in loader processes.

An image is (channels, edge, edge), uint8 at the model's size (decision 0005: resized on the node). The step
scales its values after the copy, since bytes transfer faster than floats. A token sample is a sequence, and
the same sequence shifted by one.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import torch
from torch.nn import functional

from gpuproof.records.dataset_files import ImageListing, TensorFileHeader, TokenFile, decode
from gpuproof.workloads.info.base import InputShape

Sample = tuple[torch.Tensor, torch.Tensor | int]
TOKEN_DTYPES = {"uint16": torch.uint16, "uint32": torch.uint32}
LABEL_DTYPES = {1: torch.uint8, 4: torch.int32}


class SampleSet(Protocol):
    """A fixed number of samples, accessed by index."""

    def __len__(self) -> int:
        """Return the number of samples."""

    def __getitem__(self, number: int) -> Sample:
        """Build one sample."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TensorFile:
    """A raw tensor file of images, and the offset at which its data starts."""

    path: Path
    header: TensorFileHeader
    offset: int

    def map(self) -> tuple[torch.Tensor, torch.Tensor]:
        """Memory-map the file: images (n, c, h, w) as uint8, and labels (n,)."""
        end, size = self.offset + self.header.num_elements, self.offset + self.header.num_bytes
        values = torch.from_file(str(self.path), shared=False, size=size, dtype=torch.uint8)
        labels = values[end:].clone()  # cloned so that it is aligned
        return values[self.offset : end].view(self.header.shape), labels.view(
            LABEL_DTYPES[self.header.label_bytes]
        )


class TensorFileSamples:
    """Images from a raw tensor file, memory-mapped and resized one by one."""

    def __init__(self, file: TensorFile, *, size: int) -> None:
        self.images, self.labels = file.map()
        self._size = size

    def __len__(self) -> int:
        """Return the number of images."""
        return len(self.images)

    def __getitem__(self, number: int) -> Sample:
        """Return one image at the model's size, and its label."""
        image = self.images[number]
        if image.shape[-1] != self._size:
            size = (self._size, self._size)
            image = resized(image[None].float(), size).round_().clamp_(0, 255).to(torch.uint8)[0]
        return image, int(self.labels[number])


class ImageFileSamples:
    """Images from a folder, decoded one by one with Pillow."""

    def __init__(self, listing: ImageListing, *, size: int) -> None:
        self._root = Path(listing.root)
        self._files = listing.files
        self._labels = listing.labels()
        self._size = size

    def __len__(self) -> int:
        """Return the number of images."""
        return len(self._files)

    def __getitem__(self, number: int) -> Sample:
        """Return one image at the model's size, and its class."""
        pixels = bytearray(decode(self._root / self._files[number], size=self._size))
        image = torch.frombuffer(pixels, dtype=torch.uint8).view(self._size, self._size, 3)
        return image.permute(2, 0, 1).contiguous(), self._labels[number]


class TokenFileSamples:
    """Sequences from a memory-mapped token file; `seq_len + 1` ids each, without overlap."""

    def __init__(self, listing: TokenFile, *, seq_len: int) -> None:
        self._tokens = torch.from_file(
            listing.path, shared=False, size=listing.num_tokens, dtype=TOKEN_DTYPES[listing.token_type]
        )
        self._length = seq_len + 1

    def __len__(self) -> int:
        """Return the number of whole sequences."""
        return len(self._tokens) // self._length

    def __getitem__(self, number: int) -> Sample:
        """Return a sequence, and the token that follows each of its tokens."""
        tokens = self._tokens[number * self._length : (number + 1) * self._length].long()
        return tokens[:-1], tokens[1:]


class SyntheticSamples:
    """Samples generated from their index; used to measure how fast a CPU can generate them."""

    def __init__(self, shape: InputShape, *, num_samples: int, seed: int) -> None:
        self._shape = shape
        self._num_samples = num_samples
        self._seed = seed

    def __len__(self) -> int:
        """Return the number of samples in an epoch."""
        return self._num_samples

    def __getitem__(self, number: int) -> Sample:
        """Draw one sample: an image and its class, features and their targets, or a token sequence."""
        shape = self._shape
        generator = torch.Generator().manual_seed(self._seed * self._num_samples + number)
        if shape.kind == "tokens":
            tokens = torch.randint(shape.num_targets, (shape.shape[0] + 1,), generator=generator)
            return tokens[:-1], tokens[1:]
        inputs = torch.randn(*shape.shape, generator=generator)
        if shape.kind == "features":
            return inputs, torch.randn(shape.num_targets, generator=generator)
        return inputs, int(torch.randint(shape.num_targets, (), generator=generator))


def resized(images: torch.Tensor, size: tuple[int, ...]) -> torch.Tensor:
    """Scale a batch of float images to `size`, with antialiasing when shrinking."""
    return functional.interpolate(images, size=size, mode="bilinear", antialias=True)

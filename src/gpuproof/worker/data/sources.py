"""Choose the source of batches (a pool on the device, or a loader), and the data set.

In: a case, and the files that the control side prepared for it. Out: a `BatchSource`. Missing data is an
error; no other data set is substituted. Drawing or loading samples is never part of a step that has a
pool: everything a window reads is on the device before it starts. Each step uses the next slice in a fixed
order, wrapping around at the end; each slice is a full batch.
"""

from __future__ import annotations

import sys
from dataclasses import dataclass, field
from pathlib import Path

import torch

from gpuproof.accelerators.choose import accelerator_of
from gpuproof.base.errors import EnvironmentUnfitError
from gpuproof.records.case import ModelWork
from gpuproof.records.dataset_files import ImageListing, TokenFile, read_header, read_listing, require_pillow
from gpuproof.records.work.data import DataUsed
from gpuproof.worker.data.batch_source import Batch, BatchSource
from gpuproof.worker.data.datasets import (
    ImageFileSamples,
    SampleSet,
    SyntheticSamples,
    TensorFile,
    TensorFileSamples,
    TokenFileSamples,
    resized,
)
from gpuproof.worker.data.loader import LoaderSource, ShardedBatches, Share, effective_settings, hold_out
from gpuproof.worker.data.pool_size import batches_read, num_pool_batches
from gpuproof.worker.engine.clocks import clock_for
from gpuproof.workloads.info.base import InputShape

_Content = TensorFile | ImageListing | TokenFile | None
"""Contents of the prepared file; None if samples are drawn at random."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RankData:
    """The part of the data that belongs to this rank, its location, and the device it goes to."""

    shard: int
    num_shards: int
    """Ranks that split a model use the same part of the data."""
    run_folder: Path
    device: torch.device
    channels_last: bool

    def share(self, work: ModelWork) -> Share:
        """Return the part, split into batches."""
        seed, batch_size = work.training.seed, work.data.batch_size
        return Share(batch_size=batch_size, seed=seed, rank=self.shard, world_size=self.num_shards)


def open_source(work: ModelWork, shape: InputShape, place: RankData) -> BatchSource:
    """Open the batch source of this rank.

    Raises:
        EnvironmentUnfitError: the prepared data is missing here, or too small for one batch per rank.
        RecordError: the prepared data is incomplete.
    """
    opening = _Opening(work, shape, _read(work, place.run_folder), place)
    return opening.loader() if work.data.loading == "loader" else opening.pool()


def open_held_out(work: ModelWork, shape: InputShape, place: RankData) -> SamplePool | None:
    """Load this rank's part of the held-out samples; None if there are none.

    Raises:
        EnvironmentUnfitError: the prepared data is not on this host, or has less than one sample per rank.
        RecordError: the prepared data is incomplete.
    """
    content = _read(work, place.run_folder) if work.data.held_out else None
    if not isinstance(content, TensorFile):
        return None
    chosen = place.share(work).of_held_out(hold_out(content.header.shape[0], work.data.held_out)[1])
    if not len(chosen):
        raise EnvironmentUnfitError(
            (
                f"holding out {work.data.held_out:g} of {content.header.shape[0]} samples yields less "
                "than one per rank"
            ),
            place="data.held_out",
            next_step="Hold out a larger fraction",
        )
    return _Opening(work, shape, content, place).laid(*chosen_images(content, shape, chosen, place.device))


def _read(work: ModelWork, run_folder: Path) -> _Content:
    if work.data.name == "synthetic" or work.data_file is None:
        return None
    path = run_folder / work.data_file
    if not path.is_file():
        raise EnvironmentUnfitError(
            f"the data prepared by rank 0 is not on this host: expected {path}",
            place="data.name",
            next_step="Use a disk that all hosts share, copy the data to data.path on each host, "
            "or use data.name=synthetic",
        )
    if work.data.name == "tokens":
        tokens = read_listing(TokenFile, path)
        _require_here(Path(tokens.path), work)
        return tokens
    if path.suffix == ".json":
        images = read_listing(ImageListing, path)
        _require_here(Path(images.root) / images.files[0], work)
        return images
    header, offset = read_header(path)
    return TensorFile(path=path, header=header, offset=offset)


def _require_here(path: Path, work: ModelWork) -> None:
    """Reject samples that exist only on the host that started the run: only a listing is sent."""
    if not path.is_file():
        raise EnvironmentUnfitError(
            f"{work.data.name} is read from its original location, which does not exist on this host: {path}",
            place="data.path",
            next_step="Use a disk that is mounted at the same path on all hosts, or data.name=synthetic",
        )


@dataclass(frozen=True, slots=True)
class _Opening:
    """Arguments needed to open a source."""

    work: ModelWork
    shape: InputShape
    content: _Content
    place: RankData

    def pool(self) -> SamplePool:
        """Load onto the device all data that a window reads."""
        shape, content, device = self.shape, self.content, self.place.device
        share = self.place.share(self.work)
        if isinstance(content, TokenFile):
            inputs, targets = load_tokens(content, shape, share=share, device=device)
        elif isinstance(content, TensorFile):
            taken, _ = hold_out(content.header.shape[0], self.work.data.held_out)
            chosen = share.choose(len(taken), max_batches=num_pool_batches(shape, share.batch_size))
            inputs, targets = chosen_images(content, shape, taken[chosen], device)
        else:
            assert content is None, "a listing of images works only with the loader"
            read = batches_read(self.work, min_window_s=accelerator_of(device).min_window_s)
            num_batches = num_pool_batches(shape, share.batch_size, max_batches=read)
            num_samples, seed = share.batch_size * num_batches, share.seed + share.rank
            inputs, targets = draw_samples(shape, num_samples, seed=seed, device=device)
        return self.laid(inputs, targets)

    def laid(self, inputs: torch.Tensor, targets: torch.Tensor) -> SamplePool:
        """Build a sample pool in the model's memory layout."""
        inputs = laid_out(inputs, channels_last=self.place.channels_last)
        return SamplePool(inputs, targets, self.work.data.batch_size, self._used(batches_ahead=0))

    def loader(self) -> LoaderSource:
        """Start a DataLoader."""
        settings = effective_settings(
            self.work.data.loader, can_pin=accelerator_of(self.place.device).pins_memory
        )
        samples = self._samples()
        batches = ShardedBatches(len(samples), self.place.share(self.work))
        # Processes that exist for only one epoch do not prepare batches for the next epoch.
        used = self._used(batches_ahead=min(settings.batches_ahead, len(batches)))
        return LoaderSource(
            samples,
            batches,
            settings=settings,
            device=self.place.device,
            clock=clock_for(self.place.device, synchronised=False),
            finish=self._finish_batch,
            used=used,
        )

    def _samples(self) -> SampleSet:
        work, shape, content = self.work, self.shape, self.content
        if isinstance(content, TokenFile):
            return TokenFileSamples(content, seq_len=shape.shape[0])
        if isinstance(content, ImageListing):
            require_pillow(sys.executable)
            return ImageFileSamples(content, size=shape.shape[-1])
        if isinstance(content, TensorFile):
            return TensorFileSamples(content, size=shape.shape[-1])
        return SyntheticSamples(shape, num_samples=work.data.samples_per_epoch, seed=work.training.seed)

    def _finish_batch(self, inputs: torch.Tensor) -> torch.Tensor:
        """Finish a batch on the device: convert bytes to floats, repeat a single channel, set the layout."""
        if self.shape.kind != "image":
            return inputs
        if inputs.dtype == torch.uint8:
            inputs = scaled(inputs).expand(-1, self.shape.shape[0], -1, -1)
        return laid_out(inputs, channels_last=self.place.channels_last)

    def _used(self, *, batches_ahead: int) -> DataUsed:
        data, content = self.work.data, self.content
        num_samples, sha256, of = None, None, None
        if isinstance(content, TokenFile):
            num_samples, of = content.num_tokens // (self.shape.shape[0] + 1), "the file"
            sha256 = content.sha256
        elif isinstance(content, ImageListing):
            num_samples, sha256, of = len(content.files), content.sha256, "names and sizes of all files"
        elif isinstance(content, TensorFile):
            num_samples = len(hold_out(content.header.shape[0], data.held_out)[0])
            sha256 = content.header.sha256
            of = f"the images and labels in {self.work.data_file}"
        has_parts = data.name in ("CIFAR10", "CIFAR100", "FashionMNIST", "ImageFolder")
        return DataUsed(
            loading=data.loading,
            split=data.split if has_parts else None,
            source=data.path if content is not None and data.name != "digits" else None,
            num_samples=num_samples,
            sha256=sha256,
            sha256_of=of,
            batches_ahead=batches_ahead,
        )


def data_notes(work: ModelWork) -> tuple[str, ...]:
    """Describe the origin of the samples in as much detail as is needed to interpret the results."""
    if work.data.loading == "loader" and work.data.name == "synthetic":
        return ("the samples are drawn by the loader's processes: no disk access or decoding, but CPU time",)
    return ()


@dataclass(slots=True)
class SamplePool:
    """Inputs (n, *shape) and targets (n, …) on the device, where n is a multiple of the batch size."""

    inputs: torch.Tensor
    targets: torch.Tensor
    batch_size: int
    used: DataUsed
    _batches: list[Batch] = field(init=False, repr=False)
    _position: int = field(default=0, init=False)

    def __post_init__(self) -> None:
        """Slice the batches only once: slicing takes microseconds, which would add to a short step."""
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
        """Return the next full batch, as views; wraps around at the end."""
        batch = self._batches[self._position]
        self._position = (self._position + 1) % len(self._batches)
        return batch

    def take_wait_s(self) -> None:
        """Return None, since all batches are on the device already."""

    def close(self) -> None:
        """Do nothing, since nothing was started."""


def draw_samples(shape: InputShape, num_samples: int, *, seed: int, device: torch.device) -> Batch:
    """Draw random samples on the device.

    Pixel values are standard normal, and classes uniform. Features and their targets are distributed as in
    S2's data set. Tokens are drawn uniformly from the vocabulary, and the target of each token is the next
    token.
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
    """Make the second and third features depend on the first as in requirement S2.15."""
    if inputs.shape[1] < 3:
        return
    noise = torch.randn(2, inputs.shape[0], generator=generator, device=inputs.device)
    inputs[:, 1] = 0.7 * inputs[:, 0] + 0.3 * noise[0]
    inputs[:, 2] = 0.5 * inputs[:, 0] - 0.3 * inputs[:, 1] + 0.4 * noise[1]


def chosen_images(file: TensorFile, shape: InputShape, chosen: torch.Tensor, device: torch.device) -> Batch:
    """Load these images, scaled to [-1, 1] and resized, and their classes."""
    images, labels = file.map()
    inputs = scaled(images[chosen].to(device)).expand(-1, shape.shape[0], -1, -1)
    if inputs.shape[-1] != shape.shape[-1]:
        inputs = resized(inputs, shape.shape[-2:])
    return inputs, labels[chosen].long().to(device)


def load_tokens(listing: TokenFile, shape: InputShape, *, share: Share, device: torch.device) -> Batch:
    """Load this rank's part of the sequences in a token file, and shuffle them.

    Raises:
        EnvironmentUnfitError: the file contains less than one batch of sequences per rank.
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
    """Return images in the model's memory layout."""
    memory_format = torch.channels_last if channels_last else torch.contiguous_format
    return inputs.contiguous(memory_format=memory_format)

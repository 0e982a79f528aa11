"""Choose where batches come from: a pool on the device, or a loader; and of which data set.

Comes in: a case, and the files that the control side prepared for it. Goes out: a `BatchSource`. What is not
there is an error; nothing takes the place of the data set that was asked for.
"""

from __future__ import annotations

import sys
from dataclasses import dataclass
from pathlib import Path

import torch

from gpuproof.accelerators.choose import accelerator_of
from gpuproof.base.errors import EnvironmentUnfitError
from gpuproof.records.case import ModelWork
from gpuproof.records.dataset_files import ImageListing, TokenFile, read_header, read_listing, require_pillow
from gpuproof.records.work.data import DataUsed
from gpuproof.worker.data.batch_source import BatchSource
from gpuproof.worker.data.datasets import (
    ImageFileSamples,
    SampleSet,
    SyntheticSamples,
    TensorFile,
    TensorFileSamples,
    TokenFileSamples,
)
from gpuproof.worker.data.loader import LoaderSource, ShardedBatches, Share, effective_settings, hold_out
from gpuproof.worker.data.pool_size import batches_read, num_pool_batches
from gpuproof.worker.data.sample_pool import (
    SamplePool,
    chosen_images,
    draw_samples,
    laid_out,
    load_images,
    load_tokens,
    scaled,
)
from gpuproof.worker.engine.clocks import clock_for
from gpuproof.workloads.info.base import InputShape

_Content = TensorFile | ImageListing | TokenFile | None
"""What the prepared file holds; None where samples are drawn."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RankData:
    """Which part of the data is this rank's, where it lies, and where it goes."""

    shard: int
    num_shards: int
    """Ranks that split a model share a part."""
    run_folder: Path
    device: torch.device
    channels_last: bool

    def share(self, work: ModelWork) -> Share:
        """Return the part, cut into batches."""
        seed, batch_size = work.training.seed, work.data.batch_size
        return Share(batch_size=batch_size, seed=seed, rank=self.shard, world_size=self.num_shards)


def open_source(work: ModelWork, shape: InputShape, place: RankData) -> BatchSource:
    """Open the source of this rank's batches.

    Raises:
        EnvironmentUnfitError: what was prepared is not on this host, or is too small for one batch a rank.
        RecordError: it is not whole.
    """
    opening = _Opening(work, shape, _read(work, place.run_folder), place)
    return opening.loader() if work.data.loading == "loader" else opening.pool()


def open_held_out(work: ModelWork, shape: InputShape, place: RankData) -> SamplePool | None:
    """Load this rank's part of the samples that no step took; None where none were held out.

    Raises:
        EnvironmentUnfitError: what was prepared is not on this host, or there is not one for each rank.
        RecordError: it is not whole.
    """
    content = _read(work, place.run_folder) if work.data.held_out else None
    if not isinstance(content, TensorFile):
        return None
    chosen = place.share(work).of_held_out(hold_out(content.header.shape[0], work.data.held_out)[1])
    if not len(chosen):
        raise EnvironmentUnfitError(
            f"{work.data.held_out:g} of {content.header.shape[0]} samples is not one for each rank",
            place="data.held_out",
            next_step="Hold out more",
        )
    return _Opening(work, shape, content, place).laid(*chosen_images(content, shape, chosen, place.device))


def _read(work: ModelWork, run_folder: Path) -> _Content:
    if work.data.name == "synthetic" or work.data_file is None:
        return None
    path = run_folder / work.data_file
    if not path.is_file():
        raise EnvironmentUnfitError(
            f"the data that rank 0 prepared is not on this host: expected {path}",
            place="data.name",
            next_step="Use a disk that all hosts share, or give each host a copy at data.path, or use "
            "data.name=synthetic",
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
    """Refuse samples that lie where the run was begun, and not on this host: a listing alone is carried."""
    if not path.is_file():
        raise EnvironmentUnfitError(
            f"{work.data.name} is read from where it lay when the run began, which this host has not: {path}",
            place="data.path",
            next_step="Use a disk that all hosts have at the same path, or data.name=synthetic",
        )


@dataclass(frozen=True, slots=True)
class _Opening:
    """A source that is being opened."""

    work: ModelWork
    shape: InputShape
    content: _Content
    place: RankData

    def pool(self) -> SamplePool:
        """Put all that a window reads on the device."""
        shape, content, device, share = (
            self.shape,
            self.content,
            self.place.device,
            self.place.share(self.work),
        )
        if isinstance(content, TokenFile):
            inputs, targets = load_tokens(content, shape, share=share, device=device)
        elif isinstance(content, TensorFile):
            held_out = self.work.data.held_out
            inputs, targets = load_images(content, shape, held_out=held_out, share=share, device=device)
        else:
            assert content is None, "a listing of images is made for the loader only"
            read = batches_read(self.work, min_window_s=accelerator_of(device).min_window_s)
            num_batches = num_pool_batches(shape, share.batch_size, max_batches=read)
            num_samples, seed = share.batch_size * num_batches, share.seed + share.rank
            inputs, targets = draw_samples(shape, num_samples, seed=seed, device=device)
        return self.laid(inputs, targets)

    def laid(self, inputs: torch.Tensor, targets: torch.Tensor) -> SamplePool:
        """Make a pool of samples, in the layout of the model."""
        inputs = laid_out(inputs, channels_last=self.place.channels_last)
        return SamplePool(inputs, targets, self.work.data.batch_size, self._used(batches_ahead=0))

    def loader(self) -> LoaderSource:
        """Start a DataLoader."""
        settings = effective_settings(
            self.work.data.loader, can_pin=accelerator_of(self.place.device).pins_memory
        )
        samples = self._samples()
        batches = ShardedBatches(len(samples), self.place.share(self.work))
        # Processes that live for an epoch only make no batch of the next one.
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
        """Finish a batch on the device: bytes to floats, one channel repeated, the layout of the model."""
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
    """Say what a reader of the figures must know of where the samples came from."""
    if work.data.loading == "loader" and work.data.name == "synthetic":
        return ("the loader's processes draw the samples: no disk and no decoding, but processor time",)
    return ()

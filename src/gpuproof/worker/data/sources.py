"""Choose where batches come from: a pool on the device, or a loader; and of which data set.

Comes in: a case, and the files that the control side prepared for it. Goes out: a `BatchSource`. What is not
there is an error; nothing takes the place of the data set that was asked for.
"""

from __future__ import annotations

import sys
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import torch

from gpuproof.errors import EnvironmentUnfitError
from gpuproof.records.case import Case
from gpuproof.records.dataset_files import ImageListing, TokenFile, read_listing
from gpuproof.records.picture import require_pillow
from gpuproof.records.run import DataUsed
from gpuproof.records.tensor_file import TensorFileHeader, read_header
from gpuproof.worker.data.batch_source import BatchSource
from gpuproof.worker.data.datasets import (
    ImageFileSamples,
    SampleSet,
    SyntheticSamples,
    TensorFileSamples,
    TokenFileSamples,
)
from gpuproof.worker.data.loader import LoaderSettings, LoaderSource, effective_settings
from gpuproof.worker.data.sample_pool import (
    Share,
    image_pool,
    laid_out,
    scaled,
    synthetic_pool,
    token_pool,
)
from gpuproof.worker.data.sharding import ShardedBatches
from gpuproof.worker.engine.clocks import clock_for
from gpuproof.workloads.info.base import InputShape


@dataclass(frozen=True, slots=True, kw_only=True)
class _TensorFile:
    path: Path
    header: TensorFileHeader
    offset: int


_Content = _TensorFile | ImageListing | TokenFile | None
"""What the prepared file holds; None where samples are drawn."""


def open_source(
    case: Case,
    shape: InputShape,
    *,
    shard: int,
    num_shards: int,
    run_folder: Path,
    device: torch.device,
    channels_last: bool,
) -> BatchSource:
    """Open the source of this rank's batches: its shard of the data, which ranks that split a model share.

    Raises:
        EnvironmentUnfitError: what was prepared is not on this host, or is too small for one batch a rank.
        RecordError: it is not whole.
    """
    content = _read(case, run_folder)
    share = Share(
        batch_size=case.data.batch_size,
        seed=case.training.seed,
        rank=shard,
        world_size=num_shards,
    )
    if case.data.loading == "loader":
        return _loader(case, shape, content, share=share, device=device, channels_last=channels_last)
    return _pool(case, shape, content, share=share, device=device, channels_last=channels_last)


def _read(case: Case, run_folder: Path) -> _Content:
    if case.data.name == "synthetic" or case.data.file is None:
        return None
    path = run_folder / case.data.file
    if not path.is_file():
        raise EnvironmentUnfitError(
            f"the data that rank 0 prepared is not on this host: expected {path}",
            place="data.name",
            next_step="Use a disk that all hosts share, or give each host a copy at data.path, or use "
            "data.name=synthetic",
        )
    if case.data.name == "tokens":
        tokens = read_listing(TokenFile, path)
        _require_here(Path(tokens.path), case)
        return tokens
    if path.suffix == ".json":
        images = read_listing(ImageListing, path)
        _require_here(Path(images.root) / images.files[0], case)
        return images
    header, offset = read_header(path)
    return _TensorFile(path=path, header=header, offset=offset)


def _require_here(path: Path, case: Case) -> None:
    """Refuse samples that lie where the run was begun, and not on this host: a listing alone is carried."""
    if not path.is_file():
        raise EnvironmentUnfitError(
            f"{case.data.name} is read from where it lay when the run began, which this host has not: {path}",
            place="data.path",
            next_step="Use a disk that all hosts have at the same path, or data.name=synthetic",
        )


def _pool(
    case: Case,
    shape: InputShape,
    content: _Content,
    *,
    share: Share,
    device: torch.device,
    channels_last: bool,
) -> BatchSource:
    used = _used(case, shape, content, batches_ahead=0)
    if isinstance(content, TokenFile):
        return token_pool(content, shape, share=share, device=device, used=used)
    if isinstance(content, _TensorFile):
        return image_pool(
            content.path,
            content.header,
            content.offset,
            shape,
            share=share,
            device=device,
            channels_last=channels_last,
            used=used,
        )
    assert content is None, "a listing of images is made for the loader only"
    return synthetic_pool(
        shape,
        batch_size=share.batch_size,
        max_batches=_batches_read(case),
        seed=share.seed + share.rank,
        device=device,
        channels_last=channels_last,
        used=used,
    )


def _batches_read(case: Case) -> int | None:
    """Count the batches that warm-up and window read; None where time ends the window, or epochs do."""
    window = case.window
    if not window.enabled or window.measure_by != "steps" or window.measure_steps is None:
        return None
    return (window.warmup_steps + window.measure_steps) * case.micro_batches


def _loader(
    case: Case,
    shape: InputShape,
    content: _Content,
    *,
    share: Share,
    device: torch.device,
    channels_last: bool,
) -> LoaderSource:
    settings = effective_settings(case.data.loader, on_cuda=device.type == "cuda")
    samples = _samples(case, shape, content)
    batches = ShardedBatches(
        len(samples),
        batch_size=share.batch_size,
        seed=share.seed,
        rank=share.rank,
        world_size=share.world_size,
    )
    return LoaderSource(
        samples,
        batches,
        settings=settings,
        device=device,
        clock=clock_for(device, synchronised=False),
        finish=partial(_finish_batch, shape=shape, channels_last=channels_last),
        used=_used(case, shape, content, batches_ahead=_ahead(settings, batches)),
    )


def _ahead(settings: LoaderSettings, batches: ShardedBatches) -> int:
    """Processes that live for an epoch only make no batch of the next one."""
    ahead = settings.batches_ahead
    return min(ahead, len(batches))


def _samples(case: Case, shape: InputShape, content: _Content) -> SampleSet:
    if isinstance(content, TokenFile):
        return TokenFileSamples(content, seq_len=shape.shape[0])
    if isinstance(content, ImageListing):
        require_pillow(sys.executable)
        return ImageFileSamples(content, size=shape.shape[-1])
    if isinstance(content, _TensorFile):
        return TensorFileSamples(content.path, content.header, content.offset, size=shape.shape[-1])
    return SyntheticSamples(shape, num_samples=case.data.samples_per_epoch, seed=case.training.seed)


def _finish_batch(inputs: torch.Tensor, *, shape: InputShape, channels_last: bool) -> torch.Tensor:
    """Finish a batch on the device: bytes to floats, one channel repeated, the layout of the model."""
    if shape.kind != "image":
        return inputs
    if inputs.dtype == torch.uint8:
        inputs = scaled(inputs).expand(-1, shape.shape[0], -1, -1)
    return laid_out(inputs, channels_last=channels_last)


def data_notes(case: Case) -> tuple[str, ...]:
    """Say what a reader of the figures must know of where the samples came from."""
    if case.data.loading == "device":
        return ()
    if case.data.name == "synthetic":
        return ("the loader's processes draw the samples: no disk and no decoding, but processor time",)
    return ()


def _used(case: Case, shape: InputShape, content: _Content, *, batches_ahead: int) -> DataUsed:
    data = case.data
    num_samples, sha256, of = None, None, None
    if isinstance(content, TokenFile):
        num_samples, sha256, of = content.num_tokens // (shape.shape[0] + 1), content.sha256, "the file"
    elif isinstance(content, ImageListing):
        num_samples, sha256, of = len(content.files), content.sha256, "names and sizes of all files"
    elif isinstance(content, _TensorFile):
        header = content.header
        num_samples, sha256, of = header.shape[0], header.sha256, f"the images and labels in {data.file}"
    has_parts = data.name in ("CIFAR10", "CIFAR100", "ImageFolder")
    return DataUsed(
        loading=data.loading,
        split=data.split if has_parts else None,
        source=data.path if content is not None and data.name != "digits" else None,
        num_samples=num_samples,
        sha256=sha256,
        sha256_of=of,
        batches_ahead=batches_ahead,
    )

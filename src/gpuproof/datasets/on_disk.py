"""Data on the user's disk: images in folders, one per class, and files of token ids.

Images are in `PATH/train/CLASS/*.jpg` and `PATH/test/…` (or `PATH/val/…`). With `data.loading: device`, as
many of them as fit in the ranks' pools are decoded here, so that a node needs no image library; with `loader`
they are only listed, and the node's loader decodes them while the steps run.

Tokens are little-endian ids of type `data.token_type`, stored back to back without a header. The file is not
copied, but scanned once to make sure that no id is outside the vocabulary; the run stores its size, its
checksum and its largest id.
"""

from __future__ import annotations

import hashlib
import os
import random
import stat
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np

from gpuproof.base.errors import UsageError
from gpuproof.base.units import count
from gpuproof.datasets.catalogue import Say
from gpuproof.records.case import ModelWork
from gpuproof.records.dataset_files import (
    ENDINGS,
    TOKEN_BYTES,
    ImageListing,
    TokenFile,
    decode,
    label_bytes_for,
    require_pillow,
    write_listing,
    write_tensor_file,
)
from gpuproof.records.work.data import DataSpec
from gpuproof.workloads.info.base import InputShape

FOLDERS = {"train": ("train",), "test": ("test", "val")}
POOL_BATCHES = 64
"""Maximum number of batches in a rank's pool; decoding more would be wasted work."""
DEVICE_BYTES = 2**30
"""Approximate maximum size of decoded images, unless two batches per rank need more: the images go through
memory and the run's disk, and every result is computed from a smaller pool."""
BLOCK_TOKENS = 2**22
LITTLE_ENDIAN = {"uint16": "<u2", "uint32": "<u4"}


def prepare_image_folder(
    path: Path, work: ModelWork, shape: InputShape, *, world_size: int, say: Say
) -> None:
    """Write either the listing (for a loader) or the decoded images (for a device) to `path`.

    Raises:
        UsageError: the folder does not exist or has no images, or the model has too few classes.
        EnvironmentUnfitError: images must be decoded here, but Pillow is not installed.
    """
    listing = list_images(Path(work.data.path or ""), split=work.data.split)
    if len(listing.classes) > shape.num_targets:
        raise UsageError(
            f"{listing.root} has {len(listing.classes)} classes, but {work.model.name} has "
            f"{shape.num_targets}",
            place="model.num_classes",
            next_step=f"Set model.num_classes to {len(listing.classes)}",
        )
    if work.data.loading == "loader":
        write_listing(path, listing)
        return
    require_pillow(sys.executable)
    size, batch = shape.shape[-1], work.data.batch_size * world_size
    wanted = max(2 * batch, min(POOL_BATCHES * batch, DEVICE_BYTES // (3 * size * size)))
    chosen = _choose(listing, wanted)
    say(f"decoding {len(chosen):,} of {len(listing.files):,} images from {listing.root} to {size} pixels")
    _write_decoded(path, listing, chosen, size=size)


def list_images(folder: Path, *, split: str) -> ImageListing:
    """List the images of one split, sorted by name; no file is opened.

    Raises:
        UsageError: the folder does not exist or has no images.
    """
    candidates = [folder / name for name in FOLDERS[split]]
    root = next((candidate for candidate in candidates if candidate.is_dir()), None)
    if root is None:
        raise UsageError(
            f"there are no images: expected one folder per class in {' or '.join(map(str, candidates))}",
            place="data.path",
            next_step="Set data.path to the folder that contains it",
        )
    classes = sorted(entry.name for entry in os.scandir(root) if entry.is_dir())
    digest, files = hashlib.sha256(), []
    for name in classes:
        for file in sorted(p for p in (root / name).rglob("*") if p.suffix.lower() in ENDINGS):
            relative = file.relative_to(root).as_posix()
            files.append(relative)
            digest.update(f"{relative}\0{_size(file)}\n".encode(errors="surrogateescape"))
    if not files:
        raise UsageError(
            f"no images in {root}/CLASS/: expected files that end in {', '.join(sorted(ENDINGS))}",
            place="data.path",
        )
    return ImageListing(
        root=str(root.absolute()), classes=tuple(classes), files=tuple(files), sha256=digest.hexdigest()
    )


def _size(file: Path) -> int:
    """Return the size of an image in bytes.

    Raises:
        UsageError: the name refers to a broken link, a pipe or anything else that is not a file.
    """
    try:
        status = file.stat()
    except OSError as error:
        raise _no_image(file, error.strerror or str(error)) from error
    if not stat.S_ISREG(status.st_mode):
        raise _no_image(file, "it is not a plain file")
    return status.st_size


def _no_image(file: Path, reason: str) -> UsageError:
    return UsageError(f"not an image: {reason}", place=str(file), next_step="Remove it from the data set")


def _choose(listing: ImageListing, wanted: int) -> list[int]:
    """Draw without replacement, identically on every host; return all items if there are too few."""
    numbers = range(len(listing.files))
    return sorted(random.Random(0).sample(numbers, wanted)) if wanted < len(numbers) else list(numbers)  # noqa: S311


def _write_decoded(path: Path, listing: ImageListing, chosen: list[int], *, size: int) -> None:
    labels = listing.labels()
    images = np.empty((len(chosen), 3, size, size), dtype=np.uint8)

    def place(position: int) -> None:
        pixels = decode(Path(listing.root, listing.files[chosen[position]]), size=size)
        images[position] = np.frombuffer(pixels, dtype=np.uint8).reshape(size, size, 3).transpose(2, 0, 1)

    with ThreadPoolExecutor() as threads:  # Pillow releases the GIL while decoding
        list(threads.map(place, range(len(chosen))))
    width = label_bytes_for(len(listing.classes))
    write_tensor_file(
        path,
        name="ImageFolder",
        shape=images.shape,
        num_classes=len(listing.classes),
        images=images.data.cast("B"),
        labels=np.array([labels[i] for i in chosen], dtype=f"<u{width}").tobytes(),
    )


def prepare_tokens(path: Path, data: DataSpec, *, vocab_size: int) -> TokenFile:
    """Scan the file at `data.path` and write its listing to `path`.

    Raises:
        UsageError: the file is missing, is truncated, or contains an id outside the model's vocabulary.
    """
    file = Path(data.path or "")
    if data.path is None or not file.is_file():
        raise UsageError(
            f"there are no tokens: expected the file {file}",
            place="data.path",
            next_step=f"Write token ids there, {data.token_type} in little-endian order, without a header",
        )
    width = TOKEN_BYTES[data.token_type]
    if file.stat().st_size % width:
        raise UsageError(
            f"{count(file.stat().st_size)} bytes are not a whole number of {data.token_type} ids",
            place=str(file),
            next_step="Set data.token_type to what the file contains",
        )
    listing = _look_through(file, data)
    if listing.largest >= vocab_size:
        raise UsageError(
            f"id {listing.largest} at position {listing.largest_at} (numbered from 0) is outside a "
            f"vocabulary of {vocab_size}",
            place=str(file),
            next_step=f"Set model.options.vocab_size to at least {listing.largest + 1}, or "
            "check data.token_type",
        )
    write_listing(path, listing)
    return listing


def _look_through(file: Path, data: DataSpec) -> TokenFile:
    digest, position, largest, largest_at = hashlib.sha256(), 0, -1, -1
    block_bytes = BLOCK_TOKENS * TOKEN_BYTES[data.token_type]
    with file.open("rb") as stream:
        while block := stream.read(block_bytes):
            digest.update(block)
            ids = np.frombuffer(block, dtype=LITTLE_ENDIAN[data.token_type])
            at = int(ids.argmax())
            if int(ids[at]) > largest:
                largest, largest_at = int(ids[at]), position + at
            position += len(ids)
    return TokenFile(
        path=str(file.absolute()),
        token_type=data.token_type,
        num_tokens=position,
        sha256=digest.hexdigest(),
        largest=largest,
        largest_at=largest_at,
    )

"""Data that the user has on disk: images in folders, a class each, and files of token ids.

Images lie in `PATH/train/CLASS/*.jpg`, `PATH/test/…` (or `PATH/val/…`). With `data.loading: device` as many
of them as the ranks' pools hold are decoded here, so that a node needs no image library; with `loader` they
are only listed, and the node's loader decodes them while the steps run.

Tokens are ids of `data.token_type`, little endian, one after the other, without a header. The file is looked
through once, so that no id can be beyond the vocabulary, and not copied; the run keeps its size, its checksum
and its largest id.
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
"""Batches that a rank's pool holds at most; more would be decoded for nothing."""
DEVICE_BYTES = 2**30
"""Decoded images are at most about this much, unless two batches a rank are more: they go through memory
and the disk of the run, and every figure comes from a pool that is smaller."""
BLOCK_TOKENS = 2**22
LITTLE_ENDIAN = {"uint16": "<u2", "uint32": "<u4"}


def prepare_image_folder(
    path: Path, work: ModelWork, shape: InputShape, *, world_size: int, say: Say
) -> None:
    """Write the listing (loader) or the decoded images (device) to `path`.

    Raises:
        UsageError: there is no such folder, no image in it, or the model has too few classes.
        EnvironmentUnfitError: images are to be decoded here, and Pillow is not installed.
    """
    listing = list_images(Path(work.data.path or ""), split=work.data.split)
    if len(listing.classes) > shape.num_targets:
        raise UsageError(
            f"{listing.root} has {len(listing.classes)} classes, {work.model.name} {shape.num_targets}",
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
    """List the images of one part in the order of their names; nothing is opened.

    Raises:
        UsageError: there is no such folder, or no image in it.
    """
    candidates = [folder / name for name in FOLDERS[split]]
    root = next((candidate for candidate in candidates if candidate.is_dir()), None)
    if root is None:
        raise UsageError(
            f"there are no images: expected a folder for each class in {' or '.join(map(str, candidates))}",
            place="data.path",
            next_step="Set data.path to the folder above it",
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
            f"there is no image in {root}/CLASS/: expected files that end in {', '.join(sorted(ENDINGS))}",
            place="data.path",
        )
    return ImageListing(
        root=str(root.absolute()), classes=tuple(classes), files=tuple(files), sha256=digest.hexdigest()
    )


def _size(file: Path) -> int:
    """Return the size of an image in bytes.

    Raises:
        UsageError: the name is that of a link to nothing, of a pipe or of anything else that is no file.
    """
    try:
        status = file.stat()
    except OSError as error:
        raise _no_image(file, error.strerror or str(error)) from error
    if not stat.S_ISREG(status.st_mode):
        raise _no_image(file, "it is no plain file")
    return status.st_size


def _no_image(file: Path, reason: str) -> UsageError:
    return UsageError(f"no image: {reason}", place=str(file), next_step="Remove it from the data set")


def _choose(listing: ImageListing, wanted: int) -> list[int]:
    """Draw without replacement, the same on every host; all of them where there are no more."""
    numbers = range(len(listing.files))
    return sorted(random.Random(0).sample(numbers, wanted)) if wanted < len(numbers) else list(numbers)  # noqa: S311


def _write_decoded(path: Path, listing: ImageListing, chosen: list[int], *, size: int) -> None:
    labels = listing.labels()
    images = np.empty((len(chosen), 3, size, size), dtype=np.uint8)

    def place(position: int) -> None:
        pixels = decode(Path(listing.root, listing.files[chosen[position]]), size=size)
        images[position] = np.frombuffer(pixels, dtype=np.uint8).reshape(size, size, 3).transpose(2, 0, 1)

    with ThreadPoolExecutor() as threads:  # Pillow decodes outside the interpreter's lock
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
    """Look through the file at `data.path` and write the listing of it to `path`.

    Raises:
        UsageError: it is not there, is cut short, or holds an id that the model has no place for.
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
            f"{count(file.stat().st_size)} bytes are no whole number of {data.token_type} ids",
            place=str(file),
            next_step="Set data.token_type to what the file holds",
        )
    listing = _look_through(file, data)
    if listing.largest >= vocab_size:
        raise UsageError(
            f"the id {listing.largest} at position {listing.largest_at} (counted from 0) is outside a "
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

"""Files of a run with samples or their location; the control side writes, the node side reads.

A *tensor file* provides real samples to a node whose only library is torch. It contains a line of JSON
(shape, SHA-256 of the rest), then uint8 images in C order, then the labels: one byte per sample or, with more
than 256 classes, four bytes, little endian. A *listing* represents a data set that is too large to be copied
into a run: the control side scans it once, and the node side reads the listing, then the files themselves.

Only this module reads images with Pillow, as RGB, row by row, cropped to a square: either on the control side
before a run (`data.loading: device`), or in the loader's processes on the node during the run (`data.loading:
loader`).
"""

from __future__ import annotations

import hashlib
import json
import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from gpuproof.base.errors import EnvironmentUnfitError, RecordError, UsageError
from gpuproof.base.files import open_plain, replacing
from gpuproof.base.outside import parse_json
from gpuproof.records.codec import from_json, to_json
from gpuproof.records.work.data import TokenType

Bytes = bytes | bytearray | memoryview
T = TypeVar("T")
TOKEN_BYTES: dict[TokenType, int] = {"uint16": 2, "uint32": 4}
ENDINGS = frozenset({".bmp", ".jpeg", ".jpg", ".pgm", ".png", ".ppm", ".tif", ".tiff", ".webp"})


@dataclass(frozen=True, slots=True, kw_only=True)
class TensorFileHeader:
    """Content of a file: uint8 images of `shape` (count, channels, height, width), and labels."""

    name: str
    shape: tuple[int, ...]
    num_classes: int
    sha256: str
    label_bytes: int = 1

    @property
    def num_elements(self) -> int:
        """Size of the image data in bytes."""
        return math.prod(self.shape)

    @property
    def num_bytes(self) -> int:
        """Size in bytes of what follows the header: images, then labels."""
        return self.num_elements + self.shape[0] * self.label_bytes


def label_bytes_for(num_classes: int) -> int:
    """Return the number of bytes per label.

    >>> label_bytes_for(256), label_bytes_for(257)
    (1, 4)
    """
    return 1 if num_classes <= 256 else 4


def write_tensor_file(
    path: Path, *, name: str, shape: tuple[int, ...], num_classes: int, images: Bytes, labels: Bytes
) -> TensorFileHeader:
    """Write images (uint8, C order) and labels to a temporary file, then rename it: all or nothing."""
    digest = hashlib.sha256(images)
    digest.update(labels)
    header = TensorFileHeader(
        name=name,
        shape=shape,
        num_classes=num_classes,
        sha256=digest.hexdigest(),
        label_bytes=label_bytes_for(num_classes),
    )
    assert memoryview(images).nbytes + memoryview(labels).nbytes == header.num_bytes
    with replacing(path) as place, place.open("wb") as file:
        file.write(json.dumps(to_json(header)).encode() + b"\n")
        file.write(images)
        file.write(labels)
    return header


def read_header(path: Path) -> tuple[TensorFileHeader, int]:
    """Return the header and the offset of the data.

    Raises:
        RecordError: the file is truncated, modified, or not a tensor file.
    """
    with path.open("rb") as file:
        line = file.readline()
        try:
            header = from_json(TensorFileHeader, parse_json(line), place=str(path))
        except ValueError as error:
            raise RecordError("not a tensor file", place=str(path)) from error
        offset = file.tell()
        digest, num_bytes = hashlib.sha256(), 0
        while block := file.read(2**20):  # hashlib.file_digest was added in Python 3.11
            digest.update(block)
            num_bytes += len(block)
    if digest.hexdigest() != header.sha256 or not header.shape or num_bytes != header.num_bytes:
        raise RecordError(
            "the data does not match its first line",
            place=str(path),
            next_step="Delete the file; it will be recreated",
        )
    return header, offset


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenFile:
    """A raw file of token ids, little endian, and the largest id in it."""

    path: str
    token_type: TokenType
    num_tokens: int
    sha256: str
    largest: int
    largest_at: int
    """Position, counted from 0, of the first token with that id."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ImageListing:
    """The images of one part of a folder, in order; an image's class is the folder that contains it."""

    root: str
    """The part's folder; `files` are relative to it."""
    classes: tuple[str, ...]
    files: tuple[str, ...]
    sha256: str
    """Hash of the names and sizes of all files; it does not cover file contents."""

    def labels(self) -> list[int]:
        """Return the class of each file."""
        number = {name: i for i, name in enumerate(self.classes)}
        return [number[file.partition("/")[0]] for file in self.files]


def write_listing(path: Path, listing: TokenFile | ImageListing) -> None:
    """Write a listing to a temporary file, then rename it: the listing is complete or absent."""
    with replacing(path) as place:
        place.write_text(json.dumps(to_json(listing)), encoding="utf-8")


def read_listing(cls: type[T], path: Path) -> T:
    """Read a listing.

    Raises:
        RecordError: the file is not a listing of this kind.
    """
    try:
        content: Any = parse_json(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise RecordError("not a listing", place=str(path), next_step="Delete it to recreate it") from error
    return from_json(cls, content, place=str(path))


def require_pillow(python: str) -> None:
    """Check that this interpreter, shown as `python` in the error, can decode images.

    Raises:
        EnvironmentUnfitError: Pillow is not installed.
    """
    try:
        import PIL.Image  # noqa: F401
    except ImportError as error:
        raise EnvironmentUnfitError(
            f"images are decoded with Pillow, which is not installed in {python}",
            place="data.name",
            next_step="Install it there (pip install pillow); with data.loading=device, only the "
            "side that starts the run needs it",
        ) from error


def decode(file: Path, *, size: int) -> bytes:
    """Return the image scaled and centre-cropped to `size` × `size` pixels: RGB, 3 bytes per pixel.

    Raises:
        UsageError: the file cannot be read as an image.
    """
    from PIL import Image, ImageOps

    try:
        with open_plain(file) as opened, Image.open(opened) as image:
            return ImageOps.fit(image.convert("RGB"), (size, size), Image.Resampling.BILINEAR).tobytes()
    except (OSError, SyntaxError, ValueError, Image.DecompressionBombError) as error:
        raise UsageError(
            f"not an image that Pillow can read: {error}",
            place=str(file),
            next_step="Remove the file from the data set, or replace it",
        ) from error

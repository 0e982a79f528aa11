"""Listings of data sets that stay where they are: what a run read, and whether it is still the same.

Images of a folder and files of tokens are too large to be copied into a run. The control side looks through
them once and writes a listing into the run; the node side reads the listing and then the files themselves.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from gpuproof.errors import RecordError
from gpuproof.records.case import TokenType
from gpuproof.records.codec import from_json, to_json

T = TypeVar("T")
TOKEN_BYTES: dict[TokenType, int] = {"uint16": 2, "uint32": 4}


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenFile:
    """A raw file of token ids, little endian, and the largest of them."""

    path: str
    token_type: TokenType
    num_tokens: int
    sha256: str
    largest: int
    largest_at: int
    """Position of the first token of that id, counted from 0."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ImageListing:
    """The images of one part of a folder, in order; an image's class is the folder it lies in."""

    root: str
    """The folder of the part; `files` are relative to it."""
    classes: tuple[str, ...]
    files: tuple[str, ...]
    sha256: str
    """Of names and sizes of all files: their content is not read for it."""

    def labels(self) -> list[int]:
        """Return the class of each file."""
        number = {name: i for i, name in enumerate(self.classes)}
        return [number[file.partition("/")[0]] for file in self.files]


def write_listing(path: Path, listing: TokenFile | ImageListing) -> None:
    """Write a listing, aside and then renamed, so that it is whole or absent."""
    aside = path.with_name(f".{path.name}.part")
    aside.write_text(json.dumps(to_json(listing)), encoding="utf-8")
    aside.replace(path)


def read_listing(cls: type[T], path: Path) -> T:
    """Read a listing.

    Raises:
        RecordError: it is no listing of this kind.
    """
    try:
        content: Any = json.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise RecordError(
            "not a listing", place=str(path), next_step="Delete the file; it is made again"
        ) from error
    return from_json(cls, content, place=str(path))

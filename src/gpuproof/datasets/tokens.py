"""A file of token ids: looked through once, before a run, so that no id can be beyond the vocabulary.

The file has no header: ids of `data.token_type`, little endian, one after the other. It is not copied; the
run keeps its size, its checksum and its largest id.
"""

from __future__ import annotations

import hashlib
from pathlib import Path

import numpy as np

from gpuproof.base.errors import UsageError
from gpuproof.base.units import count
from gpuproof.records.dataset_files import TOKEN_BYTES, TokenFile, write_listing
from gpuproof.records.work.data import DataSpec

BLOCK_TOKENS = 2**22
LITTLE_ENDIAN = {"uint16": "<u2", "uint32": "<u4"}


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

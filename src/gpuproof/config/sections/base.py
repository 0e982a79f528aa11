"""What all sections of a recipe share: strict, immutable, no unknown keys; and the types of single values."""

from __future__ import annotations

import re
from typing import Annotated, Any

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field

MAX_SECONDS = 7 * 86_400
"""A week: longer than any benchmark that somebody still waits for."""

Seconds = Annotated[float, Field(gt=0, le=MAX_SECONDS)]
Text = Annotated[str, Field(min_length=1, max_length=4096, pattern=r"^[^\x00-\x1f\x7f]+$")]
FileName = Annotated[
    str,
    Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]*$", max_length=100, json_schema_extra={"format": "file-name"}),
]
CommitHash = Annotated[
    str, Field(pattern=r"^(auto|[0-9a-fA-F]{4,64})$", json_schema_extra={"format": "commit"})
]
DeviceIndices = Annotated[  # not strict, so that a list will do
    tuple[Annotated[int, Field(ge=0, le=1023)], ...], Field(min_length=1, max_length=1024, strict=False)
]


SUFFIXES = {"": 1, "K": 2**10, "M": 2**20, "G": 2**30}
MAX_BYTES = 2**40


def _read_bytes(value: Any) -> Any:
    """Read 64, "64", "8K", "128M" or "2G", with binary units as in nccl-tests; others are left to be refused.

    >>> _read_bytes("128M"), _read_bytes(8)
    (134217728, 8)
    """
    if isinstance(value, str) and (
        found := re.fullmatch(r"(\d+)\s*([KMG]?)i?B?", value.strip(), re.IGNORECASE)
    ):
        return int(found[1]) * SUFFIXES[found[2].upper()]
    return value


Bytes = Annotated[int, BeforeValidator(_read_bytes), Field(ge=1, le=MAX_BYTES)]


def growing_sizes(smallest: int, largest: int, factor: int) -> tuple[int, ...]:
    """Return the sizes from the smallest up to the largest that the factor reaches.

    >>> growing_sizes(8, 600, 8)
    (8, 64, 512)
    """
    sizes, size = [], smallest
    while size <= largest:
        sizes.append(size)
        size *= factor
    return tuple(sizes)


STRICT = ConfigDict(
    frozen=True,
    extra="forbid",
    strict=True,
    allow_inf_nan=False,
    use_attribute_docstrings=True,
    defer_build=True,  # most are never used in a process, or only as a part of another
)
"""Every key is known, no value is converted, numbers are finite."""


class ConfigSection(BaseModel):
    """What all sections share: immutable, strict types, no unknown keys, finite numbers."""

    model_config = STRICT

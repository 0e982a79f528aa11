"""What all sections of a recipe share: strict, immutable, no unknown keys; and the types of single values."""

from __future__ import annotations

from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field

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


class ConfigSection(BaseModel):
    """What all sections share: immutable, strict types, no unknown keys, finite numbers."""

    model_config = ConfigDict(
        frozen=True, extra="forbid", strict=True, allow_inf_nan=False, use_attribute_docstrings=True
    )

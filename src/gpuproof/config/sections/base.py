"""What all sections of a recipe share: strict, immutable, no unknown keys; and the types of single values.

A section that a case carries to the node is a dataclass of `records` (see `records/work/options.py`).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, ClassVar, get_origin, get_type_hints

from pydantic import BaseModel, ConfigDict, Field

from gpuproof.records.work.options import Options

FileName = Annotated[
    str,
    Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]*$", max_length=100, json_schema_extra={"format": "file-name"}),
]
CommitHash = Annotated[
    str, Field(pattern=r"^(auto|[0-9a-fA-F]{4,64})$", json_schema_extra={"format": "commit"})
]


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


def option_types(section: type[BaseModel] | type[Options]) -> Mapping[str, Any]:
    """Return the keys of a section, in order, with the types of their values."""
    if issubclass(section, BaseModel):
        return {name: field.annotation for name, field in section.model_fields.items()}
    hints = get_type_hints(section, include_extras=True)
    return {name: hint for name, hint in hints.items() if get_origin(hint) is not ClassVar}

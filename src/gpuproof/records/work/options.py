"""Options: fields of frozen dataclasses that validate a recipe's block and are stored in a case.

The node side reads cases using only the standard library, so bounds are annotations that nothing in this
module enforces: pydantic finds them by its protocol (`__get_pydantic_core_schema__`) when a recipe is read.
The docstring under a field becomes the key's description in the JSON Schema and in messages. A case is not
validated again.

>>> growing_sizes(8, 600, 8)
(8, 64, 512)
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Annotated, Any, ClassVar, get_origin, get_type_hints

MAX_SECONDS = 7 * 86_400
"""Maximum duration: a week, longer than anyone would wait for a benchmark."""
MAX_BYTES = 2**40
MAX_TOKENS = 2**20
_SUFFIXES = {"": 1, "K": 2**10, "M": 2**20, "G": 2**30}


class Limits:
    """Allowed values of an option, expressed in pydantic's core schemas: ge, lt, min_length, pattern."""

    __slots__ = ("form", "limits", "read")

    def __init__(
        self, *, read: Callable[[Any], Any] | None = None, form: str | None = None, **limits: Any
    ) -> None:
        self.limits = limits
        self.form = form
        """The JSON Schema format name for a string of this form."""
        self.read = read
        """Converts user input to the value to be validated."""

    def __get_pydantic_core_schema__(
        self, source: Any, handler: Callable[[Any], Mapping[str, Any]]
    ) -> dict[str, Any]:
        """Return the annotated type's schema with these limits added."""
        schema = {**handler(source), **self.limits}
        if self.form is not None:
            schema["metadata"] = {"pydantic_js_updates": {"format": self.form}}
        if self.read is None:
            return schema
        function = {"type": "no-info", "function": self.read}
        return {"type": "function-before", "function": function, "schema": schema}


class Options:
    """A block of options: no unknown keys, no conversion of values, only finite numbers."""

    __slots__ = ()
    __pydantic_config__: ClassVar[Mapping[str, Any]] = {
        "extra": "forbid",
        "strict": True,
        "allow_inf_nan": False,
        "use_attribute_docstrings": True,
        "revalidate_instances": "always",  # an instance created in Python has not been validated
    }

    @classmethod
    def __get_pydantic_core_schema__(cls, source: Any, handler: Any) -> Any:
        """Return the block's schema: strict for its values, but the block itself may be a mapping."""
        schema = handler(source)
        handler.resolve_ref_schema(schema)["strict"] = False
        return schema

    @classmethod
    def types(cls) -> dict[str, Any]:
        """Return the options in order, with the types of their values."""
        hints = get_type_hints(cls, include_extras=True)
        return {name: hint for name, hint in hints.items() if get_origin(hint) is not ClassVar}

    def changed(self) -> list[str]:
        """List the options that differ from their default."""
        default, names = type(self)(), getattr(self, "__dataclass_fields__", ())
        return [name for name in names if getattr(self, name) != getattr(default, name)]


def read_bytes(value: Any) -> Any:
    """Parse 64, "64", "8K", "128M" or "2G" (binary units, as in nccl-tests); others are rejected later.

    >>> read_bytes("128M"), read_bytes(8)
    (134217728, 8)
    """
    pattern = r"(\d+)\s*([KMG]?)i?B?"
    if isinstance(value, str) and (match := re.fullmatch(pattern, value.strip(), re.IGNORECASE)):
        return int(match[1]) * _SUFFIXES[match[2].upper()]
    return value


Seconds = Annotated[float, Limits(gt=0, le=MAX_SECONDS)]
Text = Annotated[str, Limits(min_length=1, max_length=4096, pattern=r"^[^\x00-\x1f\x7f]+$")]
FileName = Annotated[str, Limits(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]*$", max_length=100, form="file-name")]
CommitHash = Annotated[str, Limits(pattern=r"^(auto|[0-9a-fA-F]{4,64})$", form="commit")]
Bytes = Annotated[int, Limits(read=read_bytes, ge=1, le=MAX_BYTES)]
Factor = Annotated[int, Limits(ge=2, le=1024)]
Iterations = Annotated[int, Limits(ge=1, le=100_000)]
WarmUp = Annotated[int, Limits(ge=0, le=100_000)]
Seed = Annotated[int, Limits(ge=0, lt=2**32)]
DeviceIndices = Annotated[  # not strict, so that a list is accepted
    tuple[Annotated[int, Limits(ge=0, le=1023)], ...], Limits(min_length=1, max_length=1024, strict=False)
]
SOME = Limits(min_length=1, strict=False)
"""Limits for a list that replaces a tuple and needs at least one item."""


def growing_sizes(smallest: int, largest: int, factor: int) -> tuple[int, ...]:
    """Return the sizes from the smallest up to the largest that can be reached with the factor."""
    sizes, size = [], smallest
    while size <= largest:
        sizes.append(size)
        size *= factor
    return tuple(sizes)

"""An option is a field of a frozen dataclass: a recipe's block is checked against it, and a case carries it.

The node side reads cases with the standard library alone, so that bounds are annotations which nothing here
enforces: pydantic finds them by its protocol (`__get_pydantic_core_schema__`) where a recipe is read, and the
docstring under a field is what the JSON Schema and messages say of the key. A case is not checked again.

>>> growing_sizes(8, 600, 8)
(8, 64, 512)
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Annotated, Any, ClassVar, get_origin, get_type_hints

MAX_SECONDS = 7 * 86_400
"""A week: longer than any benchmark that somebody still waits for."""
MAX_BYTES = 2**40
MAX_TOKENS = 2**20
_SUFFIXES = {"": 1, "K": 2**10, "M": 2**20, "G": 2**30}


class Limits:
    """What values an option takes, in the words of pydantic's core schemas: ge, lt, min_length, pattern."""

    __slots__ = ("form", "limits", "read")

    def __init__(
        self, *, read: Callable[[Any], Any] | None = None, form: str | None = None, **limits: Any
    ) -> None:
        self.limits = limits
        self.form = form
        """What the JSON Schema calls a text of this form."""
        self.read = read
        """Turns what a user writes into the value that is checked."""

    def __get_pydantic_core_schema__(
        self, source: Any, handler: Callable[[Any], Mapping[str, Any]]
    ) -> dict[str, Any]:
        """Return the schema of the annotated type with these limits."""
        schema = {**handler(source), **self.limits}
        if self.form is not None:
            schema["metadata"] = {"pydantic_js_updates": {"format": self.form}}
        if self.read is None:
            return schema
        function = {"type": "no-info", "function": self.read}
        return {"type": "function-before", "function": function, "schema": schema}


class Options:
    """A block of options: no unknown keys, no value converted, numbers finite."""

    __slots__ = ()
    __pydantic_config__: ClassVar[Mapping[str, Any]] = {
        "extra": "forbid",
        "strict": True,
        "allow_inf_nan": False,
        "use_attribute_docstrings": True,
        "revalidate_instances": "always",  # one that was made in Python was not checked
    }

    @classmethod
    def __get_pydantic_core_schema__(cls, source: Any, handler: Any) -> Any:
        """Return the schema of the block: its values are strict, while a mapping will do for the block."""
        schema = handler(source)
        handler.resolve_ref_schema(schema)["strict"] = False
        return schema

    @classmethod
    def types(cls) -> dict[str, Any]:
        """Return the options in order, with the types of their values."""
        hints = get_type_hints(cls, include_extras=True)
        return {name: hint for name, hint in hints.items() if get_origin(hint) is not ClassVar}

    def changed(self) -> list[str]:
        """Name the options that do not have their default."""
        default, names = type(self)(), getattr(self, "__dataclass_fields__", ())
        return [name for name in names if getattr(self, name) != getattr(default, name)]


def read_bytes(value: Any) -> Any:
    """Read 64, "64", "8K", "128M" or "2G", with binary units as in nccl-tests; others are left to be refused.

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
DeviceIndices = Annotated[  # not strict, so that a list will do
    tuple[Annotated[int, Limits(ge=0, le=1023)], ...], Limits(min_length=1, max_length=1024, strict=False)
]
SOME = Limits(min_length=1, strict=False)
"""Of a list in the place of a tuple, of which at least one item is asked for."""


def growing_sizes(smallest: int, largest: int, factor: int) -> tuple[int, ...]:
    """Return the sizes from the smallest up to the largest that the factor reaches."""
    sizes, size = [], smallest
    while size <= largest:
        sizes.append(size)
        size *= factor
    return tuple(sizes)

"""Strict parsing of files with plain entries, such as hosts or scheduler options.

In: a path and the model for its content. Out: the content, or one `ConfigError` that lists every mistake with
its line. Messages use our own words, because the validation library's messages contain its class names.
"""

from __future__ import annotations

import difflib
import functools
import json
import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Annotated, Any, Final, TypeVar

from pydantic import BaseModel, ConfigDict, Field, TypeAdapter, ValidationError

from gpuproof.config.settings import ConfigError, Mistake, shown
from gpuproof.config.yaml import Document, Place, read_document, read_text
from gpuproof.records.codec import to_json

MAX_BYTES = 2**20
Text = Annotated[str, Field(min_length=1, max_length=200, pattern=r"^[^\x00-\x1f\x7f]+$")]
"""A single line without control characters."""


STRICT = ConfigDict(
    frozen=True,
    extra="forbid",
    strict=True,
    allow_inf_nan=False,
    use_attribute_docstrings=True,
    defer_build=True,  # most types are never used in a process, or only as part of another type
)
"""Only known keys are allowed, values are not converted, and numbers must be finite."""
_KINDS: Final = {
    "int": "a whole number",
    "float": "a number",
    "finite_number": "a finite number",
    "decimal": "a number",
    "bool": "true or false",
    "string": "text",
    "bytes": "text",
    "none_required": "null",
    **dict.fromkeys(("list", "tuple", "set", "frozen_set", "iterable", "iteration"), "a list"),
    **dict.fromkeys(("dict", "model", "dataclass", "mapping", "arguments"), "a mapping of keys"),
}
"""Prefix of an error type → a description of what was expected."""
_BOUNDS: Final = {
    "greater_than_equal": ("ge", "{} or more"),
    "greater_than": ("gt", "more than {}"),
    "less_than_equal": ("le", "{} or less"),
    "less_than": ("lt", "less than {}"),
    "multiple_of": ("multiple_of", "a multiple of {}"),
    "too_short": ("min_length", "at least {} of them"),
    "too_long": ("max_length", "at most {} of them"),
    "string_too_short": ("min_length", "at least {} characters"),
    "string_too_long": ("max_length", "at most {} characters"),
    "literal_error": ("expected", "{}"),
    "enum": ("expected", "{}"),
}
"""Error type → its context key, and the wording of the message."""
_OTHERS: Final = {
    "missing": "the key is missing",
    "missing_argument": "the key is missing",
    "extra_forbidden": "unknown key",
    "unexpected_keyword_argument": "unknown key",
    "string_pattern_mismatch": "not in the form this key requires",
    "json_invalid": "is not JSON",
}


class StrictModel(BaseModel):
    """Content in which only known keys are allowed, and no value is converted."""

    model_config = STRICT


Model = TypeVar("Model", bound=StrictModel)


def open_document(path: str, *, what: str) -> Document:
    """Read a file as YAML or JSON.

    Raises:
        ConfigError: the file cannot be read, or is neither YAML nor JSON.
    """
    return read_document(read_entries(path, what=what), source=path)


def read_entries(path: str, *, what: str) -> str:
    """Return the text of a file.

    Raises:
        ConfigError: the file cannot be read.
    """
    try:
        return read_text(Path(path), source=path, max_bytes=MAX_BYTES, what=what)
    except FileNotFoundError as error:
        cause = f"cannot be read ({error.strerror})"
        step = f"Specify the {what} file; relative paths start at the current directory"
        raise ConfigError([Mistake(place=path, cause=cause, next_step=step)]) from error


def read_as(
    model: type[Model], document: Document, *, model_at: Callable[[Place], type[BaseModel]] | None = None
) -> Model:
    """Check a document against its model; `model_at` returns the model for a location in it.

    Raises:
        ConfigError: the document is wrong; lists every mistake with its line.
    """
    find = model_at or (lambda _: model)
    try:
        return model.model_validate(document.data)
    except ValidationError as error:
        mistakes = [_mistake(document, find(detail["loc"]), detail) for detail in error.errors()]
        raise ConfigError(mistakes) from None


def _mistake(document: Document, model: type[BaseModel], detail: Any) -> Mistake:
    place = place_in(document.data, detail["loc"])
    if detail["type"] == "extra_forbidden":
        keys = list(model.model_fields)
        close = difflib.get_close_matches(str(place[-1]), keys, n=1)
        hint = f"Perhaps you mean {close[0]}" if close else f"Keys: {', '.join(keys)}"
        return document.mistake(place, "unknown key", next_step=hint)
    if detail["type"] == "missing":
        return document.mistake(place, f"the key {detail['loc'][-1]} is missing")
    content = detail["input"]
    is_plain = content is None or isinstance(content, (bool, int, float, str))
    value = shown(content) if is_plain else "a list" if isinstance(content, list) else "a mapping"
    return document.mistake(place, f"{cause_of(detail)}, found {value}", next_step=_description(model, place))


def place_in(data: Any, loc: Place) -> Place:
    """Return the part of a location that is in the data; the library adds the classes that it tried."""
    place: list[str | int] = []
    for part in loc:
        if _holds(data, part):
            place.append(part)
            data = data[part]
    return tuple(place)


def _holds(data: Any, part: str | int) -> bool:
    return (isinstance(data, dict) and part in data) or (isinstance(data, list) and part in range(len(data)))


def _description(model: type[BaseModel], place: Place) -> str | None:
    names = [part for part in place if isinstance(part, str)]
    field = model.model_fields.get(names[-1]) if names else None
    return f"The key means: {' '.join(str(field.description).split())}" if field else None


@functools.cache
def type_adapter(options_type: Any) -> TypeAdapter[Any]:
    """Build a type's validator only once: this takes milliseconds, and every launch needs it."""
    return TypeAdapter(options_type)


def read_strictly(adapter: TypeAdapter[Any], values: Mapping[str, Any]) -> Any:
    """Build the object from plain values without converting any: true is not 1, "5" is text.

    In JSON, as opposed to Python, a list may become a tuple even in strict mode.
    """
    return adapter.validate_json(json.dumps(to_json(values)), strict=True)


def cause_of(detail: Mapping[str, Any]) -> str:
    """Describe what is wrong, without class names.

    >>> cause_of({"type": "int_parsing"}), cause_of({"type": "less_than_equal", "ctx": {"le": 65535}})
    ('expected a whole number', 'expected 65535 or less')
    """
    kind, context = str(detail["type"]), detail.get("ctx", {})
    if kind in ("value_error", "assertion_error"):
        return str(context["error"])
    if kind in _OTHERS:
        return _OTHERS[kind]
    if kind in _BOUNDS:
        key, words = _BOUNDS[kind]
        return f"expected {words.format(context[key])}"
    found = next((words for start, words in _KINDS.items() if re.match(rf"{start}(_|$)", kind)), None)
    return f"expected {found or 'another kind of value'}"

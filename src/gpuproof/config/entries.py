"""A file of plain entries, such as hosts or options of a scheduler: read strictly, mistakes told by line.

In: a path and the model of its content. Out: the content, or one `ConfigError` with every mistake.
"""

from __future__ import annotations

import difflib
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any, TypeVar

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from gpuproof.config.settings import ConfigError, Mistake, shown
from gpuproof.config.wording import cause_of
from gpuproof.config.yaml import Document, Place, read_document, read_text

MAX_BYTES = 2**20
Text = Annotated[str, Field(min_length=1, max_length=200, pattern=r"^[^\x00-\x1f\x7f]+$")]
"""A line without control characters."""


STRICT = ConfigDict(
    frozen=True,
    extra="forbid",
    strict=True,
    allow_inf_nan=False,
    use_attribute_docstrings=True,
    defer_build=True,  # most are never used in a process, or only as a part of another
)
"""Every key is known, no value is converted, numbers are finite."""


class StrictModel(BaseModel):
    """Content of which every key is known, and none is converted."""

    model_config = STRICT


Model = TypeVar("Model", bound=StrictModel)


def open_document(path: str, *, what: str) -> Document:
    """Read a file as YAML or JSON.

    Raises:
        ConfigError: it cannot be read, or is neither.
    """
    return read_document(read_entries(path, what=what), source=path)


def read_entries(path: str, *, what: str) -> str:
    """Read the text of a file.

    Raises:
        ConfigError: it cannot be read.
    """
    try:
        return read_text(Path(path), source=path, max_bytes=MAX_BYTES, what=what)
    except FileNotFoundError as error:
        cause, step = (
            f"cannot be read ({error.strerror})",
            f"Name the {what} file; it is looked for from here",
        )
        raise ConfigError([Mistake(place=path, cause=cause, next_step=step)]) from error


def read_as(
    model: type[Model], document: Document, *, model_at: Callable[[Place], type[BaseModel]] | None = None
) -> Model:
    """Check a document against its model; `model_at` says which model a place below it has.

    Raises:
        ConfigError: it is wrong; every mistake with its line.
    """
    find = model_at or (lambda _: model)
    try:
        return model.model_validate(document.data)
    except ValidationError as error:
        mistakes = [_mistake(document, find(detail["loc"]), detail) for detail in error.errors()]
        raise ConfigError(mistakes) from None


def _mistake(document: Document, model: type[BaseModel], detail: Any) -> Mistake:
    place = _place_in(document.data, detail["loc"])
    if detail["type"] == "extra_forbidden":
        keys = list(model.model_fields)
        close = difflib.get_close_matches(str(place[-1]), keys, n=1)
        hint = f"Perhaps {close[0]} is meant" if close else f"Keys: {', '.join(keys)}"
        return document.mistake(place, "unknown key", next_step=hint)
    if detail["type"] == "missing":
        return document.mistake(place, f"the key {detail['loc'][-1]} is missing")
    content = detail["input"]
    is_plain = content is None or isinstance(content, (bool, int, float, str))
    value = shown(content) if is_plain else "a list" if isinstance(content, list) else "a mapping"
    return document.mistake(place, f"{cause_of(detail)}, found {value}", next_step=_description(model, place))


def _place_in(data: Any, loc: Place) -> Place:
    """Return the part of a place that is in the data: the library adds the classes of what it tried."""
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

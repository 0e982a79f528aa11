"""Converts frozen dataclasses to JSON and back, validated against their own annotations.

Unknown keys are ignored, so that an older reader can open a newer minor version; a missing or ill-typed key
raises a `RecordError` that names it. The dataclasses in a union are distinguished by `kind`, a literal in
each. NaN and infinity are rejected: a missing number is None, with a separate reason.

>>> from dataclasses import dataclass
>>> @dataclass(frozen=True)
... class Point:
...     x_m: float
...     label: str | None = None
>>> from_json(Point, {"x_m": 1, "unknown": 2})
Point(x_m=1.0, label=None)
>>> to_json(Point(x_m=2.5))
{'x_m': 2.5, 'label': None}
"""

from __future__ import annotations

import dataclasses
import functools
import math
import re
import types
import typing
from collections.abc import Callable, Mapping, Sequence
from typing import Annotated, Any, TypeVar

from gpuproof.base.errors import RecordError
from gpuproof.records.work.options import Limits

Natural = Annotated[int, 0]
Positive = Annotated[int, 1]
Amount = Annotated[float, 0]
Amounts = Annotated[tuple[float, ...], 0]
Duration = Annotated[float, 1e-9]
Host = Annotated[str, "[^/>]+"]
"""Numbers with their minimums, and strings with their patterns: nothing else is accepted."""
T = TypeVar("T")
_Reader = Callable[[Any], Any]
_Writer = Callable[[Any], Any]
_PLAIN = frozenset({str, int, bool, type(None)})
MOST = 1e70
"""Largest accepted number: an fp32 loss may reach 1e38, and the fourth power of this limit is still finite.
Values below its inverse are read as 0."""


def to_json(value: Any) -> Any:
    """Convert dataclasses, mappings, sequences and scalars to values that `json.dumps` accepts."""
    kind: Any = type(value)
    return value if kind in _PLAIN else _writer(kind)(value)


def from_json(cls: type[T], data: Any, *, place: str = "record") -> T:
    """Build the dataclass `cls` from decoded JSON.

    Raises:
        RecordError: a key is missing, or its value does not have the annotated type.
    """
    try:
        built: T = _build(cls, data)
    except _MisfitError as misfit:
        raise RecordError(misfit.cause, place=f"{place}{misfit.where}") from None
    return built


class _MisfitError(Exception):
    """A value does not match its annotation; `where` is only built while the error propagates."""

    def __init__(self, cause: str) -> None:
        super().__init__(cause)
        self.cause = cause
        self.where = ""


def _build(cls: Any, data: Any) -> Any:
    if not isinstance(data, dict):
        raise _mismatch(f"an object for {cls.__name__}", data)
    values: dict[str, Any] = {}
    fields = _fields(cls)
    name = ""
    try:
        for name, read in fields:  # the name shows how far parsing got
            if name in data:
                values[name] = read(data[name])
    except _MisfitError as misfit:
        misfit.where = f": {name}{misfit.where}"
        raise
    if len(values) < len(fields):
        lacking = next((name for name in _required_names(cls) if name not in values), None)
        if lacking is not None:
            raise _MisfitError(f"{cls.__name__} lacks the key {lacking!r}")
    try:
        return cls(**values)
    except ValueError as error:  # a value that the record class itself rejects
        raise _MisfitError(str(error)) from None


@functools.cache
def _writer(kind: Any) -> _Writer:
    """Return a function that converts values of this type to JSON; it is created once per type."""
    if dataclasses.is_dataclass(kind):
        names = tuple(field.name for field in dataclasses.fields(kind))
        return lambda value: {name: to_json(getattr(value, name)) for name in names}
    if issubclass(kind, Mapping):
        return lambda value: {str(key): to_json(item) for key, item in value.items()}
    if issubclass(kind, Sequence) and not issubclass(kind, str):
        return lambda value: [to_json(item) for item in value]
    return _finite if issubclass(kind, float) else lambda value: value


def _finite(value: float) -> float:
    if not math.isfinite(value):
        raise RecordError(f"{value} cannot be recorded", next_step="Record None and the reason")
    return value


@functools.cache
def _fields(cls: Any) -> tuple[tuple[str, _Reader], ...]:
    """List a dataclass's fields, each with the function that reads its value."""
    hints = typing.get_type_hints(cls, include_extras=True)
    return tuple((field.name, _reader(hints[field.name])) for field in dataclasses.fields(cls))


@functools.cache
def _required_names(cls: Any) -> tuple[str, ...]:
    missing = dataclasses.MISSING
    return tuple(
        field.name
        for field in dataclasses.fields(cls)
        if field.default is missing and field.default_factory is missing
    )


def _reader(expected: Any) -> _Reader:
    """Return a function that converts JSON to this annotated type; it is created once per type."""
    origin, arguments = typing.get_origin(expected), typing.get_args(expected)
    if expected is Any:
        return lambda value: value
    if origin in (typing.Union, types.UnionType):
        options = [option for option in arguments if option is not type(None)]
        read = _reader(options[0]) if len(options) == 1 else _union_reader(options)
        return (lambda value: None if value is None else read(value)) if type(None) in arguments else read
    if origin is typing.Literal:
        return functools.partial(_checked_choice, arguments)
    if origin is tuple:
        return _tuple_reader(arguments)
    if origin in (dict, Mapping):
        return functools.partial(_mapping, _reader(arguments[1]))
    return _plain_reader(expected)


def _union_reader(options: Sequence[Any]) -> _Reader:
    """Return a reader for a union of dataclasses, or of one type and the strings allowed instead."""
    others = [option for option in options if typing.get_origin(option) is not typing.Literal]
    if len(others) != 1:
        return _tagged_reader(options)
    words = [word for option in options if option not in others for word in typing.get_args(option)]
    read = _reader(others[0])
    return lambda value: value if isinstance(value, str) and value in words else read(value)


def _bind(bound: float | str, read: _Reader, value: Any) -> Any:
    field = read(value)
    if isinstance(bound, str):
        if re.fullmatch(bound, field) is None:
            raise _MisfitError(f"{field[:40]!r} does not match {bound}")
        return field
    least = min(field, default=bound) if isinstance(field, tuple) else field
    if least < bound:
        raise _MisfitError(f"{least:g} is less than {bound:g}, the minimum")
    return field


def _tagged_reader(options: Sequence[Any]) -> _Reader:
    """Return a reader for a union of dataclasses, selected by the literal value of `kind`."""
    kinds = {
        kind: functools.partial(_build, option)
        for option in options
        for kind in typing.get_args(typing.get_type_hints(option)["kind"])
    }
    return functools.partial(_read_tagged, kinds)


def _read_tagged(readers: Mapping[str, _Reader], value: Any) -> Any:
    if not isinstance(value, dict):
        raise _mismatch("an object", value)
    if "kind" not in value:
        raise _MisfitError(f"lacks the key 'kind', which is one of {', '.join(readers)}")
    kind = value["kind"]
    if not isinstance(kind, str) or kind not in readers:
        misfit = _MisfitError(f"{kind!r} is not one of the kinds known here: {', '.join(readers)}")
        misfit.where = ": kind"
        raise misfit
    return readers[kind](value)


def _tuple_reader(arguments: tuple[Any, ...]) -> _Reader:
    if arguments == (float, ...):
        return _numbers
    if arguments[-1] is Ellipsis:
        return functools.partial(_tuple, _reader(arguments[0]))
    return functools.partial(_row, tuple(map(_reader, arguments)))


def _plain_reader(expected: Any) -> _Reader:
    if dataclasses.is_dataclass(expected):
        return functools.partial(_build, expected)
    if typing.get_origin(expected) is Annotated:
        kind, bound = typing.get_args(expected)
        if isinstance(bound, Limits):  # the rest was validated when the recipe was read
            bound = bound.limits.get("ge")
        if bound is None:
            return _reader(kind)
        return functools.partial(_bind, bound, _reader(kind))
    return {float: _float, int: _int}.get(expected) or functools.partial(_instance, expected)


def _checked_choice(choices: tuple[Any, ...], value: Any) -> Any:
    if value not in choices:
        raise _MisfitError(f"{value!r} is not one of {choices}")
    return value


def _tuple(read: _Reader, value: Any) -> tuple[Any, ...]:
    if not isinstance(value, list):
        raise _mismatch("a list", value)
    return tuple([read(item) for item in value])


def _row(readers: tuple[_Reader, ...], value: Any) -> tuple[Any, ...]:
    if not isinstance(value, list) or len(value) != len(readers):
        raise _mismatch(f"{len(readers)} items", value)
    return tuple([read(item) for read, item in zip(readers, value, strict=True)])


def _numbers(value: Any) -> tuple[float, ...]:
    """Read step times, by far the longest lists, in a single pass."""
    if not isinstance(value, list):
        raise _mismatch("a list", value)
    if not {*map(type, value)} <= {float, int}:
        raise _mismatch("numbers", value)
    if value and not (-MOST <= min(value) <= max(value) <= MOST and all(map(math.isfinite, value))):
        raise _mismatch(f"numbers up to {MOST:g}", value)
    return tuple(map(float, value))


def _mapping(read: _Reader, value: Any) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise _mismatch("an object", value)
    mapping: dict[str, Any] = {}
    key = ""
    try:
        for key, item in value.items():
            mapping[key] = read(item)
    except _MisfitError as misfit:
        misfit.where = f".{key}{misfit.where}"
        raise
    return mapping


def _float(value: Any) -> float:
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        raise _mismatch("a number", value)
    if not abs(value) <= MOST:
        raise _mismatch(f"a number up to {MOST:g}", value)
    return float(value) if abs(value) * MOST >= 1 else 0.0


def _int(value: Any) -> int:
    if isinstance(value, bool) or not isinstance(value, int):
        raise _mismatch("a whole number", value)
    if abs(value) > MOST:
        raise _mismatch(f"a whole number up to {MOST:g}", value)
    return value


def _instance(expected: type, value: Any) -> Any:
    if not isinstance(value, expected):
        raise _mismatch(expected.__name__, value)
    return value


def _mismatch(expected: str, value: Any) -> _MisfitError:
    return _MisfitError(f"expected {expected}, found {type(value).__name__}")

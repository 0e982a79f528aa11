"""Frozen dataclasses to JSON and back, checked against their own annotations.

Keys that this version does not know are ignored, so that an older reader opens a newer minor version;
a missing or ill-typed key is a `RecordError` that names it. NaN and infinity are refused: a missing
number is None with a reason beside it.

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
import types
import typing
from collections.abc import Mapping, Sequence
from typing import Any, TypeVar

from gpuproof.errors import RecordError

T = TypeVar("T")
JsonObject = dict[str, Any]


def to_json(value: Any) -> Any:
    """Turn dataclasses, mappings, sequences and scalars into what `json.dumps` takes as it stands."""
    if type(value) is float and math.isfinite(value):  # nearly all there is: first, for the sampler's sake
        return value
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {f.name: to_json(getattr(value, f.name)) for f in dataclasses.fields(value)}
    if isinstance(value, Mapping):
        return {str(key): to_json(item) for key, item in value.items()}
    if isinstance(value, str) or value is None:
        return value
    if isinstance(value, Sequence):
        return [to_json(item) for item in value]
    if isinstance(value, float) and not math.isfinite(value):
        raise RecordError(f"{value} cannot be recorded", next_step="Record None and the reason")
    return value


def from_json(cls: type[T], data: Any, *, place: str = "record") -> T:
    """Build the dataclass `cls` from decoded JSON.

    Raises:
        RecordError: a key is missing or holds another type than the annotation says.
    """
    if not isinstance(data, Mapping):
        raise RecordError(f"expected an object for {cls.__name__}, found {type(data).__name__}", place=place)
    hints = _type_hints(cls)  # type: ignore[arg-type]  # classes are hashable
    values = {}
    for field in dataclasses.fields(cls):  # type: ignore[arg-type]  # every caller passes a dataclass
        if field.name in data:
            values[field.name] = _convert(hints[field.name], data[field.name], f"{place}: {field.name}")
        elif field.default is dataclasses.MISSING and field.default_factory is dataclasses.MISSING:
            raise RecordError(f"{cls.__name__} lacks the key {field.name!r}", place=place)
    return cls(**values)


@functools.cache
def _type_hints(cls: type) -> dict[str, Any]:
    return typing.get_type_hints(cls)


def _convert(expected: Any, value: Any, place: str) -> Any:
    origin = typing.get_origin(expected)
    if origin in (typing.Union, types.UnionType):
        return _convert_union(typing.get_args(expected), value, place)
    if origin is typing.Literal:
        if value in typing.get_args(expected):
            return value
        raise RecordError(f"{value!r} is not one of {typing.get_args(expected)}", place=place)
    if origin is tuple:
        return _convert_tuple(expected, value, place)
    if origin in (dict, Mapping):
        _require(isinstance(value, Mapping), "an object", value, place)
        item_type = typing.get_args(expected)[1]
        return {key: _convert(item_type, item, f"{place}.{key}") for key, item in value.items()}
    if dataclasses.is_dataclass(expected):
        return from_json(typing.cast("type[Any]", expected), value, place=place)
    return _convert_scalar(expected, value, place)


def _convert_union(options: tuple[Any, ...], value: Any, place: str) -> Any:
    if value is None and type(None) in options:
        return None
    (only,) = [option for option in options if option is not type(None)]
    return _convert(only, value, place)


def _convert_tuple(expected: Any, value: Any, place: str) -> tuple[Any, ...]:
    _require(isinstance(value, list), "a list", value, place)
    item_types = typing.get_args(expected)
    if item_types[-1] is not Ellipsis:
        _require(len(value) == len(item_types), f"{len(item_types)} items", value, place)
        return tuple(_convert(kind, item, place) for kind, item in zip(item_types, value, strict=True))
    item_type = item_types[0]
    if item_type is float:  # step times: by far the longest lists, kept off the slow path
        _require(all(type(item) in (float, int) for item in value), "numbers", value, place)
        return tuple(float(item) for item in value)
    return tuple(_convert(item_type, item, place) for item in value)


def _convert_scalar(expected: Any, value: Any, place: str) -> Any:
    if expected is Any:
        return value
    if expected is float:
        _require(isinstance(value, (int, float)) and not isinstance(value, bool), "a number", value, place)
        return float(value)
    if expected is int:
        _require(isinstance(value, int) and not isinstance(value, bool), "a whole number", value, place)
        return value
    _require(isinstance(value, expected), expected.__name__, value, place)
    return value


def _require(holds: bool, expected: str, value: Any, place: str) -> None:
    if not holds:
        raise RecordError(f"expected {expected}, found {type(value).__name__}", place=place)

"""Which keys there are, and whether settings name them: unknown keys, keys in the wrong place, text as text.

In: settings as given. Out: those that name a key, and a mistake for each that does not, with the key that
was probably meant and the valid ones.
"""

from __future__ import annotations

import difflib
import functools
import math
import types
import typing
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Annotated, Any

from pydantic import BaseModel

from gpuproof.config.errors import Mistake, shown
from gpuproof.config.models import RunConfig
from gpuproof.config.settings import ConfigSetting, KeyPath, dotted


@dataclass(frozen=True, slots=True, kw_only=True)
class Key:
    """A key of the config that holds a value."""

    path: KeyPath
    description: str
    is_text: bool
    """Holds free text, so that `007` and `true` are taken as written."""
    is_free: bool
    """Holds a mapping whose keys a plug-in checks."""


@functools.cache
def all_keys() -> Mapping[KeyPath, Key]:
    """Return every key that holds a value, in the order of the model."""
    return types.MappingProxyType({key.path: key for key in _keys_of(RunConfig, ())})


@functools.cache
def all_sections() -> frozenset[KeyPath]:
    """Return the path of every section; the root is ()."""
    return frozenset(path[:end] for path in all_keys() for end in range(len(path)))


def keys_below(section: KeyPath) -> list[str]:
    """Name the keys and sections right below `section`."""
    depth = len(section)
    return list(dict.fromkeys(path[depth] for path in all_keys() if path[:depth] == section))


def _keys_of(model: type[BaseModel], above: KeyPath) -> Iterable[Key]:
    for name, field in model.model_fields.items():
        path = (*above, name)
        if isinstance(field.annotation, type) and issubclass(field.annotation, BaseModel):
            yield from _keys_of(field.annotation, path)
        else:
            held = set(_held_types(field.annotation))
            assert field.description is not None
            yield Key(path=path, description=field.description, is_text=str in held, is_free=dict in held)


def _held_types(annotation: Any) -> Iterable[Any]:
    if typing.get_origin(annotation) is Annotated:
        yield from _held_types(typing.get_args(annotation)[0])
    elif typing.get_origin(annotation) in (types.UnionType, typing.Union):
        for member in typing.get_args(annotation):
            yield from _held_types(member)
    else:
        yield typing.get_origin(annotation) or annotation


def enclosing_key(path: KeyPath) -> Key | None:
    """Return the key at `path` or the one that `path` lies inside; None where there is none."""
    ends = range(1, len(path) + 1)
    return next((all_keys()[path[:end]] for end in ends if path[:end] in all_keys()), None)


def check_keys(settings: Iterable[ConfigSetting]) -> tuple[list[ConfigSetting], list[Mistake]]:
    """Part the settings that name keys from the mistakes; text keys get their words as written."""
    known: list[ConfigSetting] = []
    mistakes: list[Mistake] = []
    refused: set[KeyPath] = set()
    for given in settings:
        if any(given.path[:end] in refused for end in range(1, len(given.path))):
            continue
        key = enclosing_key(given.path)
        setting = _as_written(given, key)
        if key is not None:
            mistake = _fault_inside(setting, key)
        elif setting.path in all_sections():
            mistake = _fault_of_section(setting)
        else:
            mistake = _unknown(setting)
        if mistake is not None:
            mistakes.append(mistake)
            refused.add(setting.path)
        elif key is not None:
            known.append(setting)
    return known, mistakes


def _as_written(setting: ConfigSetting, key: Key | None) -> ConfigSetting:
    if key is not None and key.is_text and setting.written and setting.value is not None:
        return replace(setting, value=setting.written)
    return setting


def _fault_inside(setting: ConfigSetting, key: Key) -> Mistake | None:
    if not key.is_free and (setting.value == {} or setting.path != key.path):
        cause = f"{dotted(key.path)} holds one value and has no keys of its own"
        return Mistake.in_setting(setting, cause, next_step=f"The key means: {key.description}")
    if not _is_finite(setting.value):
        return Mistake.in_setting(
            setting, "infinity and NaN are no settings", next_step="Write a finite number"
        )
    if key.is_free and setting.path == key.path and setting.value != {}:
        found = shown(setting.value, setting.written)
        return Mistake.in_setting(
            setting, f"expected a mapping of options, found {found}", next_step="Write `option: value` below"
        )
    return None


def _is_finite(value: Any) -> bool:
    if isinstance(value, (list, dict)):
        return all(map(_is_finite, value.values() if isinstance(value, dict) else value))
    return not isinstance(value, float) or math.isfinite(value)


def _fault_of_section(setting: ConfigSetting) -> Mistake | None:
    if setting.value == {}:
        return None
    names = ", ".join(keys_below(setting.path))
    found = shown(setting.value, setting.written)
    return Mistake.in_setting(
        setting,
        f"expected a section, found {found}",
        next_step=f"Give it one of its keys ({names}), or remove it",
    )


def _unknown(setting: ConfigSetting) -> Mistake:
    depth = next(end for end in range(1, len(setting.path) + 1) if setting.path[:end] not in all_sections())
    path = setting.path[:depth]
    valid = keys_below(path[:-1])
    home = dotted(path[:-1]) or "the config"
    guess = _probable_key(path, valid)
    meant = f"; did you mean {guess}?" if guess else "."
    cause = f"unknown key{meant} The keys of {home} are {', '.join(valid)}"
    return Mistake.in_setting(replace(setting, path=path), cause)


def _probable_key(path: KeyPath, siblings: list[str]) -> str | None:
    """Guess the key that was meant: a sibling spelt alike, or the same name in another section."""
    close = difflib.get_close_matches(path[-1], siblings, n=1)
    if close:
        return close[0]
    elsewhere = {key[-1]: dotted(key) for key in all_keys()}
    close = difflib.get_close_matches(path[-1], elsewhere, n=1)
    return elsewhere[close[0]] if close else None

"""A setting: one key with the value and the place that it was given; the common form of all sources.

Files and command lines are read into settings; settings are checked against the keys that there are,
laid over each other, and nested into what the model takes.
"""

from __future__ import annotations

import copy
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

KeyPath = tuple[str, ...]
COMMAND_LINE = "command line"
OVERRIDES = "overrides"
"""The argument of that name of the Python API."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ConfigSetting:
    """One key as given. A mapping is a setting with the value {}, then a setting for each of its keys."""

    path: KeyPath
    value: Any
    """Plain data: None, bool, int, float, str, a list, or {} where a mapping begins."""
    written: str | None = None
    """The characters of a plain (unquoted) scalar, before they were taken for a number or a word."""
    source: str
    line: int | None = None
    item_lines: tuple[int, ...] = ()
    """Of a list in a file: the line of each item."""

    @property
    def origin(self) -> str:
        """Where the value comes from: `FILE:LINE`, `command line` or `overrides`."""
        return self.source if self.line is None else f"{self.source}:{self.line}"

    @property
    def place(self) -> str:
        """Where a mistake in it is: the origin and the dotted key."""
        return f"{self.origin}: {dotted(self.path)}"


def dotted(path: Sequence[str]) -> str:
    """Write a path as people do: `training.compile.mode`."""
    return ".".join(path)


def lay_over(base: Iterable[ConfigSetting], overrides: Iterable[ConfigSetting]) -> list[ConfigSetting]:
    """Apply `overrides` in their order: each replaces what was set at its key, below it, or in its way."""
    merged = list(base)
    for new in overrides:
        merged = [old for old in merged if not _gives_way(old, new)]
        merged.append(new)
    return merged


def _gives_way(old: ConfigSetting, new: ConfigSetting) -> bool:
    inside = old.path[: len(new.path)] == new.path
    in_the_way = new.path[: len(old.path)] == old.path and old.value != {}
    return inside or in_the_way


def nest(settings: Iterable[ConfigSetting]) -> dict[str, Any]:
    """Build the nested mappings that the settings describe.

    >>> nest([ConfigSetting(path=("data", "batch_size"), value=32, source="x")])
    {'data': {'batch_size': 32}}
    """
    root: dict[str, Any] = {}
    for setting in settings:
        node = root
        for part in setting.path[:-1]:
            node = node.setdefault(part, {})
        node[setting.path[-1]] = copy.copy(setting.value)
    return root

"""A setting: one key with the value and the place that it was given; and what is wrong with one.

Files and command lines are read into settings; settings are checked against the keys that there are,
laid over each other, and nested into what the model takes. Every mistake is told at once, one line each, in
reading order.
"""

from __future__ import annotations

import copy
import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from gpuproof.base.errors import UsageError

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


SHOWN = 10
"""More mistakes than this are counted, not listed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Mistake:
    """One thing to correct. `line` is None for the command line, which is read after the file."""

    place: str
    line: int | None = None
    cause: str
    next_step: str | None = None

    @classmethod
    def in_setting(cls, setting: ConfigSetting, cause: str, *, next_step: str | None = None) -> Mistake:
        """Make a mistake whose place is that of `setting`."""
        return cls(place=setting.place, line=setting.line, cause=cause, next_step=next_step)

    def __str__(self) -> str:
        """Write the mistake as one paragraph without control characters."""
        return str(UsageError(self.cause, place=self.place, next_step=self.next_step))


class ConfigError(UsageError):
    """A config that cannot be used; exit code 2. Prints one line a mistake."""

    def __init__(self, mistakes: Iterable[Mistake]) -> None:
        self.mistakes = tuple(sorted(mistakes, key=lambda mistake: (mistake.line is None, mistake.line or 0)))
        first = self.mistakes[0]
        super().__init__(first.cause, place=first.place, next_step=first.next_step)

    def __str__(self) -> str:
        """Join the mistakes: one is a paragraph of its own, several stand below a count."""
        lines = [str(mistake) for mistake in self.mistakes]
        if len(lines) == 1:
            return lines[0]
        left_out = [f"and {len(lines) - SHOWN} more."] if len(lines) > SHOWN else []
        return "\n  ".join([f"{len(lines)} mistakes in the config:", *lines[:SHOWN], *left_out])


def shown(value: Any, written: str | None = None) -> str:
    """Describe a value as it was given, in at most some 60 characters.

    >>> shown(None), shown(True), shown(3), shown("32"), shown([0, None])
    ('null', 'true', '3', 'the text "32"', '[0, null]')
    """
    if isinstance(value, str):
        return f'the text "{_shorten(value)}"'
    return _shorten(written or json.dumps(value))


def _shorten(text: str) -> str:
    return text if len(text) <= 50 else f"{text[:40]}… ({len(text)} characters)"

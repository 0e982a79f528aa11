"""A setting (one key with its value and location), and a mistake in a setting.

Files and command lines are read as settings. Settings are checked against the known keys, merged, and nested
into the structure that the model expects. All mistakes are reported together, one per line, in the order in
which they were read.
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
"""The argument of that name in the Python API."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ConfigSetting:
    """One key as given. A mapping is a setting with the value {}, then one setting for each key."""

    path: KeyPath
    value: Any
    """Plain data: None, bool, int, float, str, a list, or {} where a mapping starts."""
    written: str | None = None
    """The characters of a plain (unquoted) scalar, before it is converted to a number or a keyword."""
    source: str
    line: int | None = None
    item_lines: tuple[int, ...] = ()
    """For a list in a file: the line of each item."""

    @property
    def origin(self) -> str:
        """Where the value was set: `FILE:LINE`, `command line` or `overrides`."""
        return self.source if self.line is None else f"{self.source}:{self.line}"

    @property
    def place(self) -> str:
        """Location to report for a mistake in the setting: its origin and its dotted key."""
        return f"{self.origin}: {dotted(self.path)}"


def dotted(path: Sequence[str]) -> str:
    """Write a path in dotted form: `training.compile.mode`."""
    return ".".join(path)


def lay_over(base: Iterable[ConfigSetting], overrides: Iterable[ConfigSetting]) -> list[ConfigSetting]:
    """Apply `overrides` in order: each replaces what is set at its key, below it, or at a parent."""
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
    """Build the nested mappings described by the settings.

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
"""Maximum number of mistakes listed; any others are only counted."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Mistake:
    """One mistake to correct. `line` is None for the command line, which is read after the file."""

    place: str
    line: int | None = None
    cause: str
    next_step: str | None = None

    @classmethod
    def in_setting(cls, setting: ConfigSetting, cause: str, *, next_step: str | None = None) -> Mistake:
        """Describe a mistake at the location of `setting`."""
        return cls(place=setting.place, line=setting.line, cause=cause, next_step=next_step)

    def __str__(self) -> str:
        """Format the mistake as one paragraph without control characters."""
        return str(UsageError(self.cause, place=self.place, next_step=self.next_step))


class ConfigError(UsageError):
    """A config that cannot be used; exit code 2. Prints one line per mistake."""

    def __init__(self, mistakes: Iterable[Mistake]) -> None:
        self.mistakes = tuple(sorted(mistakes, key=lambda mistake: (mistake.line is None, mistake.line or 0)))
        first = self.mistakes[0]
        super().__init__(first.cause, place=first.place, next_step=first.next_step)

    def __str__(self) -> str:
        """Join the mistakes: a single mistake is one paragraph, several are listed after their count."""
        lines = [str(mistake) for mistake in self.mistakes]
        if len(lines) == 1:
            return lines[0]
        left_out = [f"and {len(lines) - SHOWN} more."] if len(lines) > SHOWN else []
        return "\n  ".join([f"{len(lines)} mistakes in the config:", *lines[:SHOWN], *left_out])


def shown(value: Any, written: str | None = None) -> str:
    """Show a value as given, in at most about 60 characters.

    >>> shown(None), shown(True), shown(3), shown("32"), shown([0, None])
    ('null', 'true', '3', 'the text "32"', '[0, null]')
    """
    if isinstance(value, str):
        return f'the text "{_shorten(value)}"'
    return _shorten(written or json.dumps(value))


def _shorten(text: str) -> str:
    return text if len(text) <= 50 else f"{text[:40]}… ({len(text)} characters)"

"""What is wrong with a config, told to a person: every mistake at once, one line each, in reading order.

In: mistakes with their place, cause and next step. Out: one `ConfigError` that prints them.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from gpuproof.config.settings import ConfigSetting
from gpuproof.errors import UsageError

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
        self.mistakes = tuple(sorted(mistakes, key=_reading_order))
        first = self.mistakes[0]
        super().__init__(first.cause, place=first.place, next_step=first.next_step)

    def __str__(self) -> str:
        """Join the mistakes: one is a paragraph of its own, several stand below a count."""
        lines = [str(mistake) for mistake in self.mistakes]
        if len(lines) == 1:
            return lines[0]
        left_out = [f"and {len(lines) - SHOWN} more."] if len(lines) > SHOWN else []
        return "\n  ".join([f"{len(lines)} mistakes in the config:", *lines[:SHOWN], *left_out])


def _reading_order(mistake: Mistake) -> tuple[bool, int]:
    return mistake.line is None, mistake.line or 0


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

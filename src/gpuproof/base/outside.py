r"""What comes from outside, from hosts, files of others and servers: text that nothing obeys, and JSON.

Every JSON that somebody else may have written is parsed here, and comes out without what a terminal would
obey, so that no renderer meets it: escape sequences, marks that turn the reading direction, halves of
characters.

>>> plain("a\tb\n\x1b[31mc")
'a\tb\n [31mc'
>>> parse_json('{"name": "\\u001b]0;title\\u0007"}')
{'name': ' ]0;title '}
"""

from __future__ import annotations

import json
from typing import Any

MAX_DEPTH = 64
"""Levels of nesting of JSON: what we write has ten or fewer, and who reads it calls itself at each."""
PASSED_ON = "\n\t\N{NO-BREAK SPACE}"


def plain(text: str, *, allowed: str = PASSED_ON) -> str:
    """Return a text in which each character that is not printed is a blank, but for line ends and tabs."""
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() or c in allowed else " " for c in text)


def parse_json(text: str | bytes, *, is_order: bool = False) -> Any:
    """Parse JSON; texts and keys in it are plain, but in orders, whose paths and words are kept.

    Raises:
        ValueError: it is none, or is nested deeper than `MAX_DEPTH`.
    """
    try:
        data = json.loads(text)
    except RecursionError:
        raise ValueError(f"nested deeper than {MAX_DEPTH} levels") from None
    return bounded(data, text, is_order=is_order)


def bounded(data: Any, text: str | bytes, *, is_order: bool = False) -> Any:
    """Return what was parsed from `text`, plain.

    Raises:
        ValueError: as `parse_json`.
    """
    openings = (b"[", b"{") if isinstance(text, bytes) else ("[", "{")
    if sum(map(text.count, openings)) > MAX_DEPTH and _is_deep(data):  # type: ignore[arg-type]  # of one type
        raise ValueError(f"nested deeper than {MAX_DEPTH} levels")
    return data if is_order or is_clean(text) else _cleaned(data)


def _is_deep(data: Any) -> bool:
    level = [data]
    for _ in range(MAX_DEPTH):
        below = (item.values() if isinstance(item, dict) else item for item in level)
        level = [item for items in below for item in items if isinstance(item, (dict, list))]
        if not level:
            return False
    return True


def is_clean(text: str | bytes) -> bool:
    """Say whether all text in it is printed ASCII: JSON has no control character that is not escaped."""
    if isinstance(text, bytes):
        return text.isascii() and b"\\" not in text and b"\x7f" not in text
    return text.isascii() and "\\" not in text and "\x7f" not in text


def _cleaned(data: Any) -> Any:
    if isinstance(data, str):
        return plain(data)
    if isinstance(data, dict):
        return {plain(key): _cleaned(value) for key, value in data.items()}
    return [_cleaned(item) for item in data] if isinstance(data, list) else data

r"""Input from outside (hosts, other people's files, servers): JSON, and text without control codes.

All JSON that others may have written is parsed here, and returned without anything that a terminal would
interpret (escape sequences, bidirectional control marks, lone surrogates), so no renderer sees any of it.

>>> plain("a\tb\n\x1b[31mc")
'a\tb\n [31mc'
>>> parse_json('{"name": "\\u001b]0;title\\u0007"}')
{'name': ' ]0;title '}
"""

from __future__ import annotations

import json
from typing import Any

MAX_DEPTH = 64
"""Maximum nesting depth of JSON: our own files have ten levels or fewer, and readers recurse once per
level."""
PASSED_ON = "\n\t\N{NO-BREAK SPACE}"


def plain(text: str, *, allowed: str = PASSED_ON) -> str:
    """Return a text with each non-printable character except line ends and tabs replaced by a blank."""
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() or c in allowed else " " for c in text)


def parse_json(text: str | bytes, *, is_order: bool = False) -> Any:
    """Parse JSON and clean its strings and keys, except orders, which keep their paths and arguments.

    Raises:
        ValueError: the text is not JSON, or is nested deeper than `MAX_DEPTH`.
    """
    try:
        data = json.loads(text)
    except RecursionError:
        raise ValueError(f"nested deeper than {MAX_DEPTH} levels") from None
    return bounded(data, text, is_order=is_order)


def bounded(data: Any, text: str | bytes, *, is_order: bool = False) -> Any:
    """Return the value parsed from `text`, with its strings and keys cleaned.

    Raises:
        ValueError: same as for `parse_json`.
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
    """Return whether the text is entirely printable ASCII: JSON escapes every control character."""
    if isinstance(text, bytes):
        return text.isascii() and b"\\" not in text and b"\x7f" not in text
    return text.isascii() and "\\" not in text and "\x7f" not in text


def _cleaned(data: Any) -> Any:
    if isinstance(data, str):
        return plain(data)
    if isinstance(data, dict):
        return {plain(key): _cleaned(value) for key, value in data.items()}
    return [_cleaned(item) for item in data] if isinstance(data, list) else data

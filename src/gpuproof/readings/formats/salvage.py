"""What is left of a JSON file that was cut short? The whole objects of its array, up to the first broken one.

>>> objects('[{"a": 1}, {"a": 2}, {"a"')
([{'a': 1}, {'a': 2}], 'cut short after 2 whole objects')
>>> objects('{"interval_ms": 500, "samples": [{"t": 0}, {"t"')
([{'t': 0}], 'cut short after 1 whole objects')
>>> objects('[{"a": 1}]')
([{'a': 1}], None)
"""

from __future__ import annotations

import json
import re
from typing import Any

_SAMPLES = re.compile(r'"samples"\s*:\s*\[')
_BETWEEN = " \t\r\n,"


def objects(text: str) -> tuple[list[dict[str, Any]], str | None]:
    """Return the objects of an array, or of the `samples` of a dict, and a note if the text is damaged."""
    try:
        whole = json.loads(text)
    except ValueError:
        return _whole_objects(text)
    if isinstance(whole, dict):
        whole = whole.get("samples", [])
    found = [item for item in whole if isinstance(item, dict)] if isinstance(whole, list) else []
    return found, None


def _whole_objects(text: str) -> tuple[list[dict[str, Any]], str]:
    inside = _SAMPLES.search(text) if text.lstrip().startswith("{") else None
    place = inside.end() if inside else text.find("[") + 1
    decoder = json.JSONDecoder()
    found: list[dict[str, Any]] = []
    while place < len(text):
        if text[place] in _BETWEEN:
            place += 1
            continue
        try:
            item, place = decoder.raw_decode(text, place)
        except ValueError:
            break
        if isinstance(item, dict):
            found.append(item)
    return found, f"cut short after {len(found)} whole objects"

r"""JSON of recordings and of a run's files, millions of lines of it, by the fastest parser there is.

>>> fast_json(b'{"name": "\\u001b]0;title\\u0007", "value": 0.1}')
{'name': ' ]0;title ', 'value': 0.1}
"""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

from gpuproof.outside import bounded, parse_json

try:
    import orjson
except ModuleNotFoundError:  # in the node file
    orjson = None  # type: ignore[assignment]

load_line: Callable[[bytes], Any] = json.loads if orjson is None else orjson.loads
"""Parses a line of JSON as it stands; raises ValueError."""


def fast_json(text: bytes) -> Any:
    """Parse JSON as `outside.parse_json` does: texts and keys in it are plain.

    Raises:
        ValueError: it is none, or is nested too deep.
    """
    try:
        data = load_line(text)
    except ValueError:
        return parse_json(text)  # it takes a little more, such as NaN, and says otherwise what is wrong
    return bounded(data, text)

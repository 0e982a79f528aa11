r"""Reads and writes JSON of recordings and run files (millions of lines) with the fastest library.

>>> fast_json(b'{"name": "\\u001b]0;title\\u0007", "value": 0.1}')
{'name': ' ]0;title ', 'value': 0.1}
"""

from __future__ import annotations

import contextlib
import json
import re
from collections.abc import Callable
from typing import Any

from gpuproof.base.outside import bounded, parse_json

try:
    import orjson
except ModuleNotFoundError:  # not available in the node file
    orjson = None  # type: ignore[assignment]

load_line: Callable[[bytes], Any] = json.loads if orjson is None else orjson.loads
"""Parses a line of JSON; raises ValueError."""

_EXPONENT = re.compile(r"e-?\d+,?(?:\n|$)")
_WRITTEN_OTHERWISE = ("0.0000", "\x7f")
"""Values that the two libraries write differently, besides exponents and non-ASCII characters."""


def indented(data: Any) -> str:
    r"""Return the same bytes as `json.dumps(data, indent=2)`, if possible in a tenth of the time.

    `data` is the output of `to_json`, which has already rejected numbers that are not finite.

    >>> indented({"s": 0.5, "names": ["a"]}) == json.dumps({"s": 0.5, "names": ["a"]}, indent=2)
    True
    >>> print(indented([1e-05, "\N{MICRO SIGN}"]))
    [
      1e-05,
      "\u00b5"
    ]
    """
    if orjson is not None:
        with contextlib.suppress(TypeError):  # a NumPy number, or an integer of more than 64 bits
            text: str = orjson.dumps(data, option=orjson.OPT_INDENT_2).decode()
            if text.isascii() and not (_EXPONENT.search(text) or any(o in text for o in _WRITTEN_OTHERWISE)):
                return text
    return json.dumps(data, indent=2, allow_nan=False)


def fast_json(text: bytes) -> Any:
    """Parse JSON as `outside.parse_json` does; texts and keys are plain strings.

    Raises:
        ValueError: the text is not JSON, or is nested too deeply.
    """
    try:
        data = load_line(text)
    except ValueError:
        # this parser accepts a little more, e.g. NaN, and has different error messages
        return parse_json(text)
    return bounded(data, text)

r"""JSON of recordings and of a run's files, millions of lines of it, read and written by the fastest library.

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
except ModuleNotFoundError:  # in the node file
    orjson = None  # type: ignore[assignment]

load_line: Callable[[bytes], Any] = json.loads if orjson is None else orjson.loads
"""Parses a line of JSON as it stands; raises ValueError."""

_EXPONENT = re.compile(r"e-?\d+,?(?:\n|$)")
_WRITTEN_OTHERWISE = ("0.0000", "\x7f")
"""What the two libraries write differently, besides exponents and what is no ASCII."""


def indented(data: Any) -> str:
    r"""Return what `json.dumps(data, indent=2)` does, to the byte, in a tenth of the time where it can be.

    `data` is as `to_json` gives it: it has refused what is not finite.

    >>> indented({"s": 0.5, "names": ["a"]}) == json.dumps({"s": 0.5, "names": ["a"]}, indent=2)
    True
    >>> print(indented([1e-05, "\N{MICRO SIGN}"]))
    [
      1e-05,
      "\u00b5"
    ]
    """
    if orjson is not None:
        with contextlib.suppress(TypeError):  # a number of numpy, or one of more than 64 bits
            text: str = orjson.dumps(data, option=orjson.OPT_INDENT_2).decode()
            if text.isascii() and not (_EXPONENT.search(text) or any(o in text for o in _WRITTEN_OTHERWISE)):
                return text
    return json.dumps(data, indent=2, allow_nan=False)


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

"""What a plain YAML scalar means: the core schema of YAML 1.2 (section 10.3.2), and nothing of YAML 1.1.

`no` is a word and no false, `1:30` is no ninety, `1e-4` is a number, `2026-01-01` no date. The YAML library
keeps some of the older readings, so the few lines of the standard stand here.

>>> [resolve(text) for text in ("no", "1:30", "1e-4", "010", "0x10", "~", "TRUE", "2026-01-01")]
['no', '1:30', 0.0001, 10, 16, None, True, '2026-01-01']
"""

from __future__ import annotations

import re

Scalar = str | int | float | bool | None

_WORDS: dict[str, bool | float | None] = {
    **dict.fromkeys(("", "~", "null", "Null", "NULL"), None),
    **dict.fromkeys(("true", "True", "TRUE"), True),
    **dict.fromkeys(("false", "False", "FALSE"), False),
    **dict.fromkeys((".nan", ".NaN", ".NAN"), float("nan")),
    **{sign + inf: float(sign + "inf") for sign in ("", "+", "-") for inf in (".inf", ".Inf", ".INF")},
}
# The lengths keep a number within what JSON readers and Python print; longer digits count as a float.
_DECIMAL = re.compile(r"[-+]?[0-9]{1,100}")
_OCTAL = re.compile(r"0o[0-7]{1,64}")
_HEXADECIMAL = re.compile(r"0x[0-9a-fA-F]{1,64}")
_FLOAT = re.compile(r"[-+]?(\.[0-9]+|[0-9]+(\.[0-9]*)?)([eE][-+]?[0-9]+)?")


def resolve(text: str) -> Scalar:
    """Return the value that a plain scalar stands for; floats may be infinite or NaN."""
    if text in _WORDS:
        return _WORDS[text]
    if _DECIMAL.fullmatch(text):
        return int(text)
    if _OCTAL.fullmatch(text):
        return int(text[2:], 8)
    if _HEXADECIMAL.fullmatch(text):
        return int(text[2:], 16)
    return float(text) if _FLOAT.fullmatch(text) else text

"""What is wrong with a value, in our words: the validation library's name its own classes.

In: one of the library's details of an error. Out: a cause such as "expected a whole number".
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, Final

_KINDS: Final = {
    "int": "a whole number",
    "float": "a number",
    "finite_number": "a finite number",
    "decimal": "a number",
    "bool": "true or false",
    "string": "text",
    "bytes": "text",
    "none_required": "null",
    **dict.fromkeys(("list", "tuple", "set", "frozen_set", "iterable", "iteration"), "a list"),
    **dict.fromkeys(("dict", "model", "dataclass", "mapping", "arguments"), "a mapping of keys"),
}
"""Beginning of a type of error → what was expected."""
_BOUNDS: Final = {
    "greater_than_equal": ("ge", "{} or more"),
    "greater_than": ("gt", "more than {}"),
    "less_than_equal": ("le", "{} or less"),
    "less_than": ("lt", "less than {}"),
    "multiple_of": ("multiple_of", "a multiple of {}"),
    "too_short": ("min_length", "at least {} of them"),
    "too_long": ("max_length", "at most {} of them"),
    "string_too_short": ("min_length", "at least {} characters"),
    "string_too_long": ("max_length", "at most {} characters"),
    "literal_error": ("expected", "{}"),
    "enum": ("expected", "{}"),
}
"""Type of error → the key of its context, and how it is said."""
_OTHERS: Final = {
    "missing": "the key is missing",
    "missing_argument": "the key is missing",
    "extra_forbidden": "unknown key",
    "unexpected_keyword_argument": "unknown key",
    "string_pattern_mismatch": "not in the form that this key takes",
    "json_invalid": "is no JSON",
}


def cause_of(detail: Mapping[str, Any]) -> str:
    """Return what is wrong, without a name of a class.

    >>> cause_of({"type": "int_parsing"}), cause_of({"type": "less_than_equal", "ctx": {"le": 65535}})
    ('expected a whole number', 'expected 65535 or less')
    """
    kind, context = str(detail["type"]), detail.get("ctx", {})
    if kind in ("value_error", "assertion_error"):
        return str(context["error"])
    if kind in _OTHERS:
        return _OTHERS[kind]
    if kind in _BOUNDS:
        key, words = _BOUNDS[kind]
        return f"expected {words.format(context[key])}"
    found = next((words for start, words in _KINDS.items() if re.match(rf"{start}(_|$)", kind)), None)
    return f"expected {found or 'another kind of value'}"

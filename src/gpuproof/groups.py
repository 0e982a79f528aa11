"""Values by what they have in common, in the order in which each group is met first.

>>> grouped((word[0], word) for word in ("ab", "cd", "ae"))
{'a': ['ab', 'ae'], 'c': ['cd']}
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable
from typing import TypeVar

Key = TypeVar("Key", bound=Hashable)
Value = TypeVar("Value")


def grouped(pairs: Iterable[tuple[Key, Value]]) -> dict[Key, list[Value]]:
    """Return the values of each key."""
    groups: dict[Key, list[Value]] = {}
    for key, value in pairs:
        groups.setdefault(key, []).append(value)
    return groups

"""Values grouped by a key, in the order in which each group is first seen.

>>> grouped((word[0], word) for word in ("ab", "cd", "ae"))
{'a': ['ab', 'ae'], 'c': ['cd']}
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Hashable, Iterable
from typing import TypeVar

Key = TypeVar("Key", bound=Hashable)
Value = TypeVar("Value")


def grouped(pairs: Iterable[tuple[Key, Value]]) -> dict[Key, list[Value]]:
    """Return the values for each key."""
    groups: dict[Key, list[Value]] = {}
    for key, value in pairs:
        groups.setdefault(key, []).append(value)
    return groups


def majority(values: Collection[Key | None]) -> Key | None:
    """Return the value of more than half of the entries, or None; missing values (None) are entries.

    >>> majority(["a", "b", "a"]), majority(["a", None]), majority([])
    ('a', None, None)
    """
    times = Counter(value for value in values if value is not None).most_common(1)
    return next((value for value, number in times if number > len(values) / 2), None)

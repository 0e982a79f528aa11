"""What of a page is shown on a screen: its parts in order, while there is room, and what was left out.

In: the parts of a page, each as the lines that a terminal would print. Out: those that fit, long ones cut,
and the names of the others with their lengths.

>>> parts = [PagePart(title=name, lines=("x",) * 9) for name in "abc"]
>>> shown, left_out = fitting(parts, 20)
>>> [part.title for part in shown], left_out_text(left_out)
(['a', 'c'], 'b (9 lines)')
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Final

MOST_LINES: Final = 60
"""Of a page on a screen."""
CLOSING_LINES: Final = 4
"""Kept for what says that something was left out."""
LONGEST: Final = (40, 30, 24, 20, 16, 12)
"""Lines of one part where not all parts fit whole: the first with which they do, else the last."""
SHORTEST: Final = 4
"""Lines from which a part that is cut still says something."""
MOST_NAMED: Final = 6


@dataclass(frozen=True, slots=True, kw_only=True)
class PagePart:
    """A section with those that go on with it, as lines."""

    title: str
    lines: tuple[str, ...]
    is_folded: bool = False


def fitting(parts: Sequence[PagePart], room: int) -> tuple[list[PagePart], list[PagePart]]:
    """Return the parts that fit into `room` lines, and those left out; the last part is always shown.

    What is folded is left out. Where the others do not fit, long ones are cut, and later ones left out.
    """
    left_out = [part for part in parts if part.is_folded]
    open_parts = [part for part in parts if not part.is_folded]
    if sum(len(part.lines) for part in open_parts) <= room:
        return open_parts, left_out
    lengths = [len(part.lines) for part in open_parts]
    longest = next((most for most in LONGEST if sum(min(most, num) for num in lengths) <= room), LONGEST[-1])
    shown: list[PagePart] = []
    room -= lengths[-1]
    for part in open_parts[:-1]:
        short = _cut(part, min(longest, room))
        if len(short.lines) > room or len(short.lines) < min(SHORTEST, len(part.lines)):
            left_out.append(part)
            continue
        shown.append(short)
        room -= len(short.lines)
    return [*shown, open_parts[-1]], left_out


def _cut(part: PagePart, most: int) -> PagePart:
    """Return a part of at most so many lines, the last of which says how many are left out."""
    if len(part.lines) <= most:
        return part
    lines = part.lines[: max(0, most - 1)]
    return replace(part, lines=(*lines, f"  … {len(part.lines) - len(lines)} more lines (--verbose)"))


def left_out_text(parts: Sequence[PagePart]) -> str:
    """Name parts that were left out, each with its length."""
    names = [f"{part.title or 'more'} ({len(part.lines)} lines)" for part in parts]
    more = f" and {len(names) - MOST_NAMED} more parts" if len(names) > MOST_NAMED else ""
    return f"{', '.join(names[:MOST_NAMED])}{more}"

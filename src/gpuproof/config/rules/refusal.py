"""What a contradiction is: keys that are fine alone and cannot hold together."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Contradiction:
    """Keys that cannot hold together (dotted, the one to change first), why, and the remedy."""

    keys: tuple[str, ...]
    cause: str
    next_step: str

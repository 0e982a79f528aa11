"""How a check ended, and what that stands on.

>>> Outcome(status="PASS", measured="980 samples/s", expected="900 or more", source="contract 7").status
'PASS'
>>> Outcome(status="PASS")
Traceback (most recent call last):
ValueError: PASS needs what was measured, what was expected, and from where
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Status = Literal["PASS", "WARN", "FAIL", "ERROR", "SKIP", "NOT-APPLICABLE"]
JUDGED: tuple[Status, ...] = ("PASS", "WARN", "FAIL")
"""What was measured and held against an expectation. All other statuses have a reason instead."""
NEEDING_ACTION: tuple[Status, ...] = ("WARN", "FAIL", "ERROR")


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """How a check ended.

    ERROR: it should have been measured and could not be. SKIP: nobody asked for it, or what it needs was
    not given. NOT-APPLICABLE: there is evidence, given as the reason, that there is nothing to measure.
    """

    status: Status
    measured: str | None = None
    expected: str | None = None
    source: str | None = None
    """Where the expectation comes from: a page, a contract, a key of the recipe."""
    reason: str | None = None
    next_step: str | None = None

    def __post_init__(self) -> None:
        """Refuse an answer that leaves out what it stands on.

        Raises:
            ValueError: a judgement without what was measured, expected and from where; any other status
                without its reason; a status that needs action without a next step.
        """
        if self.status in JUDGED and None in (self.measured, self.expected, self.source):
            raise ValueError(f"{self.status} needs what was measured, what was expected, and from where")
        if self.status not in JUDGED and self.reason is None:
            raise ValueError(f"{self.status} needs a reason")
        if self.status in NEEDING_ACTION and self.next_step is None:
            raise ValueError(f"{self.status} needs a next step")


@dataclass(frozen=True, slots=True, kw_only=True)
class Judged:
    """The outcome of a named check."""

    name: str
    outcome: Outcome

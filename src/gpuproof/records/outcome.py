"""The result of a check: measured and expected values for a subject, and the next step.

>>> Outcome(status="PASS", measured="980 samples/s", expected="900 or more", source="contract 7").status
'PASS'
>>> Outcome(status="PASS")
Traceback (most recent call last):
ValueError: PASS needs what was measured, what was expected, and the source of the expectation
>>> Expectation("0.5 s or less", "contract 7", "Look for other load").judge(False, "0.8 s").next_step
'Look for other load'
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, get_args

Status = Literal["PASS", "WARN", "FAIL", "ERROR", "SKIP", "NOT-APPLICABLE"]
STATUSES: tuple[Status, ...] = get_args(Status)
JUDGED: tuple[Status, ...] = ("PASS", "WARN", "FAIL")
"""Statuses that mean a value was measured and compared with an expectation. All other statuses have a reason
instead."""
NEEDING_ACTION: tuple[Status, ...] = ("WARN", "FAIL", "ERROR")
Actor = Literal["user", "administrator", "vendor", "plug-in author"]
Basis = Literal["absolute", "baseline", "peers", "none"]
"""Basis of an expectation: a stated or published value, the fleet's own history, or the other subjects of the
same run. None for a check of the environment, or if nothing was measured."""
SUBJECT = re.compile(r"whole|host/[^/]+(/gpu/.+)?|link/[^>]+>[^>]+")
"""`whole`, `host/NAME`, `host/NAME/gpu/UUID`, `link/FROM>TO`; older MIG UUIDs contain slashes themselves."""
SubjectKind = Literal["gpu", "host", "link", "whole"]


def kind_of(subject: str) -> SubjectKind:
    """Return the kind of a subject.

    >>> kind_of("host/a/gpu/0"), kind_of("link/a>b"), kind_of("host/a"), kind_of("whole")
    ('gpu', 'link', 'host', 'whole')
    """
    if subject.startswith("link/"):
        return "link"
    if "/gpu/" in subject:
        return "gpu"
    return "host" if subject.startswith("host/") else "whole"


def parent_of(subject: str) -> str:
    """Return a subject's parent: the host of a device, or of a link with both ends on that host.

    >>> parent_of("host/a/gpu/1"), parent_of("link/host/a>host/a/gpu/2"), parent_of("link/a>b")
    ('host/a', 'host/a', 'whole')
    """
    ends = subject.removeprefix("link/").split(">") if subject.startswith("link/") else [subject]
    hosts = {end.partition("/gpu/")[0] for end in ends}
    is_within = len(hosts) == 1 and "/gpu/" in subject and subject.partition("host/")[1]
    return hosts.pop() if is_within else "whole"


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """The result of a check for one subject.

    ERROR: the subject should have been measured, but could not be. SKIP: the check was not requested, or
    something it needs was not provided. NOT-APPLICABLE: there is evidence, given as the reason, that there is
    nothing to measure.
    """

    status: Status
    subject: str = "whole"
    measured: str | None = None
    expected: str | None = None
    source: str | None = None
    """Source of the expectation: a page, a contract, a recipe key."""
    reason: str | None = None
    next_step: str | None = None
    responsible: Actor | None = None
    """Party responsible for the next step."""
    measured_value: float | None = None
    measured_low: float | None = None
    """The lower bound of the interval of `measured_value`."""
    measured_high: float | None = None
    expected_value: float | None = None
    tolerance: float | None = None
    """How far a value may deviate from `expected_value` without a finding, in `unit`."""
    minimum_detectable: float | None = None
    """The smallest relative loss that this data would have revealed; None if unknown."""
    unit: str | None = None
    """The unit of these numbers except `minimum_detectable`, which is a fraction; "1" for a ratio."""
    records: tuple[str, ...] = ()
    """Basis of the result: launches as CASE/REPLICATE, or files in the run directory."""

    def __post_init__(self) -> None:
        """Reject a result without a basis.

        Raises:
            ValueError: the status is unknown; a verdict lacks the measured or expected value or its source;
                any other status lacks its reason; a status that needs action lacks a next step; the subject
                has an unknown form; a number is not finite, has no unit or is outside its interval.
        """
        if self.status not in STATUSES:
            raise ValueError(f"{self.status!r} is not a status: {', '.join(STATUSES)}")
        if self.status in JUDGED and None in (self.measured, self.expected, self.source):
            raise ValueError(
                f"{self.status} needs what was measured, what was expected, and the source of the expectation"
            )
        if self.status not in JUDGED and self.reason is None:
            raise ValueError(f"{self.status} needs a reason")
        if self.status in NEEDING_ACTION and self.next_step is None:
            raise ValueError(f"{self.status} needs a next step")
        if not SUBJECT.fullmatch(self.subject):
            raise ValueError(f"{self.subject!r} is not a subject: whole, host/H, host/H/gpu/UUID or link/A>B")
        self._check_numbers()

    @property
    def summary(self) -> str:
        """The reason; if there is none, the measured and expected values."""
        return self.reason or f"{self.measured}, expected {self.expected}"

    def _check_numbers(self) -> None:
        interval = (self.measured_low, self.measured_value, self.measured_high)
        numbers = [n for n in (*interval, self.expected_value, self.tolerance) if n is not None]
        if numbers and self.unit is None:
            raise ValueError("numbers need their unit")
        if not all(math.isfinite(number) for number in (*numbers, self.minimum_detectable or 0.0)):
            raise ValueError("a number that is not finite is not a measurement: omit it and give the reason")
        ends = [number for number in interval if number is not None]
        if ends != sorted(ends) or (ends and self.measured_value is None):
            raise ValueError("an interval must contain the measured value")


def not_judged(subject: str, reason: str, next_step: str, responsible: Actor = "user") -> Outcome:
    """Return an error: the check could not reach a verdict, which never counts as a pass."""
    return Outcome(
        status="ERROR", subject=subject, reason=reason, next_step=next_step, responsible=responsible
    )


def not_applicable(reason: str, subject: str = "whole") -> Outcome:
    """Report that a check does not apply, with the evidence as the reason."""
    return Outcome(status="NOT-APPLICABLE", subject=subject, reason=reason)


def skipped(
    reason: str, next_step: str | None = None, subject: str = "whole", *, responsible: Actor | None = None
) -> Outcome:
    """Return SKIP: nothing was measured, because it was not requested or its input was not provided."""
    return Outcome(
        status="SKIP", subject=subject, reason=reason, next_step=next_step, responsible=responsible
    )


def pass_or_fail(
    subject: str,
    is_good: bool,
    measured: str,
    *,
    expected: str,
    source: str,
    next_step: str | None,
    responsible: Actor | None = "administrator",
    warns: bool = False,
    **numbers: Any,
) -> Outcome:
    """Return PASS, or FAIL (WARN if it `warns`) with the next step; `numbers` are extra fields."""
    return Outcome(
        status="PASS" if is_good else "WARN" if warns else "FAIL",
        subject=subject,
        measured=measured,
        expected=expected,
        source=source,
        next_step=None if is_good else next_step,
        responsible=None if is_good else responsible,
        **numbers,
    )


@dataclass(frozen=True, slots=True)
class Expectation:
    """The expectation of a check, its source, and the next step if it is not met."""

    expected: str
    source: str
    next_step: str
    responsible: Actor = "user"
    otherwise: Literal["WARN", "FAIL"] = "FAIL"

    def judge(
        self,
        is_met: bool,
        measured: str,
        *,
        next_step: str | None = None,
        subject: str = "whole",
        **numbers: Any,
    ) -> Outcome:
        """Return PASS, or the actual status with its next step (the general one, or a specific one).

        `numbers` are further fields of the outcome.
        """
        return pass_or_fail(
            subject,
            is_met,
            measured,
            expected=self.expected,
            source=self.source,
            next_step=next_step or self.next_step,
            responsible=self.responsible,
            warns=self.otherwise == "WARN",
            **numbers,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Judged:
    """The outcome of a named check."""

    name: str
    outcome: Outcome
    is_required: bool = True
    """Whether READY requires this check; an advisory check is reported but does not affect the verdict."""
    basis: Basis = "none"
    """The basis of the expectation. Comparing peers alone cannot show that a whole fleet is slow."""
    measure: str | None = None
    """Name of the evaluated measure; None for a check, or for a rule with no measure to evaluate."""
    labels: Mapping[str, Any] = field(default_factory=dict)
    """Labels of that measure, including `case`; for a check, labels that describe its subject."""
    is_contract: bool = False
    """Whether the expectation was agreed by contract: it then means *at least X*, regardless of what a
    healthy machine can do."""

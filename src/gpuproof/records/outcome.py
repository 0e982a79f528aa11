"""How a check ended: what was measured of a subject, what was expected, and what to do next.

>>> Outcome(status="PASS", measured="980 samples/s", expected="900 or more", source="contract 7").status
'PASS'
>>> Outcome(status="PASS")
Traceback (most recent call last):
ValueError: PASS needs what was measured, what was expected, and from where
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
"""What was measured and held against an expectation. All other statuses have a reason instead."""
NEEDING_ACTION: tuple[Status, ...] = ("WARN", "FAIL", "ERROR")
Actor = Literal["user", "administrator", "vendor", "plug-in author"]
Basis = Literal["absolute", "baseline", "peers", "none"]
"""A stated or published figure, the fleet's own past, the other subjects of the same run; none: a check of
the environment, or nothing that was measured."""
SUBJECT = re.compile(r"whole|host/[^/]+(/gpu/.+)?|link/[^>]+>[^>]+")
"""`whole`, `host/NAME`, `host/NAME/gpu/UUID`, `link/FROM>TO`; older UUIDs of MIG have slashes themselves."""
SubjectKind = Literal["gpu", "host", "link", "whole"]


def kind_of(subject: str) -> SubjectKind:
    """Say of what kind a subject is.

    >>> kind_of("host/a/gpu/0"), kind_of("link/a>b"), kind_of("host/a"), kind_of("whole")
    ('gpu', 'link', 'host', 'whole')
    """
    if subject.startswith("link/"):
        return "link"
    if "/gpu/" in subject:
        return "gpu"
    return "host" if subject.startswith("host/") else "whole"


def parent_of(subject: str) -> str:
    """Return what a subject is a part of: a device of its host, a link of the host that both ends are on.

    >>> parent_of("host/a/gpu/1"), parent_of("link/host/a>host/a/gpu/2"), parent_of("link/a>b")
    ('host/a', 'host/a', 'whole')
    """
    ends = subject.removeprefix("link/").split(">") if subject.startswith("link/") else [subject]
    hosts = {end.partition("/gpu/")[0] for end in ends}
    is_within = len(hosts) == 1 and "/gpu/" in subject and subject.partition("host/")[1]
    return hosts.pop() if is_within else "whole"


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """How a check ended for one subject.

    ERROR: it should have been measured and could not be. SKIP: nobody asked for it, or what it needs was
    not given. NOT-APPLICABLE: there is evidence, given as the reason, that there is nothing to measure.
    """

    status: Status
    subject: str = "whole"
    measured: str | None = None
    expected: str | None = None
    source: str | None = None
    """Where the expectation comes from: a page, a contract, a key of the recipe."""
    reason: str | None = None
    next_step: str | None = None
    responsible: Actor | None = None
    """Who should take the next step."""
    measured_value: float | None = None
    measured_low: float | None = None
    """The lower end of the interval of `measured_value`."""
    measured_high: float | None = None
    expected_value: float | None = None
    tolerance: float | None = None
    """How far a value may be off `expected_value` without a finding, in `unit`."""
    minimum_detectable: float | None = None
    """The smallest share by which it could be worse and these data would have shown it; None is not known."""
    unit: str | None = None
    """Unit of all the numbers; "1" for a ratio."""
    records: tuple[str, ...] = ()
    """What it rests on: launches as CASE/REPLICATE, or files of the run directory."""

    def __post_init__(self) -> None:
        """Refuse an answer that leaves out what it stands on.

        Raises:
            ValueError: a status that there is not; a judgement without what was measured, expected and from
                where; any other status without its reason; a status that needs action without a next step; a
                subject of no known form; a number that is not finite, has no unit or lies outside its
                interval.
        """
        if self.status not in STATUSES:
            raise ValueError(f"{self.status!r} is no status: {', '.join(STATUSES)}")
        if self.status in JUDGED and None in (self.measured, self.expected, self.source):
            raise ValueError(f"{self.status} needs what was measured, what was expected, and from where")
        if self.status not in JUDGED and self.reason is None:
            raise ValueError(f"{self.status} needs a reason")
        if self.status in NEEDING_ACTION and self.next_step is None:
            raise ValueError(f"{self.status} needs a next step")
        if not SUBJECT.fullmatch(self.subject):
            raise ValueError(f"{self.subject!r} is no subject: whole, host/H, host/H/gpu/UUID or link/A>B")
        self._check_numbers()

    @property
    def summary(self) -> str:
        """The reason, or else what was measured and expected."""
        return self.reason or f"{self.measured}, expected {self.expected}"

    def _check_numbers(self) -> None:
        interval = (self.measured_low, self.measured_value, self.measured_high)
        numbers = [n for n in (*interval, self.expected_value, self.tolerance) if n is not None]
        if numbers and self.unit is None:
            raise ValueError("numbers need their unit")
        if not all(math.isfinite(number) for number in (*numbers, self.minimum_detectable or 0.0)):
            raise ValueError("a number that is not finite was not measured: leave it out, say why")
        ends = [number for number in interval if number is not None]
        if ends != sorted(ends) or (ends and self.measured_value is None):
            raise ValueError("an interval needs the measured value inside it")


def not_judged(subject: str, reason: str, next_step: str, responsible: Actor = "user") -> Outcome:
    """Return what could not be judged: an error, which passes nothing."""
    return Outcome(
        status="ERROR", subject=subject, reason=reason, next_step=next_step, responsible=responsible
    )


def not_applicable(reason: str, subject: str = "whole") -> Outcome:
    """Return that a check does not apply; the reason is its evidence."""
    return Outcome(status="NOT-APPLICABLE", subject=subject, reason=reason)


def skipped(
    reason: str, next_step: str | None = None, subject: str = "whole", *, responsible: Actor | None = None
) -> Outcome:
    """Return what was not measured, since nobody asked for it, or what it needs was not given."""
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
    """Return PASS, or FAIL (WARN where it `warns`) with who does what; `numbers` are further fields."""
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
    """What a check expects, where that comes from, and what to do where it is not met."""

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
        """Return PASS, or what it is otherwise with the next step (its own, or one for the occasion).

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
    """Whether nothing can be READY without it; an advisory one is told and decides nothing."""
    basis: Basis = "none"
    """What the expectation stands on. Peers alone cannot tell a fleet that is slow as a whole."""
    measure: str | None = None
    """The name of the measure that was judged; None of a check, and of a rule that had none to judge."""
    labels: Mapping[str, Any] = field(default_factory=dict)
    """Of that measure, `case` among them, or those that tell of what a check is."""
    is_contract: bool = False
    """Whether the expectation was agreed: it says *at least X*, whatever a healthy machine could do."""

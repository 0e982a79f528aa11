"""What a rule is.

A rule picks measures by name and labels, says of which subjects it wants one each, and what it expects. A
check asks a registered question about the environment. Both say whether READY needs them.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from gpuproof.records.outcome import Actor, Basis, Outcome, SubjectKind, kind_of
from gpuproof.records.result import Measure

MeasureOutcomes = Iterator[tuple[Measure, Outcome]]
Form = Literal["at_least", "at_most", "reference", "baseline", "peers", "equal"]
REQUIRED_ERROR_RATE = 0.005
"""Of healthy fleets in which a required rule accuses anybody: all of its subjects and tests share it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MeasureMatch:
    """Which measures a rule speaks of: those of this name with all of these labels; `case` is one of them."""

    name: str
    labels: Mapping[str, Any] = field(default_factory=dict)

    def __str__(self) -> str:
        """Write it as messages do."""
        labels = ", ".join(f"{name}={value}" for name, value in self.labels.items())
        return f"{self.name} ({labels})" if labels else self.name

    def picks(self, measure: Measure) -> bool:
        """Say whether a measure is one of them."""
        labels = {"case": measure.case, **measure.labels}
        return measure.name == self.name and all(
            name in labels and labels[name] == value for name, value in self.labels.items()
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Expected:
    """What is expected of each measure."""

    form: Form
    number: float | None = None
    """Of at_least and at_most, in `unit`; of baseline the share of its centre, None: what its spread says."""
    unit: str | None = None
    key: str | None = None
    """Of a published figure."""
    ignoring: tuple[str, ...] = ()
    """Conditions that the published figure is not held to."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Rule:
    """One expectation of measures."""

    name: str
    place: str
    """FILE:LINE."""
    is_required: bool
    each: SubjectKind | Literal["any"]
    """Of which subjects one measure each is wanted; any: of one, whichever it is."""
    measure: MeasureMatch
    expected: Expected
    tolerance: float | None
    """As a share of what is expected; None: from the spread that was measured."""
    next_step: str
    responsible: Actor
    is_contract: bool = False
    """Whether the number is a contract: it judges *at least X*, whatever a healthy machine could do."""
    basis: Basis | None = None
    """What it stands on where its form does not tell: that a pace is kept says nothing of speed."""

    def speaks_of(self, measure: Measure) -> bool:
        """Say whether a measure is one of those that it judges."""
        return self.each in ("any", kind_of(measure.subject)) and self.measure.picks(measure)


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckRule:
    """One registered question about the environment."""

    name: str
    place: str
    is_required: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Rules:
    """All rules of a file."""

    source: str
    rules: tuple[Rule | CheckRule, ...]

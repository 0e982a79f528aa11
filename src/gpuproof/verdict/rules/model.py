"""What a rule is, in a file and where it is judged.

A rule picks measures by name and labels, says of which subjects it wants one each, and what it expects. A
check asks a registered question about the environment. Both say whether READY needs them.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated, Literal

from pydantic import Field

from gpuproof.config.entries import StrictModel, Text
from gpuproof.records.outcome import Actor, Basis, Outcome, SubjectKind, kind_of
from gpuproof.records.result import Measure
from gpuproof.verdict.expectations import CONDITIONS, load_expectations

MeasureOutcomes = Iterator[tuple[Measure, Outcome]]
Form = Literal["at_least", "at_most", "reference", "baseline", "peers", "equal"]
FORMS: tuple[Form, ...] = ("at_least", "at_most", "reference", "baseline", "peers", "equal")
REQUIRED_ERROR_RATE = 0.005
"""Of healthy fleets in which a required rule accuses anybody: all of its subjects and tests share it."""
MOST_TOLERANCE = 0.5
"""A tolerance of more than half lets pass what is broken."""
NEXT_STEP = "Look at the subject's own measures: clocks, temperature, power, links; run it again by itself"


class MeasureMatch(StrictModel):
    """Which measures a rule speaks of: those of this name with all of these labels; `case` is one of them."""

    name: Text
    """The measure's name, such as throughput."""
    labels: dict[str, str | int | float | bool] = Field(default_factory=dict)
    """Labels that it must have, such as workload and dtype."""

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


class Expected(StrictModel):
    """What is expected: one of at_least, at_most, reference, baseline, peers, equal."""

    at_least: float | None = None
    """The least good value, in `unit`."""
    at_most: float | None = None
    """The greatest good value, in `unit`."""
    unit: Text | None = None
    """The unit of at_least or at_most, as measures have it: FLOP/s, B/s, s, 1."""
    reference: Text | None = None
    """The key of a published figure, or `published`: the lowest of those that are of what was measured."""
    ignoring: list[Literal["device", "fabric", "tool", "dtype", "shape", "operation", "num_hosts"]] = Field(
        default_factory=list
    )
    """Conditions of the published figure that are ignored."""
    baseline: Annotated[float, Field(gt=0, le=1)] | Literal["measured"] | None = None
    """The share of the fleet's baseline that is enough, or `measured`: what its own spread says."""
    peers: Literal[True] | None = None
    """No subject is an outlier among those of its type."""
    equal: Literal[True] | None = None
    """All subjects have the same value."""

    @property
    def forms(self) -> list[Form]:
        """What is expected; one, where a rule can judge."""
        return [form for form in FORMS if getattr(self, form) is not None]

    @property
    def form(self) -> Form:
        """What is expected."""
        return self.forms[0]

    @property
    def number(self) -> float | None:
        """Of at_least and at_most, in `unit`; of baseline its share, None: what its spread says."""
        share = None if self.baseline == "measured" else self.baseline
        return next((number for number in (self.at_least, self.at_most, share) if number is not None), None)

    @property
    def ignored(self) -> tuple[str, ...]:
        """Conditions that the published figure is not held to, in their order."""
        return tuple(name for name in CONDITIONS if name in self.ignoring)


class RuleEntry(StrictModel):
    """One rule of measures."""

    name: Text
    """What a report calls it."""
    required: bool = True
    """Whether READY needs it to pass."""
    each: SubjectKind | Literal["any"]
    """One measure for each of these subjects: gpu, host, link or whole (the run as a whole); any: for one."""
    measure: MeasureMatch
    """The measures that it judges."""
    expect: Expected
    """What is expected of each."""
    tolerance: Annotated[float, Field(ge=0, le=MOST_TOLERANCE)] | Literal["measured"] | None = None
    """Tolerated deviation, as a share; `measured` takes it from the spread that was measured."""
    contract: bool = False
    """Whether the number is a contract: it judges *at least X*, whatever a healthy machine could do."""
    next_step: Text = NEXT_STEP
    """What to do where it fails."""
    responsible: Actor = "administrator"
    """Who should do it."""


class Rule(RuleEntry):
    """A rule of measures that can judge."""

    place: str
    """FILE:LINE."""
    basis: Basis | None = None
    """What it stands on where its form does not tell: that a pace is kept says nothing of speed."""

    @property
    def tolerated(self) -> float | None:
        """As a share of what is expected; None: from the spread that was measured.

        A floor is its own; that of a published figure is in the table of figures.
        """
        if self.tolerance is not None:
            return None if self.tolerance == "measured" else self.tolerance
        if self.expect.reference is not None:
            return load_expectations().tolerance
        return None if self.expect.baseline is not None else 0.0

    def speaks_of(self, measure: Measure) -> bool:
        """Say whether a measure is one of those that it judges."""
        return self.each in ("any", kind_of(measure.subject)) and self.measure.picks(measure)


class CheckEntry(StrictModel):
    """One check of the environment."""

    check: Text
    """The name of a check."""
    required: bool = True
    """Whether READY needs it to pass."""


class CheckRule(CheckEntry):
    """A check that is asked."""

    place: str
    """FILE:LINE."""

    @property
    def name(self) -> str:
        """Its name, as of any rule."""
        return self.check


Rules = tuple[Rule | CheckRule, ...]
"""In the order of the report."""

"""What a rule is, in a file and where it is judged, and which quantities and units it may speak of.

A rule picks measures by name and labels, says of which subjects it wants one each, and what it expects. A
check asks a registered question about the environment. Both say whether READY needs them. Measures have
names: those of gpuproof are listed here with their units, a plug-in's are known when they are measured.
Published figures and thresholds of other tools have quantities, which their table lists.

>>> reason_no_limit("at_most", 1000.0, "step-time drift", "1")
'at most 1,000 says nothing: over 1 is what nothing that works comes to'
>>> reason_no_limit("at_most", 0.2, "step-time drift", "1")
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from functools import cache
from typing import Annotated, Literal, get_args

from pydantic import Field

from gpuproof.base.units import significant
from gpuproof.config.entries import StrictModel, Text
from gpuproof.records.outcome import Actor, Basis, Outcome, SubjectKind, kind_of
from gpuproof.records.result import Measure
from gpuproof.records.work.collective import Operation
from gpuproof.records.work.probe import CACHE_BANDWIDTH, HOST_BANDWIDTH, LAUNCH_LATENCY, RAS_FAULTS
from gpuproof.verdict.expectations import CONDITIONS, load_expectations

MeasureOutcomes = Iterator[tuple[Measure, Outcome]]
Form = Literal["at_least", "at_most", "reference", "baseline", "peers", "equal"]
FORMS: tuple[Form, ...] = ("at_least", "at_most", "reference", "baseline", "peers", "equal")
REQUIRED_ERROR_RATE = 0.005
"""Of healthy fleets in which a required rule accuses anybody: all of its subjects and tests share it."""
MOST_TOLERANCE = 0.5
"""A tolerance of more than half lets pass what is broken."""
NEXT_STEP = "Look at the subject's own measures: clocks, temperature, power, links; run it again by itself"
MORE_THAN_THERE_IS = 1.05
"""Efficiency over which it is no speed-up: the two sides did not do the same work in the same way."""
SPEED_SHARES = ("MFU", "memory bandwidth use")
"""Shares of what the board does by its data sheet: how fast it is, in other words."""
NOT_SPEED = ("exposed communication", "p99 lateness", "time")
"""In seconds, and not of how fast a device is."""
COUNTS_OF_WRONG = ("wrong values", "fingerprint")
RATIOS = ("step-time drift", "spread of launches")
"""Best at 0; at 1 a step takes twice as long, or one launch does nothing beside another."""
A_RATE = "…/s"
"""In place of a unit: any rate."""
UNITS: Mapping[str, tuple[str, ...]] = {
    **dict.fromkeys(("throughput", "per device", "median device", "all hosts"), (A_RATE,)),
    **dict.fromkeys(("model FLOP/s", "GEMM ceiling"), ("FLOP/s",)),
    **dict.fromkeys(("memory traffic", "memory ceiling"), ("bytes/s",)),
    **dict.fromkeys(
        ("bus bandwidth", "link bandwidth", CACHE_BANDWIDTH, HOST_BANDWIDTH, "storage read", "storage write"),
        ("B/s",),
    ),
    **dict.fromkeys((*SPEED_SHARES, "of GEMM ceiling", "of memory ceiling", "waited for data"), ("share",)),
    **dict.fromkeys(("device idle", "casts to fp8", "hidden communication", "sparsity"), ("share",)),
    **dict.fromkeys(("accuracy", "held-out accuracy"), ("share",)),
    **dict.fromkeys((*COUNTS_OF_WRONG, *RATIOS, "scaling efficiency", RAS_FAULTS), ("1",)),
    **dict.fromkeys(("mean step", LAUNCH_LATENCY, *NOT_SPEED), ("s",)),
    **dict.fromkeys(("peak memory", "memory", "key-value cache", "pruning memory"), ("bytes",)),
    **{"utilisation": ("%",), "temperature": ("°C",), "arithmetic intensity": ("FLOP/byte",)},
}
"""By the name of a measure."""
AT_A_SIZE = rf"({'|'.join(get_args(Operation))}) of [^,]+"
LATENCIES = (
    *("step", "latency", "time to first token", "time to first content token"),
    *("time per output token", "time per token", "inter-token latency"),
)
PATTERNS: Mapping[str, tuple[str, ...]] = {
    rf"{AT_A_SIZE}(, algorithm bandwidth)?": ("B/s",),
    rf"{AT_A_SIZE}, (mean|p[\d.]+|longest) latency": ("s",),
    rf"{AT_A_SIZE}, (rank spread|wrong values)": ("1",),
    rf"(p[\d.]+|mean|shortest|longest) ({'|'.join(LATENCIES)})": ("s",),
}
MOST: Mapping[str, float] = {"share": 1.0, "%": 100.0, "°C": 110.0}
"""By unit, what nothing is over: boards switch off below 110 °C."""
OWN_UNITS: Mapping[str, tuple[str, ...]] = {
    **{"network loopback": ("B/s",), "share of a baseline": ("1",), "value": ("1",)},
    **dict.fromkeys(("gather", "scatter", "all_to_all_v"), ("B/s",)),
}
"""Of quantities that thresholds of other tools have, and published figures have not."""
NUMBERS = ("at_least", "at_most")
"""Forms of a rule that state a number."""


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


def speaks_of_speed(measure: Measure) -> bool:
    """Say whether a measure tells how fast its subject is: a rate, or how long a step or a request takes.

    Utilisation, temperature, power, memory, counts of wrong values, and ratios of two figures of the same
    machine (drift, spread, scaling efficiency) do not: a slow one may have good ones.
    """
    if measure.name in SPEED_SHARES:
        return True
    if measure.unit == "s":
        return measure.better == "lower" and measure.name not in NOT_SPEED
    return measure.unit.endswith("/s") and measure.better != "lower"


def units_of_measure(name: str) -> tuple[str, ...] | None:
    """Return the units that a measure of gpuproof's may be in; None of a name that is not ours."""
    by_pattern = (units for pattern, units in PATTERNS.items() if re.fullmatch(pattern, name))
    return UNITS.get(name) or next(by_pattern, None)


def units_of_quantity(quantity: str) -> tuple[str, ...] | None:
    """Return the units that a quantity of published figures may be in; None of one that there is not."""
    return _published_units().get(quantity) or OWN_UNITS.get(quantity)


@cache
def _published_units() -> dict[str, tuple[str, ...]]:
    units: dict[str, set[str]] = {}
    for figure in load_expectations().figures.values():
        units.setdefault(figure.quantity, set()).add(figure.unit)
    return {quantity: tuple(sorted(names)) for quantity, names in units.items()} | {"training": (A_RATE,)}


def is_unit_of(unit: str, units: tuple[str, ...]) -> bool:
    """Say whether a unit is one of these.

    >>> is_unit_of("samples/s", ("…/s",)), is_unit_of("°C", ("…/s",))
    (True, False)
    """
    return unit in units or (A_RATE in units and unit.endswith("/s"))


def edge_of(form: Form, number: float, tolerance: float | None) -> float:
    """Return the last value that a stated number passes, with its tolerance.

    >>> edge_of("at_least", 100.0, 0.1), edge_of("at_most", 100.0, None)
    (90.0, 100.0)
    """
    return number + (1 if form == "at_most" else -1) * abs(number) * (tolerance or 0.0)


def reason_no_limit(form: Form, number: float, name: str, unit: str) -> str | None:
    """Say why a number is no limit whatever is measured; None where it may be one."""
    limit = f"{form.replace('_', ' ')} {significant(number)}"
    if name in COUNTS_OF_WRONG and unit == "1" and (form == "at_least" or number > 0):
        return f"{limit} says nothing of {name}: a healthy machine has none, and one is too many"
    if form == "at_most":
        most = 1.0 if name in RATIOS else MOST.get(unit)
        if most is not None and (number > most or (number == most and name not in RATIOS)):
            return f"{limit} says nothing: over {most:g} is what nothing that works comes to"
        return None
    most = MORE_THAN_THERE_IS if name == "scaling efficiency" else MOST.get(unit)
    if most is not None and number > most:
        return f"{limit} cannot be: nothing is over {most:g}"
    return None

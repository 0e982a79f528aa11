"""Rules as written in a file and as evaluated, and the quantities and units they may use.

A rule selects measures by name and labels, and states which subjects must each have one, and what is
expected. A check runs a registered query about the environment. Both say whether READY requires them.
gpuproof's measures are listed here with their units; a plug-in's measures become known when they are
measured. Published results, and thresholds from other tools, refer to quantities, which are listed in their
table.

>>> reason_no_limit("at_most", 1000.0, "step-time drift", "1")
'at most 1,000 is not a valid limit: nothing that works exceeds 1'
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
"""Maximum fraction of healthy fleets in which a required rule flags any subject, over all subjects and
tests."""
MOST_TOLERANCE = 0.5
"""Maximum tolerance: above 0.5, broken hardware would pass."""
NEXT_STEP = "Check the subject's own measures (clocks, temperature, power, links), and rerun it alone"
MORE_THAN_THERE_IS = 1.05
"""Maximum credible efficiency: above this, the two sides did not run the same workload in the same way."""
SPEED_SHARES = ("MFU", "memory bandwidth use")
"""Measures given as a fraction of the board's data-sheet rate, which are therefore measures of speed too."""
NOT_SPEED = ("exposed communication", "p99 lateness", "time")
"""Measures in seconds that say nothing about a device's speed."""
COUNTS_OF_WRONG = ("wrong values", "fingerprint")
RATIOS = ("step-time drift", "spread of launches")
"""Ratios for which 0 is best. At 1, a step takes twice as long, or one launch is infinitely slow relative to
another."""
A_RATE = "…/s"
"""Placeholder for the unit of any rate."""
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
"""Allowed units, keyed by measure name."""
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
"""Upper limit for each unit, which no valid value exceeds; boards shut down below 110 °C."""
OWN_UNITS: Mapping[str, tuple[str, ...]] = {
    **{"network loopback": ("B/s",), "share of a baseline": ("1",), "value": ("1",)},
    **dict.fromkeys(("gather", "scatter", "all_to_all_v"), ("B/s",)),
}
"""Quantities for which other tools have thresholds but there are no published results."""
NUMBERS = ("at_least", "at_most")
"""Rule forms that state a number as the limit."""


class MeasureMatch(StrictModel):
    """Selects the measures for a rule: by this name and all these labels; `case` is a label."""

    name: Text
    """The measure's name, such as throughput."""
    labels: dict[str, str | int | float | bool] = Field(default_factory=dict)
    """Labels that it must have, e.g. workload and dtype."""

    def __str__(self) -> str:
        """Format it for use in messages."""
        labels = ", ".join(f"{name}={value}" for name, value in self.labels.items())
        return f"{self.name} ({labels})" if labels else self.name

    def picks(self, measure: Measure) -> bool:
        """Report whether a measure matches."""
        labels = {"case": measure.case, **measure.labels}
        return measure.name == self.name and all(
            name in labels and labels[name] == value for name, value in self.labels.items()
        )


class Expected(StrictModel):
    """The expectation of a rule: exactly one of at_least, at_most, reference, baseline, peers, equal."""

    at_least: float | None = None
    """The lowest acceptable value, in `unit`."""
    at_most: float | None = None
    """The highest acceptable value, in `unit`."""
    unit: Text | None = None
    """The unit of at_least or at_most, which must match the measure's: FLOP/s, B/s, s, 1."""
    reference: Text | None = None
    """The key of a published result, or `published`: the lowest result that matches what was measured."""
    ignoring: list[Literal["device", "fabric", "tool", "dtype", "shape", "operation", "num_hosts"]] = Field(
        default_factory=list
    )
    """Conditions of the published result to ignore."""
    baseline: Annotated[float, Field(gt=0, le=1)] | Literal["measured"] | None = None
    """The fraction of the fleet's baseline that is enough, or `measured` to use the baseline's own spread."""
    peers: Literal[True] | None = None
    """Whether a subject fails if it is an outlier among subjects of its type."""
    equal: Literal[True] | None = None
    """Whether all subjects must have the same value."""

    @property
    def forms(self) -> list[Form]:
        """The single expectation of a rule, in the form used to evaluate it."""
        return [form for form in FORMS if getattr(self, form) is not None]

    @property
    def form(self) -> Form:
        """The form of the expectation."""
        return self.forms[0]

    @property
    def number(self) -> float | None:
        """The limit in `unit` for at_least and at_most; the fraction for baseline (None uses its spread)."""
        share = None if self.baseline == "measured" else self.baseline
        return next((number for number in (self.at_least, self.at_most, share) if number is not None), None)

    @property
    def ignored(self) -> tuple[str, ...]:
        """Conditions of the published result that are ignored, in order."""
        return tuple(name for name in CONDITIONS if name in self.ignoring)


class RuleEntry(StrictModel):
    """One rule about measures."""

    name: Text
    """Its name in reports."""
    required: bool = True
    """Whether READY requires it to pass."""
    each: SubjectKind | Literal["any"]
    """The subjects that each need a measure: gpu, host, link or whole (the entire run); any: one measure
    suffices."""
    measure: MeasureMatch
    """The measures that the rule applies to."""
    expect: Expected
    """The expectation for each measure."""
    tolerance: Annotated[float, Field(ge=0, le=MOST_TOLERANCE)] | Literal["measured"] | None = None
    """Tolerated deviation, as a fraction; `measured` uses the measured spread."""
    contract: bool = False
    """Whether the number is a contract, checked as *at least X* regardless of what a healthy machine could
    do."""
    next_step: Text = NEXT_STEP
    """What to do if it fails."""
    responsible: Actor = "administrator"
    """Who should do it."""


class Rule(RuleEntry):
    """A rule about measures, in the form used to evaluate it."""

    place: str
    """FILE:LINE."""
    basis: Basis | None = None
    """Basis of its outcome, if its form does not imply the right basis: a steady rate is not necessarily
    fast."""

    @property
    def tolerated(self) -> float | None:
        """Tolerated deviation as a fraction of the expected value; None uses the measured spread.

        A floor is its own reference; the reference of a published result is in the table of results.
        """
        if self.tolerance is not None:
            return None if self.tolerance == "measured" else self.tolerance
        if self.expect.reference is not None:
            return load_expectations().tolerance
        return None if self.expect.baseline is not None else 0.0

    def speaks_of(self, measure: Measure) -> bool:
        """Report whether the rule applies to this measure."""
        return self.each in ("any", kind_of(measure.subject)) and self.measure.picks(measure)


class CheckEntry(StrictModel):
    """One environment check."""

    check: Text
    """Name of a registered check."""
    required: bool = True
    """Whether READY requires it to pass."""


class CheckRule(CheckEntry):
    """A check to run."""

    place: str
    """FILE:LINE."""

    @property
    def name(self) -> str:
        """Its name in reports, as for any rule."""
        return self.check


Rules = tuple[Rule | CheckRule, ...]
"""All rules, in report order."""


def speaks_of_speed(measure: Measure) -> bool:
    """Report whether a measure describes speed: a rate, or the duration of a step or a request.

    Utilisation, temperature, power, memory, counts of wrong values, and ratios of two values from the same
    machine (drift, spread, scaling efficiency) are not about speed: a slow subject may score well on them.
    """
    if measure.name in SPEED_SHARES:
        return True
    if measure.unit == "s":
        return measure.better == "lower" and measure.name not in NOT_SPEED
    return measure.unit.endswith("/s") and measure.better != "lower"


def units_of_measure(name: str) -> tuple[str, ...] | None:
    """Return the units that a built-in measure may have; None if the name is not built in."""
    by_pattern = (units for pattern, units in PATTERNS.items() if re.fullmatch(pattern, name))
    return UNITS.get(name) or next(by_pattern, None)


def units_of_quantity(quantity: str) -> tuple[str, ...] | None:
    """Return the units that a published quantity may have; None if there is no such quantity."""
    return _published_units().get(quantity) or OWN_UNITS.get(quantity)


@cache
def _published_units() -> dict[str, tuple[str, ...]]:
    units: dict[str, set[str]] = {}
    for figure in load_expectations().figures.values():
        units.setdefault(figure.quantity, set()).add(figure.unit)
    return {quantity: tuple(sorted(names)) for quantity, names in units.items()} | {"training": (A_RATE,)}


def is_unit_of(unit: str, units: tuple[str, ...]) -> bool:
    """Report whether a unit is one of these.

    >>> is_unit_of("samples/s", ("…/s",)), is_unit_of("°C", ("…/s",))
    (True, False)
    """
    return unit in units or (A_RATE in units and unit.endswith("/s"))


def edge_of(form: Form, number: float, tolerance: float | None) -> float:
    """Return the worst value that still meets a stated number, including its tolerance.

    >>> edge_of("at_least", 100.0, 0.1), edge_of("at_most", 100.0, None)
    (90.0, 100.0)
    """
    return number + (1 if form == "at_most" else -1) * abs(number) * (tolerance or 0.0)


def reason_no_limit(form: Form, number: float, name: str, unit: str) -> str | None:
    """Return why a number can never be a limit for any measurement; None if it may be one."""
    limit = f"{form.replace('_', ' ')} {significant(number)}"
    if name in COUNTS_OF_WRONG and unit == "1" and (form == "at_least" or number > 0):
        return f"{limit} is not a valid limit for {name}: a healthy machine has none, and one is too many"
    if form == "at_most":
        most = 1.0 if name in RATIOS else MOST.get(unit)
        if most is not None and (number > most or (number == most and name not in RATIOS)):
            return f"{limit} is not a valid limit: nothing that works exceeds {most:g}"
        return None
    most = MORE_THAN_THERE_IS if name == "scaling efficiency" else MOST.get(unit)
    if most is not None and number > most:
        return f"{limit} is impossible: nothing exceeds {most:g}"
    return None

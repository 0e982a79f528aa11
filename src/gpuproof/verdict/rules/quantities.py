"""Which quantities there are, in which unit each is, what can be its limit, and which tell of speed.

Measures have names: those of gpuproof are listed here with their units, a plug-in's are known when they are
measured. Published figures and thresholds of other tools have quantities, which their table lists.

>>> reason_no_limit("at_most", 1000.0, "step-time drift", "1")
'at most 1,000 says nothing: over 1 is what nothing that works comes to'
>>> reason_no_limit("at_most", 0.2, "step-time drift", "1")
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import cache
from typing import get_args

from gpuproof.base.units import significant
from gpuproof.records.result import Measure
from gpuproof.records.work.collective import Operation
from gpuproof.records.work.probe import CACHE_BANDWIDTH, LAUNCH_LATENCY
from gpuproof.verdict.expectations import load_expectations
from gpuproof.verdict.rules.model import Form

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
        ("bus bandwidth", "link bandwidth", CACHE_BANDWIDTH, "storage read", "storage write"), ("B/s",)
    ),
    **dict.fromkeys((*SPEED_SHARES, "of GEMM ceiling", "of memory ceiling", "waited for data"), ("share",)),
    **dict.fromkeys(("device idle", "casts to fp8", "hidden communication", "sparsity"), ("share",)),
    **dict.fromkeys(("accuracy", "held-out accuracy"), ("share",)),
    **dict.fromkeys((*COUNTS_OF_WRONG, *RATIOS, "scaling efficiency"), ("1",)),
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

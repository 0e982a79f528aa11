"""What does a healthy machine do at a measure? Its own past, else what was published, else its data sheet.

In: a measure and all that is known of the fleet. Out: a figure in its unit with the source, or None. Counted
from it is how small a loss a stated floor would show; never from what was measured at hand.
"""

from __future__ import annotations

from typing import Any

from gpuproof.records.outcome import kind_of
from gpuproof.records.result import Measure
from gpuproof.verdict.baseline import key_of
from gpuproof.verdict.expectations import PublishedFigure, figures_of
from gpuproof.verdict.facts import FleetFacts
from gpuproof.verdict.rules.bounds import dense_rate, device_of

EDGES = ("m", "n", "k")
"""Labels of a matrix product, in the order of a published shape."""


def healthy_reference(measure: Measure, facts: FleetFacts) -> tuple[float, str] | None:
    """Return what a healthy subject does at this measure, in its unit, and the source; None: not known.

    The centre of its own baseline, else the lowest figure that was measured and published of its board with
    any tool, else the board's dense rate by its data sheet, or by the declaration of a simulated device.
    """
    return past_centre(measure, facts) or published_rate(measure, facts) or dense_rate(measure, facts)


def published_rate(measure: Measure, facts: FleetFacts) -> tuple[float, str] | None:
    """Return the lowest figure that was measured and published of a board, with any tool, and its source."""
    figures = published_figures(measure, facts)
    return (figures[0].value, figures[0].provenance) if figures else None


def published_figures(measure: Measure, facts: FleetFacts) -> tuple[PublishedFigure, ...]:
    """Return what was measured and published of a board, with any tool, the lowest first."""
    return figures_of(
        measured_conditions(measure, facts),
        (figure for figure in facts.expectations.figures.values() if figure.kind == "measured"),
        unit=measure.unit,
        ignoring=("tool",),
    )


def past_centre(measure: Measure, facts: FleetFacts) -> tuple[float, str] | None:
    """Return the centre of the baseline's figures of a measure, and the baseline's name; None without one."""
    if facts.baseline is None:
        return None
    entry = facts.baseline.by_key().get(key_of(measure))
    if entry is None or entry.unit != measure.unit:
        return None
    return entry.centre, f"baseline {facts.baseline.name}"


def measured_conditions(measure: Measure, facts: FleetFacts) -> dict[str, Any]:
    """Return under what a measure was taken, in the words of published figures; what is not known is absent.

    What gpuproof measures itself is of the tool `gpuproof`: no other tool's figure is quite its own.
    """
    labels = dict(measure.labels)
    conditions: dict[str, Any] = {"tool": "gpuproof", **labels, "device": device_of(measure, facts)}
    if "num_ranks" in labels:
        num_hosts = len(facts.hosts) if kind_of(measure.subject) == "whole" else 1
        conditions |= {"num_devices": labels["num_ranks"], "quantity": labels.get("operation")}
        conditions.setdefault("num_hosts", num_hosts)
    elif labels.get("workload") == "gemm":
        conditions["quantity"] = "matrix multiply"
        if labels.keys() >= set(EDGES):
            conditions["shape"] = tuple(labels[edge] for edge in EDGES)
    elif labels.get("workload") == "memory":
        conditions["quantity"] = "device memory"
        conditions.setdefault("operation", labels.get("pattern"))
    elif measure.name == "link bandwidth":
        conditions |= {"quantity": "device link" if labels.get("kind") == "d2d" else "host link"}
        conditions["direction"] = labels.get("kind")
    elif measure.unit == "samples/s":
        conditions |= {"quantity": "training", "operation": labels.get("workload")}
    return conditions

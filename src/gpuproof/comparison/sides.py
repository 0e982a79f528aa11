"""Figures of A and B side by side: the measures that a table of a comparison stands on.

A figure of one side, or of both together (B over A, B minus A), says in `labels.compared` of which.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from gpuproof.records.result import WHOLE, Measure

COMPARED: Final = "compared"
"""The label that says of which side a figure is."""


def side_measure(*, name: str, side: str, labels: Mapping[str, Any], **fields: Any) -> Measure:
    """Return the figure of a side, or of both together."""
    return Measure(name=f"{name}, {side}", labels={**labels, COMPARED: side}, **fields)


def side_of(measure: Measure) -> str:
    """Return of which side a figure is."""
    return str(measure.labels[COMPARED])


def title_of(measure: Measure) -> str:
    """Return what is compared, with case and subject where they say more."""
    more = [measure.case] if measure.case != "main" else []
    more += [measure.subject] if measure.subject != WHOLE else []
    return ", ".join([measure.name.removesuffix(f", {side_of(measure)}"), *more])

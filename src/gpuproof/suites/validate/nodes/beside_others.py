"""Figures that others shared: while somebody else uses a GPU, how slow it is says nothing of the GPU.

A figure that failed while other processes used the device becomes an ERROR: it could not be judged. A node
must not be drained for the work of its users.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

from gpuproof.records.outcome import Judged, not_judged
from gpuproof.suites.validate.measured import StageResult, measures_of

NEIGHBOURS = "gpu-neighbours"
"""The code of the doubt."""


def without_shared(judged: Sequence[Judged], results: Sequence[StageResult]) -> list[Judged]:
    """Turn failures of figures that others shared into errors."""
    shared = dict(_shared_figures(results))
    return [_as_error(item, why) if (why := shared.get(_figure(item))) else item for item in judged]


def _figure(item: Judged) -> tuple[str, float | None]:
    is_figure = item.outcome.status == "FAIL" and item.basis != "none"
    return item.outcome.subject, item.outcome.measured_value if is_figure else None


def _shared_figures(results: Sequence[StageResult]) -> Iterator[tuple[tuple[str, float | None], str]]:
    """Yield the figures of launches beside which others used a device, each with who did."""
    for one in results:
        doubts = () if one.result is None else one.result.doubts
        why = next((doubt.reason for doubt in doubts if doubt.code == NEIGHBOURS), None)
        for measure in measures_of(one) if why is not None else ():
            if measure.value is not None and why is not None:
                yield (measure.subject, measure.value), why


def _as_error(item: Judged, why: str) -> Judged:
    reason = f"{item.outcome.summary}, while {why}: whose fault it is cannot be told"
    outcome = not_judged(item.outcome.subject, reason, "Measure again once they have ended")
    return replace(item, outcome=replace(outcome, records=item.outcome.records))

"""What to use, from what was measured: goes before any rule of thumb, and brings its evidence."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from gpuproof.suites.scale.speed_up import BENEFICIAL, SpeedUp, conclusion_in_words

MeasuredAnswer = Literal["yes", "no", "not decided"]


@dataclass(frozen=True, slots=True, kw_only=True)
class MeasuredAdvice:
    """Whether several devices are worth it, by the average speed-ups of a study."""

    answer: MeasuredAnswer
    num_devices: int
    """Of the average that it rests on."""
    law: str
    ratio: float | None
    low: float | None
    high: float | None
    num_launches: int
    """Of several devices; of one there are as many."""
    reason: str


def measured_advice(averages: Sequence[tuple[str, SpeedUp]]) -> MeasuredAdvice | None:
    """Return the answer of the average that speaks most for several devices, each named by its law.

    *yes* where one is told that is beneficial; *no* where every one is told and none is; else not decided: an
    interval that holds 1 is no answer. None where nothing was compared. Picking the best of several is
    covered where their intervals hold together.
    """
    if not averages:
        return None
    decided = [average for average in averages if average[1].is_decided]
    best = max(decided or averages, key=lambda average: average[1].ratio or 0.0)
    law, speed_up = best
    answer: MeasuredAnswer = "not decided"
    if speed_up.is_decided and speed_up.ratio is not None and speed_up.ratio >= BENEFICIAL:
        answer = "yes"
    elif len(decided) == len(averages):
        answer = "no"
    interval = speed_up.comparison.ratio
    return MeasuredAdvice(
        answer=answer,
        num_devices=speed_up.num_devices,
        law=law,
        ratio=speed_up.ratio,
        low=None if interval is None else interval.low,
        high=None if interval is None else interval.high,
        num_launches=speed_up.comparison.num_launches_b,
        reason=conclusion_in_words(speed_up),
    )

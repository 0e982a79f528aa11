"""Tokens/s over the time per token of a sweep of batch sizes, and the knee where one is shown."""

from __future__ import annotations

from gpuproof.launches.point_measures import THROUGHPUT, TIME_PER_OUTPUT, PointMeasures
from gpuproof.records.page import Chart
from gpuproof.records.result import LaunchValue, Measure
from gpuproof.suites.points.page import trade_off
from gpuproof.suites.points.ranking import rank

LAUNCHES = (0.99, 1.0, 1.01, 1.0)
"""Rates of four launches, over the mean."""


def decoded(batch: int, *, tokens_per_s: float, time_s: float | None) -> PointMeasures:
    rates = tuple(
        LaunchValue(replicate=n, order=n, value=tokens_per_s * share, start="exec")
        for n, share in enumerate(LAUNCHES)
    )
    throughput = Measure(
        name=THROUGHPUT, value=tokens_per_s, unit="tokens/s", text="", better="higher", launches=rates
    )
    time = [] if time_s is None else [Measure(name=TIME_PER_OUTPUT, value=time_s, unit="s", text="")]
    return PointMeasures(
        case_id=f"batch_size={batch}",
        assignment={"data.batch_size": batch},
        kind="inference",
        model="decoder",
        batch_size=batch,
        item="tokens",
        items_per_sample=1,
        device="GPU",
        num_devices=1,
        num_launches=4,
        num_planned=4,
        validity="VALID",
        failures=(),
        measures=(throughput, *time),
    )


def drawn(*points: PointMeasures) -> Chart | None:
    return trade_off(points, rank(points))


SLOW, GOOD, LATE = (
    decoded(8, tokens_per_s=4000.0, time_s=0.002),
    decoded(32, tokens_per_s=8000.0, time_s=0.004),
    decoded(64, tokens_per_s=8010.0, time_s=0.008),
)


def test_the_knee_is_the_fastest_answer_at_a_rate_that_is_not_shown_to_be_under_the_best() -> None:
    chart = drawn(SLOW, GOOD, LATE)
    assert chart is not None
    assert chart.series[0].points == ((0.002, 4000.0), (0.004, 8000.0), (0.008, 8010.0))
    (knee,) = chart.references
    assert (knee.label, knee.x) == ("knee: batch_size=32", 0.004)


def test_where_the_rate_still_rises_there_is_no_knee() -> None:
    chart = drawn(SLOW, GOOD)
    assert chart is not None
    assert chart.references == ()


def test_points_that_decode_no_text_have_no_such_picture() -> None:
    others = [decoded(batch, tokens_per_s=100.0 * batch, time_s=None) for batch in (8, 16)]
    assert drawn(*others) is None
    assert drawn(SLOW) is None

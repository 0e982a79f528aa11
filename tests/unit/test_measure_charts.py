"""Charts of measures: marks are values, ranges are intervals, and what has no value has no mark."""

from __future__ import annotations

from dataclasses import replace

from gpuproof.records.outcome import Judged, Outcome, not_judged, pass_or_fail
from gpuproof.records.result import LaunchValue, Measure, MeasureInterval
from gpuproof.suites.validate.rates import heat_map, peer_charts
from gpuproof.verdict.page import MOST_ROWS, bars, chart_of_launches, curve

RATE = Measure(
    name="throughput",
    value=10.0,
    unit="samples/s",
    text="10 samples/s",
    launches=tuple(LaunchValue(replicate=n, order=n, value=9.0 + n) for n in range(3)),
    interval=MeasureInterval(low=8.0, high=12.0, level=0.95, kind="between_launches", method="t"),
)
NONE = replace(RATE, value=None, interval=None, launches=(), missing="it failed")


def test_launches_lie_over_the_interval_of_all() -> None:
    chart = chart_of_launches("t", {"": RATE})
    assert chart is not None
    band, points = chart.series
    assert (band.form, band.ranges[0]) == ("band", (8.0, 12.0))
    assert points.points == ((0.0, 9.0), (1.0, 10.0), (2.0, 11.0))
    assert chart_of_launches("t", {"": replace(RATE, launches=RATE.launches[:1])}) is None


def test_what_was_not_measured_has_a_row_and_no_bar() -> None:
    chart = bars("t", [("a", RATE), ("b", NONE), ("c", replace(RATE, value=11.0))])
    assert chart is not None
    assert chart.y.names == ("a", "b: not measured", "c")
    assert chart.series[0].points == ((10.0, 0.0), (11.0, 2.0))
    assert bars("t", [("a", RATE), ("b", NONE)]) is None


def test_bars_of_unlike_lengths_and_of_very_many_rows_are_marks() -> None:
    far = bars("t", [("a", RATE), ("b", replace(RATE, value=5000.0))])
    assert far is not None
    assert (far.kind, far.x.is_logarithmic) == ("scatter", True)
    many = bars("t", [(str(n), RATE) for n in range(MOST_ROWS + 1)])
    assert many is not None
    assert many.y.names == ()
    assert len(many.series[0].points) == MOST_ROWS + 1


def test_a_curve_is_in_order_and_leaves_out_what_is_missing() -> None:
    series = curve("c", [(4.0, RATE), (1.0, RATE), (2.0, NONE)])
    assert [x for x, _ in series.points] == [1.0, 4.0]
    assert series.ranges == ((8.0, 12.0), (8.0, 12.0))


def judged(name: str, host: str, *, is_good: bool) -> Judged:
    outcome = pass_or_fail(
        f"host/{host}/gpu/0",
        is_good,
        "m",
        expected="e",
        source="s",
        next_step="look",
        measured_value=1.0,
        expected_value=1.0,
        unit="s",
    )
    return Judged(name=name, outcome=outcome, basis="peers")


def test_alike_hosts_share_a_column_and_the_gravest_is_first() -> None:
    outcomes = [judged("pace", f"n{n}", is_good=n != 3) for n in range(512)]
    outcomes += [judged("xid", f"n{n}", is_good=True) for n in range(512)]
    outcomes.append(
        Judged(name="later", outcome=not_judged("whole", "resident memory was not read", "read it"))
    )
    skipped = Judged(name="no", outcome=Outcome(status="SKIP", reason="nobody asked"))
    (chart,) = heat_map([*outcomes, skipped])
    assert chart.columns[0] == "n3"
    assert any(column.endswith("more") for column in chart.columns)
    assert len(chart.columns) == 3  # n3, all others, and what is of all together
    assert [name for name, _ in chart.rows] == ["pace", "later", "xid"]
    (_, cells) = chart.rows[0]
    assert cells[0] is not None
    assert (cells[0].word, cells[0].tone) == ("FAIL", "bad")
    assert "host/n3/gpu/0: m, expected e → look" in cells[0].lines[0]


def test_a_single_host_has_no_heat_map() -> None:
    alone = [judged("pace", "n1", is_good=False), judged("xid", "n1", is_good=True)]
    assert list(heat_map(alone)) == []


def test_the_slow_are_first_among_their_peers() -> None:
    (chart,) = peer_charts([judged("pace", f"n{n}", is_good=n != 1) for n in range(3)])
    assert chart.y.names[0] == "host/n1/gpu/0 FAIL"
    assert chart.references[0].x == 1.0

"""Many launches as one run: total over total, intervals over launches, doubts said once and counted."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from gpuproof.hardware.boards import Peak, find_peak
from gpuproof.records.collected import CaseRecords
from gpuproof.statistics.estimate import Interval, Unavailable
from gpuproof.verdict.summary import RunSummary, summarize
from records_by_hand import H200, QUIET, Story, case, failure, one_rank, setup, start, steady_times, window


def summary_of(*launches: CaseRecords, planned: int | None = None) -> RunSummary:
    return summarize(launches, num_planned=planned or len(launches), find_peak=find_peak)


def three_launches(*walls_s: float) -> list[CaseRecords]:
    return [
        one_rank(times_s=steady_times(100, wall_s / 100), replicate=i).records()
        for i, wall_s in enumerate(walls_s)
    ]


def test_throughput_is_total_over_total_and_its_interval_is_over_launches() -> None:
    summary = summary_of(*three_launches(1.0, 1.25, 0.8))
    assert summary.items_total == 3000
    assert summary.window_s == pytest.approx(3.05)
    assert summary.rate == pytest.approx(3000 / 3.05)
    assert summary.mean_step_s == pytest.approx(3.05 / 300)
    interval = summary.throughput_interval
    assert isinstance(interval, Interval)
    # Rates 1,000, 800 and 1,250: mean 1,016.67, s = 225.46, t(2) = 4.3027: ± 560.1.
    assert interval.num_launches == 3
    assert interval.centre == pytest.approx(1016.67, abs=0.01)
    assert interval.low == pytest.approx(456.6, abs=0.1)
    assert interval.high == pytest.approx(1576.7, abs=0.1)
    assert [found.code for found in summary.doubts] == ["launches-differ"]
    assert summary.doubts[0].reason.endswith("the throughput of 3 launches is not measured well enough")


@pytest.mark.parametrize(("second_s", "expected"), [(1.005, []), (1.01, ["launches-differ"])])
def test_launches_may_differ_as_far_as_their_interval_stays_narrow(
    second_s: float, expected: list[str]
) -> None:
    # Half the interval of two is 6.353 times their distance: 5 samples/s make ±3.2 %, 10 make ±6.3 %.
    summary = summary_of(*three_launches(1.0, second_s))
    assert [found.code for found in summary.doubts] == expected


def test_launches_that_differ_little_are_called_too_few() -> None:
    (doubt,) = summary_of(*three_launches(1.0, 1.01)).doubts
    # Half of a distance of 1 % is 0.7 % of spread: of three, ±4.3·0.7 %/√3 = 1.7 %.
    assert "2 launches are too few: the interval of the throughput is ±6.3 % wide; 3 that" in doubt.reason
    assert doubt.remedy == "Raise run.repeats to 3 or more, or set run.target_precision with 5 or more"


def test_a_width_that_rounds_to_the_one_that_is_wanted_is_just_over_it() -> None:
    (doubt,) = summary_of(*three_launches(1.0, 1.00795)).doubts
    # Half the interval is 6.353 times 0.79 %: 5.02 %, which is printed as 5.0 %.
    assert "is just over ±5.0 % wide; 3 that differ as much would reach ±5.0 %" in doubt.reason


def test_an_interval_of_rates_or_times_ends_at_zero() -> None:
    summary = summary_of(*three_launches(1.0, 4.0))
    for interval in (summary.throughput_interval, summary.step_s_interval):
        assert isinstance(interval, Interval)
        assert interval.low == 0.0
        assert interval.relative_reach is not None
        assert interval.relative_reach > 1


def test_one_launch_has_an_interval_within_itself_only() -> None:
    summary = summary_of(one_rank().records())
    interval = summary.throughput_interval
    assert isinstance(interval, Interval)
    assert not interval.between_launches
    assert interval.centre == 1000
    assert interval.low <= 1000 <= interval.high
    assert "within one launch" in interval.method
    assert summary.validity == "VALID"


def test_without_step_times_one_launch_has_no_interval() -> None:
    summary = summary_of(Story(times_s=()).records())
    assert isinstance(summary.throughput_interval, Unavailable)
    assert isinstance(summary.step_s_interval, Unavailable)
    assert summary.rate == 1000


def test_nothing_measured_is_no_figure_and_no_validity() -> None:
    records = CaseRecords(case=case(), records=(start(), failure("exception")))
    summary = summary_of(records, planned=3)
    assert summary.validity is None
    assert summary.rate is None
    assert summary.mean_step_s is None
    assert summary.flops_per_s_per_device is None
    assert summary.peak is None
    assert [found.cause for found in summary.failures] == ["exception"]
    assert isinstance(summary.throughput_interval, Unavailable)
    assert (summary.num_planned, len(summary.launches)) == (3, 0)


def test_a_failed_launch_leaves_the_others_their_figures() -> None:
    lost = CaseRecords(case=case(replicate=2), records=(start(), failure("lost_rank", rank=None)))
    silent = CaseRecords(case=case(replicate=3), records=())
    summary = summary_of(*three_launches(1.0, 1.0), lost, silent)
    assert (len(summary.launches), [found.cause for found in summary.failures]) == (2, ["lost_rank"])
    assert summary.rate == pytest.approx(1000)


def test_the_same_doubt_of_several_launches_is_said_once_with_their_number() -> None:
    noisy = [0.01 * (1 + 0.2 * (-1) ** i) for i in range(100)]
    launches = [one_rank(times_s=noisy, replicate=i).records() for i in range(2)]
    quiet = one_rank(times_s=[0.01] * 100, replicate=2).records()
    summary = summary_of(*launches, quiet)
    assert [found.code for found in summary.doubts] == ["noisy"]
    assert summary.doubts[0].reason.endswith("(in 2 of 3 launches)")
    assert summary.validity == "SUSPECT"


def test_the_same_doubt_of_several_ranks_is_not_counted_as_launches() -> None:
    shared = replace(window().neighbours, other_processes=1)
    ranks = [window(rank, neighbours=shared, clock="device_event") for rank in range(4)]
    story = Story(windows=ranks, setups=[setup(rank, device=H200) for rank in range(4)])
    (found,) = summary_of(story.records()).doubts
    assert found.reason.endswith("GPU-0a (and 3 more like it)")
    (found,) = summary_of(story.records(), replace(story, replicate=1).records()).doubts
    assert found.reason.endswith("GPU-0a (and 3 more like it, in 2 of 2 launches)")


def test_what_makes_figures_invalid_comes_first() -> None:
    stolen = replace(QUIET, steal_cpu_s=4.0)
    times = [0.01 * (1 + 0.2 * (-1) ** i) for i in range(100)]
    summary = summary_of(one_rank(times_s=times, load=stolen, requested_s=9.0).records())
    assert [found.code for found in summary.doubts] == ["too-short", "noisy", "cpu-steal"]
    assert summary.validity == "INVALID"


def test_the_ceiling_is_that_of_the_first_launch_s_device_and_precision() -> None:
    asked: list[tuple[str, str]] = []

    def peak(device: str, precision: str) -> Peak:
        asked.append((device, precision))
        return Peak(flops_per_s=2e12, dtype="bf16", source="by hand", date="2026-11-20")

    built = setup(device=H200, flops_per_step=1e10)
    stories = [
        Story(
            windows=[window(wall_s=wall_s, steps_s=wall_s)],
            setups=[built],
            times_s=(),
            case=case(precision="bf16"),
        )
        for wall_s in (1.0, 2.0)
    ]
    summary = summarize([story.records() for story in stories], num_planned=2, find_peak=peak)
    assert asked == [("NVIDIA H200", "bf16")]
    assert summary.flops_per_s_per_device == pytest.approx((1e12 + 0.5e12) / 2)


def test_percentiles_are_given_only_where_the_steps_are_enough() -> None:
    found: dict[float, Any] = {p.q: p for p in summary_of(one_rank().records()).step_percentiles}
    assert found[50.0].value == pytest.approx(0.010)
    assert found[95.0].value == pytest.approx(0.0101)
    assert found[99.0].value is None  # needs 299


def test_forked_launches_are_no_replicates() -> None:
    fresh = three_launches(1.0, 1.001, 1.002)
    told = one_rank(replicate=3).records()
    forked = replace(told, records=(replace(start(), start="fork"), *told.records[1:]))
    summary = summary_of(*fresh, forked)
    for interval in (summary.throughput_interval, summary.step_s_interval):
        assert isinstance(interval, Unavailable)
        assert "forked from one process" in interval.reason
    assert summary.rate == pytest.approx(4000 / 4.003)
    alone = summary_of(forked)
    assert isinstance(alone.throughput_interval, Interval)
    assert not alone.throughput_interval.between_launches

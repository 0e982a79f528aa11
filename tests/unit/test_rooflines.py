"""Ceilings and doubts about work, against numbers worked out by hand."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from gpuproof.hardware.boards import BandwidthPeak
from gpuproof.launches.launch import best_ceiling, build_roofline
from gpuproof.records.run import Ceilings, CeilingTrial
from gpuproof.verdict.doubts.base import Measured
from gpuproof.verdict.doubts.plausibility import work_disagrees
from records_by_hand import H200, Story, setup, window

PEAK = BandwidthPeak(bytes_per_s=4.8e12, source="a data sheet", date="2026-11-20")


def trial(what: Any, work: float, *durations_s: float, edge: int = 100) -> CeilingTrial:
    size = (edge, edge, edge) if what == "gemm" else (edge,)
    return CeilingTrial(what=what, size=size, dtype="float32", work=work, durations_s=durations_s)


def measured(rank: int, *trials: CeilingTrial) -> Ceilings:
    return Ceilings(rank=rank, clock="host", trials=trials, missing=None)


def test_the_ceiling_is_the_fastest_repeat_of_the_fastest_size() -> None:
    # 2e6 operations in 10 ms are 200 MFLOP/s; 16e6 in 40 ms are 400 MFLOP/s, its median 50 ms a fifth below.
    found = best_ceiling(
        [
            trial("gemm", 2e6, 0.010, 0.012, 0.011),
            trial("gemm", 16e6, 0.050, 0.040, 0.055, edge=200),
            trial("gemm", 128e6, 0.400, 0.500, edge=400),
        ]
    )
    assert found is not None
    assert (found.value_per_s, found.size, found.num_repeats) == (400e6, (200, 200, 200), 3)
    assert found.relative_spread == pytest.approx(0.2)
    assert found.highest_per_s == pytest.approx(480e6)
    assert best_ceiling([]) is None
    assert best_ceiling([trial("gemm", 1.0)]) is None


def test_repeats_that_agree_too_well_still_leave_two_percent() -> None:
    found = best_ceiling([trial("gemm", 100.0, 1.0, 1.0, 1.0)])
    assert found is not None
    assert (found.relative_spread, found.highest_per_s) == (0.0, 102.0)


def test_of_several_devices_the_slowest_sets_the_roof() -> None:
    fast = measured(0, trial("gemm", 10e9, 1.0), trial("copy", 2e9, 1.0), trial("triad", 3e9, 0.5))
    slow = measured(1, trial("gemm", 8e9, 1.0), trial("copy", 2e9, 1.0), trial("triad", 3e9, 0.75))
    roofline = build_roofline([fast, slow])
    assert roofline is not None
    assert roofline.compute is not None
    assert roofline.memory is not None
    assert (roofline.compute.value_per_s, roofline.memory.value_per_s) == (8e9, 4e9)
    assert (roofline.memory.what, roofline.ridge_flops_per_byte) == ("triad", 2.0)
    assert build_roofline([]) is None
    without = build_roofline([measured(0, trial("copy", 2e9, 1.0))])
    assert without is not None
    assert without.ridge_flops_per_byte is None


def codes(peak: BandwidthPeak | None = PEAK, *ceilings: Ceilings, **built: Any) -> list[str]:
    """Doubts about 100 steps in 1 s on an H200."""
    launch = Story(windows=[window()], setups=[setup(device=H200, **built)]).launch()
    measured = Measured(launch=replace(launch, ceilings=ceilings), memory_peak=peak)
    return [found.code for found in work_disagrees(measured)]


@pytest.mark.parametrize(
    ("closed", "counted", "expected"),
    [
        (1e9, 1e9, []),
        (1e9, 1.01e9, []),
        (1e9, 1.011e9, ["flops-disagree"]),
        (1e9, 0.989e9, ["flops-disagree"]),
        (0.0, 5.0, ["flops-disagree"]),
        (0.0, 0.0, []),
        (None, 1e9, []),
        (1e9, None, []),
    ],
)
def test_two_counts_of_one_step_must_agree_to_a_percent(
    closed: float | None, counted: float | None, expected: list[str]
) -> None:
    assert codes(flops_per_step=closed, flops_per_step_counted=counted) == expected


def test_traffic_over_the_memory_of_the_data_sheet_comes_from_a_cache() -> None:
    # 100 steps a second: 48e9 bytes each are just the peak.
    assert codes(bytes_per_step=48e9) == []
    assert codes(bytes_per_step=48.1e9) == ["over-memory-peak"]
    assert codes(None, bytes_per_step=48.1e9) == []


def test_more_than_plain_work_reached_on_the_spot_wants_an_explanation() -> None:
    # 100 steps a second of 5e12 FLOPs are 500 TFLOP/s; the product's best is 500, its median 10 % below.
    ceilings = measured(0, trial("gemm", 5e12, 0.010, 0.0111, 0.0112), trial("triad", 4e12, 1.0, 1.0, 1.0))
    assert codes(PEAK, ceilings, flops_per_step=5.4e12, bytes_per_step=40e9) == []
    assert codes(PEAK, ceilings, flops_per_step=5.6e12) == ["over-measured-compute"]
    assert codes(PEAK, ceilings, bytes_per_step=41e9) == ["over-measured-memory"]
    assert codes(PEAK, flops_per_step=5.6e12, bytes_per_step=41e9) == []

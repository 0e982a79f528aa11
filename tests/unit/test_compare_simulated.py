"""What `monitor compare` says of equal recordings: a subset of benchmarks/compare_false_alarms.py."""

from __future__ import annotations

import sys
from importlib import import_module
from pathlib import Path

import numpy as np
import pytest

from gpuproof.comparison.recordings import COMPARED_METRICS, RecordingComparison, compare
from gpuproof.comparison.winners import side_of
from recordings import compared, differences

sys.path.insert(0, str(Path(__file__).parents[2] / "benchmarks"))
simulated = import_module("compare_false_alarms")


def pairs(shape: object, num_pairs: int, *, seed: int) -> list[RecordingComparison]:
    rng = np.random.default_rng(seed)
    return [
        compare(simulated.recording(shape, rng), simulated.recording(shape, rng)) for _ in range(num_pairs)
    ]


@pytest.mark.parametrize(("phi", "readings"), [(0.0, 100), (0.5, 300)])
def test_all_metrics_of_equal_recordings_together_seldom_differ(phi: float, readings: int) -> None:
    shape = simulated.Shape(name="", signal=simulated.autoregressive(phi), readings=readings)
    found = pairs(shape, 25, seed=3)
    # of 25 comparisons at 5 %, 5 or more alarms have a chance of 0.7 %
    assert sum(map(simulated.is_alarm, found)) <= 4
    assert {len(differences(comparison)) for comparison in found} == {len(COMPARED_METRICS)}
    told = [m.interval for comparison in found for m in differences(comparison) if m.interval is not None]
    assert len(told) > 0.9 * 25 * len(COMPARED_METRICS)
    assert {round(interval.level, 6) for interval in told} == {round(1 - 0.03 / len(COMPARED_METRICS), 6)}


def test_readings_too_few_for_their_autocorrelation_cannot_tell() -> None:
    shape = simulated.Shape(name="", signal=simulated.autoregressive(0.97), readings=300)
    found = [metric for comparison in pairs(shape, 6, seed=4) for metric in differences(comparison)]
    assert sum(metric.detail == "cannot tell" for metric in found) >= 0.95 * len(found)
    assert all("too few independent pieces" in metric.missing for metric in found if metric.missing)


def test_readings_that_keep_step_with_a_sawtooth_allow_for_what_they_miss() -> None:
    (shape,) = [one for one in simulated.shapes() if not one.dithered]
    assert shape.name.startswith("sawtooth")
    found = pairs(shape, 20, seed=6)
    assert sum(map(simulated.is_alarm, found)) == 0
    for metric in (m for comparison in found for m in differences(comparison)):
        # 5 readings of a period from 500 to 1,500: each mean may be 1,000 / 2 / 5 = 100 off
        assert metric.interval is not None
        assert (metric.interval.high - metric.interval.low) / 2 >= 190


@pytest.mark.parametrize(("counter", "within_w"), [(True, 1.0), (False, 10.0)])
def test_a_sawtooth_in_step_with_the_readings_is_not_called_different(counter: bool, within_w: float) -> None:
    rng = np.random.default_rng(5)
    for _ in range(4):
        a, b = (simulated.sawtooth_power(rng, counter=counter, dithered=True) for _ in range(2))
        power = compared(compare(a, b), "power_w")
        assert power["B minus A"].detail == "no difference shown"
        assert power["A"].value == pytest.approx(300, abs=within_w)
        assert power["B"].value == pytest.approx(300, abs=within_w)


def test_without_dither_the_sensor_sees_one_point_of_the_course_only() -> None:
    """The cure is of something: what the same sawtooth looks like on a fixed grid."""
    rng = np.random.default_rng(5)
    means = []
    for _ in range(4):
        recording = simulated.sawtooth_power(rng, counter=False, dithered=False)
        means.append(compared(compare(recording, recording), "power_w")["A"].value or 0.0)
    assert max(means) - min(means) > 20


def test_the_smallest_difference_that_would_show_is_shown_about_four_times_in_five() -> None:
    shape = simulated.Shape(name="", signal=simulated.autoregressive(0.0), readings=100)
    equal = [m for comparison in pairs(shape, 4, seed=6) for m in comparison.means]
    shift = float(np.mean([m.value for m in equal if side_of(m) == "shown from" and m.value is not None]))
    rng = np.random.default_rng(8)
    found = []
    for _ in range(20):
        a, b = simulated.recording(shape, rng), simulated.recording(shape, rng)
        for values in b.devices[0].metrics.values():
            np.add(values, shift, out=values)
        found += [metric.detail for metric in differences(compare(a, b))]
    assert found.count("higher") / len(found) == pytest.approx(0.8, abs=0.08)

"""What held a device back: counters against samples, each time told once, and what could have told."""

from __future__ import annotations

import sys
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest

import recordings as rec
from gpuproof.observe.recording_page import recording_page, recording_result
from gpuproof.readings.totals import Throttling, throttling
from gpuproof.readings.window import whole

sys.path.insert(0, str(Path(__file__).parents[2] / "benchmarks"))
simulated = import_module("throttle_counters")


def told(
    folder: Path, reasons: list[tuple[str, ...] | None], counters: dict[str, tuple[float, float]]
) -> tuple[Throttling, list[str]]:
    """Record a sample a second with these reasons, and counters of seconds from and to; return the lines."""
    last = len(reasons) - 1
    records: list[Any] = [
        rec.header([rec.identity()], slow_interval_s=1.0),
        rec.counters(
            0, "start", {0: {f"throttle_time_{name}_s": ends[0] for name, ends in counters.items()}}
        ),
    ]
    for t, given in enumerate(reasons):
        records.append(rec.sample(t, {0: {"power_w": 1.0}}, reasons={} if given is None else {0: given}))
    records.append(
        rec.counters(
            last, "end", {0: {f"throttle_time_{name}_s": end for name, (_, end) in counters.items()}}
        )
    )
    data = rec.loaded(folder, records)
    text = rec.text_of(recording_page(recording_result(data)), width=200)
    lines = [" ".join(line.split()) for line in text.splitlines() if line.startswith("  throttled")]
    return throttling(data, track=data.devices[0], window=whole(data)), lines


def test_a_counter_that_stands_still_beside_samples_is_not_believed(tmp_path: Path) -> None:
    """Half of 101 readings are held back; the counter says 0."""
    reasons: list[tuple[str, ...] | None] = [("thermal_software",) if t % 2 else () for t in range(101)]
    found, (line,) = told(tmp_path, reasons, {"thermal_software": (0.0, 0.0)})
    (share,) = found.shares
    assert share.method == "samples"
    assert share.share == pytest.approx(0.5, abs=0.01)
    assert line.endswith("software thermal slowdown 50 % of the time by samples; its counter did not move")


def test_the_counter_of_heat_that_stands_still_is_named_with_the_reason_that_samples_gave(
    tmp_path: Path,
) -> None:
    found, (line,) = told(tmp_path, [("thermal_software",)] * 50, {"thermal": (7.0, 7.0)})
    assert [share.reason for share in found.shares] == ["thermal_software"]
    assert line.endswith("software thermal slowdown 100 % of the time by samples; its counter did not move")


def test_heat_is_told_once_with_the_counters_time_and_the_samples_reason(tmp_path: Path) -> None:
    """NVML's counter of heat has 30 of 100 s; 28 of 101 samples saw it, all of software."""
    reasons: list[tuple[str, ...] | None] = [("thermal_software",) if t < 28 else () for t in range(101)]
    found, (line,) = told(tmp_path, reasons, {"thermal": (5.0, 35.0)})
    assert line.endswith("software thermal slowdown 30 % of the time by counter")
    assert len(found.shares) == 1


def test_heat_that_its_own_counters_have_is_not_told_again(tmp_path: Path) -> None:
    """20 s by software and 10 by hardware of the 30 s of heat; with 45 s, 15 are of neither."""
    silent: list[tuple[str, ...] | None] = [()] * 101
    own = {"thermal_software": (0.0, 20.0), "thermal_hardware": (0.0, 10.0)}
    found, _ = told(tmp_path, silent, own | {"thermal": (0.0, 30.0)})
    assert {s.reason: round(s.share, 3) for s in found.shares} == {
        "thermal_software": 0.2,
        "thermal_hardware": 0.1,
    }
    found, _ = told(tmp_path, silent, own | {"thermal": (0.0, 45.0)})
    assert {s.reason: round(s.share, 3) for s in found.shares}["thermal"] == 0.15


def test_heat_alone_is_told_as_heat(tmp_path: Path) -> None:
    found, (line,) = told(tmp_path, [()] * 101, {"thermal": (0.0, 3.0)})
    assert line.endswith("thermal slowdown 3.0 % of the time by counter")
    assert found.shares[0].reason == "thermal"


def test_the_bit_that_comes_with_hardware_heat_is_told_for_the_rest_only(tmp_path: Path) -> None:
    """0x48 of NVML for 60 of 101 readings, 0x8 alone for 20."""
    both, alone = ("hardware_slowdown", "thermal_hardware"), ("hardware_slowdown",)
    reasons: list[tuple[str, ...] | None] = [both] * 60 + [alone] * 20 + [()] * 21
    found, _ = told(tmp_path, reasons, {})
    shares = {share.reason: round(share.share * 101) for share in found.shares}
    assert shares == {"thermal_hardware": 60, "hardware_slowdown": 20}


def test_never_is_said_only_where_something_could_have_told(tmp_path: Path) -> None:
    _, (line,) = told(tmp_path, [()] * 50, {})
    assert line.endswith("never as far as the device reported")
    _, (line,) = told(tmp_path, [()] * 10 + [None] * 30, {})
    assert line.endswith("never in 25 % of the readings; not reported in the others")
    _, (line,) = told(tmp_path, [None] * 50, {"power_cap": (8.0, 8.0)})
    assert line.endswith("never by counter (power cap); other reasons are not reported")
    found, (line,) = told(tmp_path, [None] * 50, {"power_cap": (0.0, 0.0)})
    assert line.endswith(
        "– this device reported no throttle reasons; its counters of throttled time have never counted"
    )
    assert not found.has_answers


@pytest.mark.parametrize("name", sorted(simulated.TRUTHS))
def test_a_counter_that_is_right_is_believed(name: str) -> None:
    """Over 30 s, with the slow lane's readings at their ends missing; none in 40 may be refused."""
    done = simulated.trials(simulated.TRUTHS[name], simulated.RIGHT["exact"], duration_s=30.0, num=40)
    assert not any(map(simulated.disbelieved, done))
    assert max(abs(trial.error) for trial in done) < 0.05


@pytest.mark.parametrize("name", ["bursts", "turns of 10 ms", "turns of 0.2 s", "turns of 1.0 s", "always"])
@pytest.mark.parametrize("kind", sorted(simulated.WRONG))
def test_a_counter_that_is_wrong_is_found(name: str, kind: str) -> None:
    done = simulated.trials(simulated.TRUTHS[name], simulated.WRONG[kind], duration_s=300.0, num=10)
    assert all(map(simulated.disbelieved, done))
    assert max(abs(trial.error) for trial in done) < 0.06

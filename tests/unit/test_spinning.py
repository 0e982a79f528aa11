"""Busy that is not work: seen on a hung trace, on no other, alike in a recording and reading by reading."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from rich.console import Console

import recordings as rec
from gpuproof.devices import fake
from gpuproof.observe.live_state import LiveState
from gpuproof.observe.live_table import device_table
from gpuproof.observe.prometheus.families import families
from gpuproof.observe.recording_page import recording_page, recording_result
from gpuproof.readings.warnings import SpinWatch, limit_of, longest_gap_s, spins
from gpuproof.records.readings import VendorIndex
from spinning_traces import HEALTHY, LIMIT_W, trace

METRICS = ("util_gpu_percent", "power_w", "util_mem_ctrl_percent")
STATIC = {"power_limit_default_w": LIMIT_W}


def records(columns: Any, *, interval_s: float = 1.0, **identity: Any) -> list[Any]:
    device = rec.identity(0, **{"vendor": "nvidia", "static": STATIC, **identity})
    rows = zip(*columns, strict=True)
    samples = [
        rec.sample(i * interval_s, {0: dict(zip(METRICS, map(float, row), strict=True))})
        for i, row in enumerate(rows)
    ]
    return [rec.header([device], fast_interval_s=interval_s), *samples]


def found(folder: Path, given: list[Any]) -> Any:
    data = rec.loaded(folder, given)
    return spins(data, data.devices[0])


def hung(num: int) -> Any:
    return (np.full(num, 100.0), np.full(num, 140.0), np.zeros(num))


def of_the_fake_driver(scenario: str) -> list[Any]:
    """Sixty seconds of a fake device, read by its adapter at one a second."""
    now_s = [0.0]
    adapter = fake.open_adapter(f"1:{scenario}", clock=lambda: now_s[0])
    (device,) = adapter.identities()
    head = rec.header([rec.identity(0, static=dict(device.static))])
    samples = []
    for second in range(60):
        now_s[0] = float(second)
        reading = adapter.read(VendorIndex(0), lane="fast").reading
        told = {} if reading.throttle_reasons is None else {0: reading.throttle_reasons}
        samples.append(rec.sample(float(second), {0: dict(reading.values)}, reasons=told))
    return [head, *samples]


@pytest.mark.parametrize("scenario", ["normal", "idle", "memory_bound", "power_cap", "thermal", "stuck"])
def test_live_summary_and_exporter_say_it_of_the_stuck_device_and_of_no_other(
    scenario: str, tmp_path: Path
) -> None:
    given = of_the_fake_driver(scenario)
    is_stuck = scenario == "stuck"
    data = rec.loaded(tmp_path, given)
    summary = rec.text_of(recording_page(recording_result(data)))
    state = LiveState()
    state.apply(given)
    out = io.StringIO()
    Console(file=out, width=80).print(device_table({"": state}, width=80))
    gauge = [
        sample.value
        for family in families(state, fresh=True)
        for sample in family.samples
        if sample.name == "gpuproof_gpu_busy_without_work"
    ]
    assert ("busy without work" in out.getvalue()) == is_stuck
    assert gauge == [float(is_stuck)]
    assert ("busy, no work" in summary) == is_stuck
    if is_stuck:
        words = " ".join(summary.split())
        assert "busy without work for 59.0 s: utilisation 100 % at 25 % of the power" in words
        assert "memory traffic 0 %" in words


def test_no_work_is_taken_for_a_hang_and_every_hang_is_found(tmp_path: Path) -> None:
    draw = np.random.default_rng(17)
    for kind in HEALTHY:
        for interval_s in (0.2, 1.0):
            given = records(trace(kind, draw, n=600, interval_s=interval_s), interval_s=interval_s)
            assert found(tmp_path, given) == (), kind
    for interval_s in (0.2, 1.0, 15.0):
        (spin,) = found(
            tmp_path, records(trace("hung", draw, n=100, interval_s=interval_s), interval_s=interval_s)
        )
        assert spin.duration_s == pytest.approx(99 * interval_s)


def test_a_hang_is_told_after_ten_seconds_and_six_readings_and_not_before(tmp_path: Path) -> None:
    assert found(tmp_path, records(hung(11))) == ()
    assert len(found(tmp_path, records(hung(12)))) == 1
    assert found(tmp_path, records(hung(5), interval_s=15.0)) == ()
    assert len(found(tmp_path, records(hung(6), interval_s=15.0))) == 1


def test_one_reading_of_work_or_a_hole_begins_anew(tmp_path: Path) -> None:
    util, power, traffic = hung(20)
    power[10] = 600.0
    assert found(tmp_path, records((util, power, traffic))) == ()
    with_hole = records(hung(20))
    assert found(tmp_path, with_hole[:9] + with_hole[15:]) == ()


def test_a_recording_and_its_readings_one_by_one_come_to_the_same(tmp_path: Path) -> None:
    draw = np.random.default_rng(5)
    util, power, traffic = (np.concatenate(parts) for parts in zip(
        trace("training", draw, n=40, interval_s=1.0), hung(30), trace("idle", draw, n=20, interval_s=1.0),
        trace("hung", draw, n=25, interval_s=1.0), strict=True,
    ))  # fmt: skip
    given = records((util, power, traffic))
    data = rec.loaded(tmp_path, given)
    watch, seen = SpinWatch(longest_gap_s=longest_gap_s(1.0)), []
    identity = data.devices[0].identity
    for record in given[1:]:
        values = record.devices["0"].values
        before = watch.now
        watch.take(record.monotonic_s - rec.MONOTONIC_S, values, limit_w=limit_of(identity, values))
        if before is not None and watch.now is None:
            seen.append(before)
    seen += [watch.now] if watch.now is not None else []
    whole = spins(data, data.devices[0])
    assert [(spin.begin_s, spin.end_s) for spin in seen] == [(40.0, 69.0), (90.0, 114.0)]
    assert [(spin.begin_s, spin.end_s) for spin in whole] == [(40.0, 69.0), (90.0, 114.0)]
    assert [spin.power_w for spin in seen] == pytest.approx([spin.power_w for spin in whole])


def test_what_cannot_tell_is_not_judged(tmp_path: Path) -> None:
    assert found(tmp_path, records(hung(60), vendor="amd")) == ()
    assert found(tmp_path, records(hung(60), static={})) == ()  # no power limit is known
    state = LiveState()
    state.apply(records(hung(60), static={}))
    assert not [f for f in families(state, fresh=True) if f.name == "gpuproof_gpu_busy_without_work"]


def test_the_limit_is_the_one_that_was_read() -> None:
    watch = SpinWatch(longest_gap_s=5.0)
    for second in range(49):
        values = {"util_gpu_percent": 100.0, "power_w": 70.1, "util_mem_ctrl_percent": 0.0}
        watch.take(float(second), values, limit_w=699.9)
    assert watch.now is not None
    assert watch.now.limit_w == 699.9

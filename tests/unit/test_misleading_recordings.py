"""Recordings that were cut short, lost a GPU or come from other tools: nothing is called calm or whole."""

from __future__ import annotations

import contextlib
import json
from pathlib import Path
from typing import Any

import pytest

import recordings as rec
from gpuproof.base.errors import RecordError
from gpuproof.comparison.recordings import compare
from gpuproof.observe.recording_page import recording_page, recording_result
from gpuproof.readings.formats import load
from gpuproof.readings.recording import RecordingData
from gpuproof.readings.selection import of_recording
from gpuproof.readings.summary import summarise
from gpuproof.records.readings import DriverEvent
from gpuproof.verdict.announced import announced_of


def reason_of(recording: RecordingData) -> str:
    verdict = recording_page(recording_result(recording)).verdict
    assert verdict is not None
    return verdict.reason or ""


def test_an_event_after_the_last_sample_of_a_recording_that_was_cut_off_is_shown(tmp_path: Path) -> None:
    xid = DriverEvent(
        monotonic_s=rec.MONOTONIC_S + 1.5, physical_index=0, event="xid", code=79, message="XID 79"
    )
    cut = rec.loaded(
        tmp_path,
        [rec.header([rec.identity(0)]), *(rec.sample(t, {0: {"power_w": 9.0}}) for t in (0, 1)), xid],
    )
    assert reason_of(cut) == "GPU 0: xid 79 at 1.50 s: XID 79"


@pytest.mark.parametrize("samples", [[], [rec.sample(t, {0: {}}) for t in range(3)]])
def test_a_recording_without_a_reading_is_not_told_as_calm(tmp_path: Path, samples: list[Any]) -> None:
    empty = rec.loaded(tmp_path, [rec.header([rec.identity(0)]), *samples])
    assert reason_of(empty).startswith("no reading of a GPU was recorded")


def test_memory_errors_that_grow_are_a_warning_and_a_standing_total_is_not(tmp_path: Path) -> None:
    def reason(*totals: float) -> str:
        samples = [
            rec.sample(t, {0: {"util_gpu_percent": 50.0, "ecc_uncorrected_count": n}})
            for t, n in enumerate(totals)
        ]
        return reason_of(rec.loaded(tmp_path, [rec.header([rec.identity(0)]), *samples]))

    assert reason(2.0, 2.0, 11.0) == "GPU 0: memory errors that ECC could not correct: 9"
    assert reason(2.0, 2.0, 2.0) == "nothing unusual in the readings"


def test_a_gpu_that_got_another_index_keeps_its_readings(tmp_path: Path) -> None:
    rows = [(t, i, "GPU-a" if (i == 0) == (t < 2) else "GPU-b") for t in range(4) for i in (0, 1)]
    text = "timestamp, index, uuid, power.draw [W]\n" + "".join(
        f"2026/11/20 13:00:0{t}.00{i}, {i}, {u}, {100 if u == 'GPU-a' else 300} W\n" for t, i, u in rows
    )
    (tmp_path / "log.csv").write_text(text)
    powers = {
        track.identity.uuid: set(track.readings("power_w")) for track in load(tmp_path / "log.csv").devices
    }
    assert powers == {"GPU-a": {100.0}, "GPU-b": {300.0}}


def test_energy_of_a_part_is_not_compared_with_that_of_the_whole(tmp_path: Path) -> None:
    def side(name: str, last: int) -> RecordingData:
        samples = [
            rec.sample(
                t,
                {
                    0: {"power_w": 100.0, "util_gpu_percent": 99.0}
                    if t <= last
                    else {"util_gpu_percent": 99.0}
                },
            )
            for t in range(20)
        ]
        return rec.loaded(tmp_path, [rec.header([rec.identity(0)]), *samples], name=name)

    spent = compare(side("a.jsonl", 19), side("b.jsonl", 5)).spent
    assert [(m.value, m.missing) for m in spent if m.unit == "J"] == [
        (1900.0, None),
        (None, "it was read over only 26 % of the time"),
    ]


def test_readings_with_the_same_second_have_energy_and_all_count(tmp_path: Path) -> None:
    rows = "".join(f"2026/11/20 13:00:{n // 5:02d}.000, 0, 100 W\n" for n in range(40))
    (tmp_path / "log.csv").write_text("timestamp, index, power.draw [W]\n" + rows)
    found = {(m.labels["metric"], m.statistic): m for m in summarise(load(tmp_path / "log.csv"))}
    assert found["energy_j", "total"].value == pytest.approx(700)
    assert found["power_w", "mean"].num_samples == 40


def test_a_margin_below_zero_is_a_plain_mean(tmp_path: Path) -> None:
    hot = rec.loaded(
        tmp_path,
        [rec.header([rec.identity(0)]), *(rec.sample(t, {0: {"temp_margin_c": -3.0}}) for t in range(5))],
    )
    assert {m.name for m in summarise(hot) if m.labels["metric"] == "temp_margin_c"} == {"margin to slowdown"}


def test_two_recordings_in_a_file_are_refused(tmp_path: Path) -> None:
    with pytest.raises(RecordError, match="second recording"):
        rec.loaded(
            tmp_path,
            [
                rec.header([rec.identity(0)]),
                rec.sample(0, {0: {"power_w": 9.0}}),
                rec.header([rec.identity(0)]),
            ],
        )


def test_a_sample_before_the_one_before_it_is_damaged(tmp_path: Path) -> None:
    found = rec.loaded(
        tmp_path,
        [rec.header([rec.identity(0)]), *(rec.sample(t, {0: {"power_w": 9.0}}) for t in (0, 1, -5, 2))],
    )
    assert found.time_s.tolist() == [0, 1, 2]
    assert "1 damaged line(s) skipped" in found.notes[0]


@pytest.mark.parametrize(
    "odd",
    [
        {"elapsed_seconds": None},
        {"elapsed_seconds": "x"},
        {"host": "x"},
        {"host": {"cpu_percent": "x"}},
        {"gpu_index": "x"},
        {"gpu_index": [1]},
        {"timestamp": 1.79e12},
        {"multi_gpu_data": None},
    ],
)
def test_an_odd_value_gives_readings_or_an_error_and_no_traceback(
    tmp_path: Path, odd: dict[str, Any]
) -> None:
    row = {
        "timestamp": "2026-11-20T13:00:00",
        "gpu_index": 0,
        "utilization": 50,
        "elapsed_seconds": 0.0,
        "temperatures": {},
    }
    (tmp_path / "a.json").write_text(
        json.dumps([row, {**row, "timestamp": "2026-11-20T13:00:01", "elapsed_seconds": 1.0, **odd}])
    )
    with contextlib.suppress(RecordError):
        recording_page(recording_result(load(tmp_path / "a.json")))


def test_a_file_that_names_no_model_has_gpus_nevertheless(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("timestamp, index, power.draw [W]\n2026/11/20 13:00:00.000, 0, 100 W\n")
    (device,) = (fact for fact in of_recording(load(tmp_path / "a.csv")).facts if fact.name == "device")
    assert (device.text, device.missing) == (None, "the file names no GPU")


def test_a_gpu_that_is_no_longer_in_the_log_is_not_calm(tmp_path: Path) -> None:
    rows = "".join(
        f"2026/11/20 13:00:{t:02d}.00{i}, {i}, 100 W\n" for t in range(19) for i in (0, 1) if i == 0 or t < 6
    )
    (tmp_path / "a.csv").write_text("timestamp, index, power.draw [W]\n" + rows)
    assert reason_of(load(tmp_path / "a.csv")) == "GPU 1: no reading after 5.00 s, and no reason for it"


def test_the_energy_of_a_part_of_a_phase_says_so(tmp_path: Path) -> None:
    samples = [
        rec.sample(t, {0: {"power_w": 100.0}, 1: {"power_w": 100.0} if t <= 5 else {}}) for t in range(21)
    ]
    found = rec.loaded(
        tmp_path, [rec.header([rec.identity(0), rec.identity(1)]), rec.mark(0, phase="train"), *samples]
    )
    assert [
        m.text for m in summarise(found) if m.labels.get("phase") and m.labels["metric"] == "energy_j"
    ] == ["2.00 kJ", "500 J in 25 % of it"]


def test_a_total_that_stands_still_has_not_moved_however_it_was_rounded(tmp_path: Path) -> None:
    total, energy = 27.322975776000003, 68748.11200000001  # as read; samples round them
    values = {"throttle_time_power_cap_s": 27.322975776, "energy_j": 68748.112, "power_w": 0.0}
    still = rec.loaded(
        tmp_path,
        [
            rec.header([rec.identity(0)]),
            rec.counters(0, "start", {0: {"throttle_time_power_cap_s": total, "energy_j": energy}}),
            *(rec.sample(t, {0: values}, reasons={0: ()}) for t in (1, 2, 3)),
            rec.counters(4, "end", {0: {"throttle_time_power_cap_s": total, "energy_j": energy}}),
        ],
    )
    result = recording_result(still)
    found = {(m.labels["metric"], m.statistic): m for m in result.measures}
    assert found["held_back", "share of the time"].text == "never"
    assert "backwards" not in found["energy_j", "total"].detail
    assert reason_of(still) == "nothing unusual in the readings"


def test_memory_errors_are_announced_though_their_total_restarts_or_is_lost(
    tmp_path: Path,
) -> None:
    def growth(metric: str, values: list[float], end: float | None = None) -> list[tuple[str, Any]]:
        ends = (
            []
            if end is None
            else [rec.counters(0, "start", {0: {metric: 0.0}}), rec.counters(3, "end", {0: {metric: end}})]
        )
        samples = [rec.sample(t, {0: {metric: value}}) for t, value in enumerate(values)]
        return [
            (a.title, a.growth)
            for a in announced_of(rec.loaded(tmp_path, [rec.header([rec.identity(0)]), *samples, *ends]), 0)
        ]

    assert growth("ecc_uncorrected_count", [0.0, 2.0, 0.0], 0.0) == [
        ("ecc_uncorrected_count", 2)
    ]  # the driver was reloaded
    assert growth("ecc_uncorrected_count", [0.0, 2.0, 2.0]) == [
        ("ecc_uncorrected_count", 2)
    ]  # lost before the end
    assert growth("remapped_rows_failed", [0.0, 0.0, 1.0]) == [("remapped_rows_failed", 1)]
    assert growth("remapped_rows_failed", [1.0, 1.0, 1.0]) == []

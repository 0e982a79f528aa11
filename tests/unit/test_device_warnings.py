"""Links, memory and counters of bytes: what is told of them, and what is not."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import pytest

import recordings as rec
from gpuproof.observe.live_state import LiveState
from gpuproof.observe.recording_page import recording_page, recording_result
from gpuproof.readings.recording import RecordingData
from gpuproof.readings.totals import Total, device_totals
from gpuproof.readings.warnings import device_warnings
from gpuproof.readings.window import whole
from gpuproof.records.readings import DriverEvent

LINK = {"pcie_gen_max": 5.0, "pcie_width_max": 16.0}


def of_one_device(folder: Path, samples: list[Any], **static: float) -> RecordingData:
    who = rec.identity(static={**rec.identity().static, **LINK, **static})
    return rec.loaded(folder, [rec.header([who]), *samples])


def warnings_of(recording: RecordingData) -> tuple[str, ...]:
    return device_warnings(recording, track=recording.devices[0], window=whole(recording))


def total_of(recording: RecordingData) -> Total:
    (total,) = device_totals(recording, track=recording.devices[0], window=whole(recording))
    return total


def bytes_counted(folder: Path, totals: list[float]) -> Total:
    samples = [rec.sample(t, {0: {"pcie_tx_bytes": total}}) for t, total in enumerate(totals)]
    return total_of(of_one_device(folder, samples))


def counting(bytes_per_s: float, *, bits: int, seconds: int = 60) -> list[float]:
    """Count at an unsteady rate on a counter of so many bits that stood half full."""
    chance, total, found = random.Random(1), 2.0 ** (bits - 1), []
    for _ in range(seconds):
        found.append(total % 2**bits)
        total += bytes_per_s * chance.uniform(0.5, 1.5)
    return found


@pytest.mark.parametrize("bytes_per_s", [1e9, 6e9, 50e9])
def test_a_counter_of_32_bits_that_runs_over_gives_the_least_and_no_rate(
    tmp_path: Path, bytes_per_s: float
) -> None:
    total = bytes_counted(tmp_path, counting(bytes_per_s, bits=32))
    assert total.is_least
    assert "never above 32 bits" in (total.note or "")
    assert 0 < total.increase <= bytes_per_s * 60 * 1.2


def test_a_longer_counter_that_runs_over_keeps_its_rate(tmp_path: Path) -> None:
    """At 50 GB/s one of 40 bits runs over every 22 s; the seconds in which it does are left out."""
    total = bytes_counted(tmp_path, counting(50e9, bits=40))
    assert not total.is_least
    assert total.increase / total.covered_s == pytest.approx(50e9, rel=0.1)
    assert total.note == "its counter went backwards 3 times"


def test_a_counter_that_only_grows_has_no_word(tmp_path: Path) -> None:
    total = bytes_counted(tmp_path, [0.0, 1e9, 2e9])
    assert (total.increase, total.is_least, total.note) == (2e9, False, None)


def test_a_driver_that_was_loaded_again_is_no_gain_of_four_gigabytes(tmp_path: Path) -> None:
    total = bytes_counted(tmp_path, [1e9, 1.1e9, 0.0, 1e8])
    assert (total.increase, total.is_least) == (2e8, True)


def test_more_than_the_link_carries_is_not_believed(tmp_path: Path) -> None:
    total = bytes_counted(tmp_path, [0.0, 9e12, 18e12])
    assert (total.covered_s, total.note) == (0.0, "not trusted: more than the link can carry")


def test_the_live_view_gives_no_rate_of_a_counter_that_ran_over() -> None:
    state = LiveState()
    state.apply([rec.header([rec.identity()])])
    rates = []
    for t, total in enumerate([1e9, 4e9, 2e8, 3.9e9]):
        state.apply([rec.sample(t, {0: {"pcie_tx_bytes": total}})])
        rates.append(state.devices[0].rates.get("pcie_tx_bytes"))
    assert rates == [None, 3e9, None, None]


def linked(width: list[float], gen: list[float], util: list[float]) -> list[Any]:
    rows = zip(width, gen, util, strict=True)
    return [
        rec.sample(t, {0: {"pcie_width": w, "pcie_gen": g, "util_gpu_percent": u}})
        for t, (w, g, u) in enumerate(rows)
    ]


@pytest.mark.parametrize(
    ("width", "gen", "util", "expected"),
    [
        ([16] * 5, [5] * 5, [90] * 5, ()),
        ([16] * 5, [1, 1, 5, 5, 1], [0, 90, 90, 90, 0], ()),  # one reading before it woke, idle after
        ([8, 8, 16, 16, 16], [1] * 5, [0] * 5, ("8 of 16 PCIe lanes without load in 40 % of the readings",)),
        ([8] * 5, [5] * 5, [90] * 5, ("8 of 16 PCIe lanes under load",)),
        ([16, 16, 16, 4, 4], [5] * 5, [90] * 5, ("4 of 16 PCIe lanes under load in 40 % of the readings",)),
        ([16, 16, 8, 16, 16], [5] * 5, [90] * 5, ()),
        ([4, 4, 16, 16, 16], [5] * 5, [0, 0, 90, 90, 90], ()),  # saves power when idle
        ([16] * 5, [3, 4, 4, 4, 4], [90] * 5, ("PCIe generation 4 under load, but 5 is possible",)),
        ([16] * 2, [4] * 2, [90] * 2, ()),  # too few to tell
    ],
)
def test_lanes_and_generation_are_judged_under_load(
    tmp_path: Path, width: list[float], gen: list[float], util: list[float], expected: tuple[str, ...]
) -> None:
    warnings = warnings_of(of_one_device(tmp_path, linked(width, gen, util)))
    assert tuple(text.partition(":")[0] for text in warnings) == expected


def test_rows_and_pages_are_told_as_they_were_last_read(tmp_path: Path) -> None:
    samples = [
        rec.sample(0, {0: {"remapped_rows_pending": 1.0, "retired_pages_uncorrected_count": 2.0}}),
        rec.sample(1, {0: {"remapped_rows_failed": 1.0, "retired_pages_pending": 1.0}}),
        rec.sample(2, {0: {"retired_pages_uncorrected_count": 3.0, "retired_pages_corrected_count": 0.0}}),
    ]
    rows, failed, pages, retired = warnings_of(of_one_device(tmp_path, samples))
    assert rows.startswith("memory rows are pending a GPU reset")
    assert failed.startswith("a memory row could not be remapped")
    assert pages.startswith("memory pages are pending a GPU reset")
    assert retired == "memory pages are retired: 3 after uncorrected errors"
    sound = rec.sample(3, {0: dict.fromkeys(("remapped_rows_pending", "remapped_rows_failed"), 0.0)})
    assert warnings_of(of_one_device(tmp_path, [sound])) == ()


def test_events_that_come_again_are_one_line_with_a_count(tmp_path: Path) -> None:
    samples = [rec.sample(t, {0: {"util_gpu_percent": 1.0}}) for t in range(60)]

    def event(at_s: float, code: int) -> DriverEvent:
        return DriverEvent(
            monotonic_s=rec.MONOTONIC_S + at_s, physical_index=0, event="xid", code=code, message="a fault"
        )

    events = [event(t, 63) for t in range(12)] + [event(20, 79)]
    path = rec.loaded(tmp_path, [rec.header([rec.identity()]), *samples, *events])
    text = rec.text_of(recording_page(recording_result(path)))
    lines = [line for line in text.splitlines() if line.startswith("  event")]
    assert [line.split("event")[1].strip() for line in lines] == [
        "xid 63 12 times, from 0 s to 11.0 s: a fault",
        "xid 79 at 20.0 s: a fault",
    ]

"""nvidia-smi's CSV log: fields in any order, with units or without, `[N/A]` for one GPU at one moment."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from gpuproof.observe.recording_page import recording_page, recording_result
from gpuproof.readings.formats import load
from gpuproof.records.metrics import METRICS

CSV = """timestamp, index, name, uuid, \
utilization.gpu [%], memory.used [MiB], power.draw [W], temperature.gpu, \
pstate, clocks_throttle_reasons.active, memory.total [MiB]
2026/11/20 10:00:00.100, 0, NVIDIA A, GPU-a, 35 %, 1024 MiB, 70.50 W, 60, P0, 0x0000000000000024, 8192 MiB
2026/11/20 10:00:00.130, 1, NVIDIA A, GPU-b, [N/A], 10 MiB, [Not Supported], 61, P8, 0x01, 8192 MiB
2026/11/20 10:00:02.100, 0, NVIDIA A, GPU-a, 36 %, 2048 MiB, 71.50 W, 62, P0, 0x0000000000000000, 8192 MiB
2026/11/20 10:00:02.130, 1, NVIDIA A, GPU-b, 5 %, 11 MiB, 8
"""


def test_nvidia_smi_csv_field_by_field(tmp_path: Path) -> None:
    (tmp_path / "log.csv").write_text(CSV)
    data = load(tmp_path / "log.csv")
    assert data.format == "nvidia-smi"
    np.testing.assert_allclose(data.time_s, [0.0, 2.0])
    first, second = data.devices
    assert (first.identity.uuid, first.identity.name) == ("GPU-a", "NVIDIA A")
    assert first.identity.static["mem_total_bytes"] == 8192 * 2**20
    np.testing.assert_array_equal(first.metrics["util_gpu_percent"], [35.0, 36.0])
    np.testing.assert_array_equal(first.metrics["mem_used_bytes"], [2.0**30, 2.0**31])
    np.testing.assert_array_equal(first.metrics["power_w"], [70.5, 71.5])
    np.testing.assert_array_equal(first.metrics["pstate_level"], [0.0, 0.0])
    np.testing.assert_array_equal(first.throttle["thermal_software"], [True, False])
    np.testing.assert_array_equal(first.throttle["power_cap"], [True, False])
    np.testing.assert_array_equal(first.throttle_answered, [True, True])
    np.testing.assert_array_equal(second.metrics["temp_gpu_c"], [61.0, np.nan])
    assert not {"util_gpu_percent", "power_w"} & second.metrics.keys()
    assert data.notes == ("1 damaged line(s) skipped",)


def test_nvidia_smi_csv_without_units_and_index(tmp_path: Path) -> None:
    (tmp_path / "log.csv").write_text(
        "timestamp, uuid, memory.used [MiB], power.draw [W]\n"
        "2026/11/20 10:00:00.000, GPU-b, 512, 70.5\n"
        "2026/11/20 10:00:00.010, GPU-a, 1024, [N/A]\n"
    )
    data = load(tmp_path / "log.csv")
    assert [track.identity.uuid for track in data.devices] == ["GPU-b", "GPU-a"]
    np.testing.assert_array_equal(data.devices[1].metrics["mem_used_bytes"], [2.0**30])
    np.testing.assert_array_equal(data.devices[0].metrics["power_w"], [70.5])


@pytest.mark.parametrize("unit_of", ["header", "nowhere", "cell"])
def test_the_same_log_reads_alike_wherever_its_units_stand(tmp_path: Path, unit_of: str) -> None:
    fields = {"memory.used": "MiB", "power.draw": "W", "clocks.sm": "MHz", "utilization.gpu": "%"}
    numbers = ("36537", "312.40", "1980", "97")
    heads = [f"{name} [{unit}]" if unit_of != "nowhere" else name for name, unit in fields.items()]
    cells = [
        f"{number} {unit}" if unit_of == "cell" else number
        for number, unit in zip(numbers, fields.values(), strict=True)
    ]
    lines = [
        ", ".join(("timestamp", "index", *heads)),
        *(", ".join((f"2026/11/20 10:00:0{second}.000", "0", *cells)) for second in range(3)),
    ]
    (tmp_path / "log.csv").write_text("\n".join(lines))
    (track,) = load(tmp_path / "log.csv").devices
    means = {metric: float(column.mean()) for metric, column in track.metrics.items()}
    assert means == pytest.approx(
        {
            "mem_used_bytes": 36537 * 2**20,
            "power_w": 312.4,
            "clock_sm_mhz": 1980.0,
            "util_gpu_percent": 97.0,
        }
    )


def test_every_column_that_is_read_has_a_unit_of_its_own(tmp_path: Path) -> None:
    columns = [column for metric in METRICS.values() for column in metric.columns]
    assert columns
    for column in columns:
        text = f"timestamp, index, utilization.gpu, {column}\n2026/11/20 10:00:00.000, 0, 1, 2\n"
        (tmp_path / "log.csv").write_text(text)
        assert load(tmp_path / "log.csv").devices


def test_a_field_in_an_unknown_unit_is_left_out_with_that_reason(tmp_path: Path) -> None:
    (tmp_path / "log.csv").write_text(
        "timestamp, index, power.draw [hp], utilization.gpu\n2026/11/20 10:00:00.000, 0, 3, 5\n"
    )
    data = load(tmp_path / "log.csv")
    (track,) = data.devices
    assert "power_w" not in track.metrics
    assert (
        data.reasons_missing(track)["power_w"]
        == "the file has a number in hp, which is not a unit of this field"
    )


def _first_line(tmp_path: Path, *cells: str, column: str = "power.draw [W]") -> tuple[str, str, str]:
    lines = [f"timestamp, index, name, utilization.gpu [%], {column}"]
    lines += [f"2026/11/20 10:00:{n:02}.000, 0, NVIDIA A, 5 %, {cell}" for n, cell in enumerate(cells)]
    (tmp_path / "log.csv").write_text("\n".join(lines))
    result = recording_result(load(tmp_path / "log.csv"))
    verdict = recording_page(result).verdict
    assert verdict is not None
    missing = next((m.missing for m in result.measures if m.labels["metric"] == "power_w" and m.missing), "")
    return verdict.tone, verdict.reason, missing or ""


@pytest.mark.parametrize(
    "cells",
    [
        ("[GPU requires reset]", "[GPU requires reset]"),
        ("70.5 W", "[Unknown Error]"),
        ("70.5 W", "ERR!"),
        ("70.5 W", "[N/A]"),
    ],
)
def test_a_fault_that_a_file_states_is_in_the_first_line(tmp_path: Path, cells: tuple[str, ...]) -> None:
    tone, reason, _ = _first_line(tmp_path, *cells)
    assert tone == "bad"
    assert reason.startswith("GPU 0: ")
    assert f"{cells[-1]} instead of power" in reason


def test_a_reset_that_is_due_is_found_in_a_column_that_is_not_read(tmp_path: Path) -> None:
    tone, reason, _ = _first_line(tmp_path, "[GPU requires reset]", column="ecc.mode.current")
    assert (tone, "[GPU requires reset] instead of ecc.mode.current" in reason) == ("bad", True)


@pytest.mark.parametrize("word", ["ERR!", "[Unknown Error]"])
def test_an_error_in_a_field_that_never_had_a_number_is_a_warning(tmp_path: Path, word: str) -> None:
    tone, reason, missing = _first_line(tmp_path, word, word)
    assert (tone, missing) == ("warn", f"the file has {word}")
    assert f"{word} instead of power" in reason


@pytest.mark.parametrize("word", ["[N/A]", "[Not Supported]", "[Insufficient Permissions]", "N/A"])
def test_what_a_board_does_not_have_is_missing_with_what_the_file_has(tmp_path: Path, word: str) -> None:
    tone, reason, missing = _first_line(tmp_path, word, word)
    assert (tone, reason) == ("plain", "nothing unusual in the readings")
    assert missing == f"the file has {word}"


def test_words_in_json_are_the_reason_too(tmp_path: Path) -> None:
    rows = [
        {"timestamp": f"2026-11-20T10:00:0{n}", "gpu_index": 0, "utilization": 5, "power": power}
        for n, power in enumerate((70.5, "[Unknown Error]"))
    ]
    (tmp_path / "log.json").write_text(json.dumps(rows))
    data = load(tmp_path / "log.json")
    assert [event.title for event in data.events] == ["reading lost"]

"""Formats of other monitors: read with their own units and words for missing, and written to read back."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import recordings as rec
from gpuproof.base.errors import EnvironmentUnfitError, RecordError, UsageError
from gpuproof.base.files import write_array
from gpuproof.observe.recording_page import recording_page, recording_result
from gpuproof.readings.formats import load
from gpuproof.readings.formats.exports import gpu_stats_rows, gputop_multi_gpu_samples, gputop_samples
from gpuproof.readings.recording import RecordingData, load_recording
from gpuproof.records.journal import encode
from gpuproof.records.readings import (
    DeviceIdentity,
    DeviceReading,
    Mark,
    Recording,
    RecordingEnd,
    Sample,
    Vendor,
)

GIB = 2**30
T0 = 1_795_000_000.25


def recording_file(
    path: Path, *, vendor: Vendor = "nvidia", gpus: int = 2, drop: tuple[str, ...] = ()
) -> Path:
    """Write a recording of four samples, 0.5 s apart; GPU 1 gives no power at the third."""
    records: list[Any] = [
        Recording(
            host="node1",
            pid=1,
            boot_id=None,
            gpuproof_version="0",
            unix_s=T0,
            monotonic_s=10.0,
            fast_interval_s=0.5,
            slow_interval_s=1.0,
            devices=tuple(
                DeviceIdentity(
                    physical_index=i,
                    vendor=vendor,
                    vendor_index=i,
                    framework_index=i,
                    uuid=f"GPU-{i}",
                    pci_bus_id=None,
                    name=f"Card {i}",
                    static={"mem_total_bytes": 8 * GIB, "power_limit_w": 300.0, "temp_slowdown_c": 90.0},
                )
                for i in range(gpus)
            ),
            host_facts={},
        ),
        Mark(monotonic_s=10.4, metadata={"phase": "train", "epoch": 1}),
    ]
    for n in range(4):
        devices = {}
        for i in range(gpus):
            values = {
                "util_gpu_percent": 90.0 + i,
                "mem_used_bytes": float(GIB * (n + 1)),
                "power_w": 200.0 + n,
                "temp_gpu_c": 60.0 + n,
                "clock_sm_mhz": 1400.0,
                "clock_mem_mhz": 1200.0,
            }
            gone = ("power_w",) if (i, n) == (1, 2) else ()
            devices[str(i)] = DeviceReading(
                values={name: value for name, value in values.items() if name not in (*gone, *drop)}
            )
        host = {"cpu_percent": 10.0 * n} if n % 2 == 0 else {}
        records.append(
            Sample(
                monotonic_s=10.0 + n / 2,
                unix_s=T0 + n / 2,
                lane="fast" if n % 2 else "slow",
                devices=devices,
                host=host,
            )
        )
        if n == 2:
            records.append(Mark(monotonic_s=11.2, metadata={"epoch": 2, "phase": None, "note": "é\"'"}))
    records.append(
        RecordingEnd(
            monotonic_s=11.6,
            unix_s=T0 + 1.6,
            samples=4,
            missed_ticks=0,
            max_jitter_s=0.0,
            own_cpu_s=0.1,
            reason="duration",
        )
    )
    path.write_text("".join(encode(record) + "\n" for record in records))
    return path


@pytest.mark.promise("S4.3", "S4.4", "S4.13", "F4.3")
def test_a_row_of_gpu_stats_has_the_documented_fields_on_every_line(tmp_path: Path) -> None:
    data = load_recording(recording_file(tmp_path / "r.jsonl"))
    rows = list(gpu_stats_rows(data, metadata={"model": "lenet5"}))
    assert [(row["elapsed_seconds"], row["gpu_index"]) for row in rows] == [
        (t, i) for t in (0.0, 0.5, 1.0, 1.5) for i in (0, 1)
    ]
    assert rows[0] == {
        "schema": 1,
        "timestamp": rows[0]["timestamp"],
        "elapsed_seconds": 0.0,
        "training_metadata": {"epoch": None, "batch": None, "phase": None, "model": "lenet5"},
        "host": {"cpu_percent": 0.0},
        "gpu_index": 0,
        "gpu_name": "Card 0",
        "gpu_type": "nvidia",
        "utilization": 90.0,
        "memory_used": 1024.0,
        "memory_total": 8192.0,
        "memory_percent": 12.5,
        "power": 200.0,
        "temperature": 60.0,
    }
    assert rows[5]["power"] is None
    assert rows[2]["training_metadata"] == {"epoch": 1, "batch": None, "phase": "train", "model": "lenet5"}
    assert rows[6]["training_metadata"] == {
        "epoch": 2,
        "batch": None,
        "phase": None,
        "note": "é\"'",
        "model": "lenet5",
    }


@pytest.mark.promise("S4.13")
def test_phases_of_a_training_are_called_as_the_older_monitor_calls_them(tmp_path: Path) -> None:
    path = recording_file(tmp_path / "r.jsonl")
    for phase, called in (("warmup", "training"), ("measure", "training"), ("evaluate", "evaluate")):
        text = path.read_text().replace('"phase":"train"', f'"phase":"{phase}"')
        other = path.with_name(f"{phase}.jsonl")
        other.write_text(text)
        (_, _, row, *_) = gpu_stats_rows(load_recording(other), is_older=True)
        assert row["training_metadata"]["phase"] == called
        (_, _, row, *_) = gpu_stats_rows(load_recording(other))
        assert row["training_metadata"]["phase"] == phase


def test_gpu_stats_reads_back_as_what_it_was_written_from(tmp_path: Path) -> None:
    data = load_recording(recording_file(tmp_path / "r.jsonl"))
    assert write_array(tmp_path / "gpu_stats_x.json", gpu_stats_rows(data)) == 8
    again = load(tmp_path / "gpu_stats_x.json")
    assert again.format == "gpu_stats"
    np.testing.assert_allclose(again.time_s, data.time_s)
    np.testing.assert_allclose(again.unix_s, data.unix_s, atol=1e-3)
    for before, after in zip(data.devices, again.devices, strict=True):
        assert (after.identity.name, after.identity.vendor) == (before.identity.name, "nvidia")
        for metric in ("util_gpu_percent", "mem_used_bytes", "power_w", "temp_gpu_c"):
            np.testing.assert_array_equal(after.metrics[metric], before.metrics[metric])
    np.testing.assert_array_equal(again.host["cpu_percent"], data.host["cpu_percent"])
    assert [p.name for p in again.phases()] == ["train"]
    assert again.notes == ()


def test_without_a_gpu_there_is_a_row_a_time_with_null_gpu_fields(tmp_path: Path) -> None:
    data = load_recording(recording_file(tmp_path / "r.jsonl", gpus=0))
    write_array(tmp_path / "s.json", gpu_stats_rows(data))
    rows = json.loads((tmp_path / "s.json").read_text())
    assert len(rows) == 4
    assert {rows[0][key] for key in ("gpu_index", "gpu_name", "utilization", "memory_used", "power")} == {
        None
    }
    again = load(tmp_path / "s.json")
    assert again.devices == ()
    np.testing.assert_array_equal(again.host["cpu_percent"], [0.0, np.nan, 20.0, np.nan])


def test_a_file_that_was_cut_anywhere_gives_its_whole_rows_and_says_so(tmp_path: Path) -> None:
    data = load_recording(recording_file(tmp_path / "r.jsonl", gpus=1))
    write_array(tmp_path / "s.json", gpu_stats_rows(data))
    text = (tmp_path / "s.json").read_bytes()
    ends = [i + 1 for i in range(len(text)) if text[i : i + 2] in (b"},", b"}\n") and text[i - 1 : i] != b"{"]
    ends = [end for end in ends if text[end : end + 2] in (b",\n", b"\n]")]
    assert len(ends) == 4
    for cut in range(ends[0], len(text) - 2, 7):
        (tmp_path / "cut.json").write_bytes(text[:cut])
        cut_data = load(tmp_path / "cut.json")
        whole = sum(end <= cut for end in ends)
        assert len(cut_data.time_s) == whole
        assert cut_data.notes[0] == f"truncated after {whole} complete objects"


GPUTOP = {
    "gpu_index": 0,
    "gpu_name": "Card 0",
    "gpu_type": "nvidia_desktop",
    "utilization": 90.0,
    "memory_used": 1024.0,
    "memory_total": 8192.0,
    "memory_percent": 12.5,
    "temperatures": {"GPU": 60.0},
    "temp_limits": {"GPU": {"slowdown": 90.0}},
    "power": 200.0,
    "power_limit": 300.0,
    "fan_speed": 0,
    "clocks": {"gpu": 1400.0, "memory": 1200.0},
    "clock_states": {},
    "performance_level": "unknown",
}


@pytest.mark.promise("R4.2")
def test_a_gputop_sample_has_every_key_of_its_format(tmp_path: Path) -> None:
    first = next(gputop_samples(load_recording(recording_file(tmp_path / "r.jsonl"))))
    assert first.pop("timestamp")[19:] == ".250000"
    assert first == GPUTOP


def test_an_amd_card_has_its_own_labels_there(tmp_path: Path) -> None:
    first = next(gputop_samples(load_recording(recording_file(tmp_path / "r.jsonl", vendor="amd"))))
    assert first["gpu_type"] == "amd"
    assert first["temperatures"] == {"Edge": 60.0}
    assert first["clocks"] == {"sclk": 1400.0, "mclk": 1200.0}


def test_gputop_reads_back_with_the_last_value_where_a_tick_lacked_one(tmp_path: Path) -> None:
    data = load_recording(recording_file(tmp_path / "r.jsonl"))
    write_array(tmp_path / "g.json", gputop_samples(data, physical_index=1))
    again = load(tmp_path / "g.json")
    assert again.format == "gputop"
    np.testing.assert_allclose(again.time_s, [0.0, 0.5, 1.0, 1.5])
    (track,) = again.devices
    assert track.identity.physical_index == 1
    np.testing.assert_array_equal(track.metrics["power_w"], [200.0, 201.0, 201.0, 203.0])
    np.testing.assert_array_equal(track.metrics["clock_mem_mhz"], [1200.0] * 4)
    assert "fan_percent" not in track.metrics
    assert track.identity.static["temp_slowdown_c"] == 90.0


@pytest.mark.promise("R4.2")
def test_the_multi_gpu_array_has_the_aggregates_and_reads_back(tmp_path: Path) -> None:
    data = load_recording(recording_file(tmp_path / "r.jsonl"))
    samples = list(gputop_multi_gpu_samples(data))
    assert samples[1]["aggregate_stats"] == {
        "total_memory_used": 4096.0,
        "total_memory_total": 16384.0,
        "total_memory_percent": 25.0,
        "average_utilization": 90.5,
        "total_power": 402.0,
        "total_power_limit": 600.0,
        "max_temperature": 61.0,
        "gpu_count": 2,
    }
    write_array(tmp_path / "m_multi_gpu.json", iter(samples))
    again = load(tmp_path / "m_multi_gpu.json")
    assert again.format == "gputop multi-GPU"
    np.testing.assert_array_equal(again.devices[1].metrics["util_gpu_percent"], [91.0] * 4)


def slow_fan(tmp_path: Path, *, until: int = 99, lost_from: int = 99) -> RecordingData:
    """21 readings a second apart; each fifth has the fan, 42 %, until it fails; GPU 1 is lost at one."""
    samples = []
    for t in range(21):
        values = {"util_gpu_percent": 50.0, "mem_used_bytes": 1.0 * rec.GIB, "power_w": 100.0}
        fan = {"fan_percent": 42.0} if t % 5 == 0 and t <= until else {}
        samples.append(rec.sample(t, {0: values | fan, 1: values if t < lost_from else {}}))
    return rec.loaded(tmp_path, [rec.header([rec.identity(0), rec.identity(1)]), *samples])


def test_what_the_slow_lane_reads_is_carried_for_one_interval_and_never_0(tmp_path: Path) -> None:
    steady = list(gputop_samples(slow_fan(tmp_path)))
    assert [row["fan_speed"] for row in steady] == [42.0] * 21
    failing = list(gputop_samples(slow_fan(tmp_path, until=10)))
    assert [row["fan_speed"] for row in failing] == [42.0] * 16


def test_a_lost_gpu_takes_nobody_elses_rows(tmp_path: Path) -> None:
    data = slow_fan(tmp_path, lost_from=3)
    together = list(gputop_multi_gpu_samples(data))
    counts = [row["aggregate_stats"]["gpu_count"] for row in together]
    assert counts == [2] * 8 + [1] * 13  # its last readings stand for one slow interval of 5 s
    assert [row["power"] for row in together] == [200.0] * 8 + [100.0] * 13
    assert len(list(gputop_samples(data, physical_index=0))) == 21


def test_a_gpu_that_the_format_cannot_say_takes_no_other_with_it(tmp_path: Path) -> None:
    """An instance of MIG gives no utilisation."""
    samples = [
        rec.sample(
            t,
            {
                0: {"mem_used_bytes": 1e9},
                1: {"mem_used_bytes": 1e9, "util_gpu_percent": 5.0, "power_w": 90.0},
            },
        )
        for t in range(3)
    ]
    data = rec.loaded(tmp_path, [rec.header([rec.identity(0), rec.identity(1)]), *samples])
    assert [row["gpu_index"] for row in gputop_samples(data)] == [1, 1, 1]
    assert [row["aggregate_stats"]["gpu_count"] for row in gputop_multi_gpu_samples(data)] == [1, 1, 1]


def test_the_file_of_many_gpus_has_every_key_that_gputop_reads_of_one(tmp_path: Path) -> None:
    data = load_recording(recording_file(tmp_path / "r.jsonl"))
    one, together = next(gputop_samples(data)), next(gputop_multi_gpu_samples(data))
    assert one.keys() - {"gpu_index"} == together.keys() - {"multi_gpu_data", "aggregate_stats"}
    assert {key: type(value) for key, value in one.items() if key in together} == {
        key: type(value) for key, value in together.items() if key in one
    } | {"fan_speed": type(one["fan_speed"])}
    assert together["gpu_name"] == "2 × Card 0, Card 1"
    assert (together["power"], together["memory_percent"]) == (400.0, 12.5)


def test_a_device_that_cannot_be_said_in_gputops_format_is_refused_and_no_file_is_left(
    tmp_path: Path,
) -> None:
    data = load_recording(recording_file(tmp_path / "r.jsonl", drop=("power_w",)))
    with pytest.raises(UsageError, match="GPU 0 does not report power_w"):
        write_array(tmp_path / "g.json", gputop_samples(data))
    assert sorted(path.name for path in tmp_path.iterdir()) == ["r.jsonl"]
    with pytest.raises(UsageError, match="no GPU"):
        next(gputop_samples(load_recording(recording_file(tmp_path / "none.jsonl", gpus=0))))


def test_zeros_that_cannot_be_readings_are_missing_in_formats_that_write_them(tmp_path: Path) -> None:
    samples = [
        {
            **GPUTOP,
            "timestamp": "2026-11-20T10:00:00",
            "power": 0,
            "temperatures": {"GPU": 0},
            "utilization": 0,
        },
        {**GPUTOP, "timestamp": "2026-11-20T10:00:01.500000", "temperatures": {"Edge": 50, "Hotspot": 70}},
    ]
    (tmp_path / "g.json").write_text(json.dumps(samples))
    data = load(tmp_path / "g.json")
    (track,) = data.devices
    np.testing.assert_array_equal(track.metrics["power_w"], [np.nan, 200.0])
    np.testing.assert_array_equal(track.metrics["temp_gpu_c"], [np.nan, 50.0])
    np.testing.assert_array_equal(track.metrics["temp_hotspot_c"], [np.nan, 70.0])
    np.testing.assert_array_equal(track.metrics["util_gpu_percent"], [0.0, 90.0])
    assert data.duration_s == 1.5
    assert any("count as missing" in note for note in data.notes)


@pytest.mark.promise("F4.3")
def test_an_old_gpu_stats_array_is_read_with_metadata_on_its_first_row_only(tmp_path: Path) -> None:
    row = {
        "timestamp": "2025-09-01T10:00:00.1",
        "gpu_name": "W7900",
        "gpu_type": "amd",
        "utilization": 95,
        "memory_used": 1381.5,
        "memory_total": 49136,
        "memory_percent": 2.8,
        "power": 164.6,
        "temperature": 51,
        "fan_speed": 0,
        "elapsed_seconds": 0.0,
    }
    later = {**row, "timestamp": "2025-09-01T10:00:04.1", "elapsed_seconds": 4.0, "power": 0}
    (tmp_path / "s.json").write_text(json.dumps([{**row, "training_metadata": {"model": "resnet18"}}, later]))
    data = load(tmp_path / "s.json")
    assert (data.format, data.duration_s) == ("gpu_stats", 4.0)  # by the timestamps: there are two samples
    np.testing.assert_array_equal(data.devices[0].metrics["mem_used_bytes"], [1381.5 * 2**20] * 2)
    np.testing.assert_array_equal(data.devices[0].metrics["power_w"], [164.6, np.nan])
    assert data.marks[0].metadata == {"model": "resnet18"}


@pytest.mark.parametrize("cut", [False, True])
def test_a_dict_with_samples_counts_from_its_start(tmp_path: Path, cut: bool) -> None:
    whole = json.dumps(
        {
            "model": "gpt2",
            "interval_ms": 500,
            "total_samples": 2,
            "samples": [
                {
                    "timestamp": 0.0,
                    "gpu_id": 0,
                    "memory_mb": 100,
                    "memory_total_mb": 1000,
                    "gpu_utilization": 7,
                },
                {
                    "timestamp": 0.5,
                    "gpu_id": 0,
                    "memory_used_mb": 200,
                    "memory_total_mb": 1000,
                    "gpu_utilization": 8,
                },
            ],
        }
    )
    (tmp_path / "s.json").write_text(whole[:-30] if cut else whole)
    data = load(tmp_path / "s.json")
    assert data.format == "samples"
    expected = [100.0 * 2**20] if cut else [100.0 * 2**20, 200.0 * 2**20]
    np.testing.assert_array_equal(data.devices[0].metrics["mem_used_bytes"], expected)
    assert np.isnan(data.unix_s).all()
    assert "UTC" not in rec.text_of(recording_page(recording_result(data)))
    assert ("truncated after 1 complete objects" in data.notes) == cut


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "is empty"),
        ("hello\n", "not in a format"),
        ("[]", "contains no reading"),
        ('[{"a": 1}]', "its objects are not readings"),
        ("[1, 2]", "contains no reading"),
        ("a, b\n1, 2\n", "not an nvidia-smi header"),
        ("timestamp, power.draw [W]\nnever, 7\n", "contains no reading"),
        ('[{"timestamp": "soon", "utilization": 1}]', "contains no reading"),
    ],
)
def test_what_is_no_recording_is_refused_with_its_name(tmp_path: Path, text: str, message: str) -> None:
    (tmp_path / "odd file").write_text(text)
    with pytest.raises(RecordError, match=message) as refused:
        load(tmp_path / "odd file")
    assert "odd file" in str(refused.value)


def test_a_failed_write_leaves_the_old_file_and_nothing_else(tmp_path: Path) -> None:
    path = tmp_path / "s.json"
    path.write_text("old")
    with pytest.raises(ValueError, match="Out of range"):
        write_array(path, iter([dict[str, Any](a=1), {"a": float("nan")}]))
    assert path.read_text() == "old"
    assert [p.name for p in tmp_path.iterdir()] == ["s.json"]
    with pytest.raises(EnvironmentUnfitError, match="absent"):
        write_array(tmp_path / "absent" / "s.json", iter([]))

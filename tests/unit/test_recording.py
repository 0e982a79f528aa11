"""Loading a recording: columns are whole, gaps are NaN, and a cut file is salvaged and says so."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from gpuproof.base.errors import RecordError
from gpuproof.readings.recording import HOST, Columns, load_recording
from gpuproof.readings.window import phase
from gpuproof.records.journal import encode
from gpuproof.records.readings import (
    Counters,
    DeviceIdentity,
    DeviceReading,
    Mark,
    Recording,
    RecordingEnd,
    Sample,
    UnavailableMetrics,
)


def identity(index: int) -> DeviceIdentity:
    return DeviceIdentity(
        physical_index=index,
        vendor="fake",
        vendor_index=index,
        framework_index=index,
        uuid=f"FAKE-{index}",
        pci_bus_id=f"0000:{index:02x}:00.0",
        name="Fake",
        static={"mem_total_bytes": 1024.0},
    )


HEAD = Recording(
    host="node1",
    pid=7,
    boot_id="b",
    gpuproof_version="0",
    unix_s=1000.0,
    monotonic_s=50.0,
    fast_interval_s=0.5,
    slow_interval_s=1.0,
    devices=(identity(0), identity(1)),
    host_facts={},
)


def sample(second: float, **devices: DeviceReading) -> Sample:
    return Sample(
        monotonic_s=50.0 + second,
        unix_s=1000.0 + second,
        lane="fast",
        devices={name[1:]: reading for name, reading in devices.items()},
        host={"host_cpu_percent": 10.0 * second},
    )


def reading(reasons: tuple[str, ...] | None, **values: float) -> DeviceReading:
    return DeviceReading(values=values, throttle_reasons=reasons)


RECORDS = [
    HEAD,
    Counters(monotonic_s=50.0, at="start", devices={"0": {"energy_j": 5.0}}),
    Mark(monotonic_s=50.0, metadata={"phase": "warmup"}),
    sample(0.0, d0=reading((), power_w=100.0), d1=reading(None, power_w=200.0)),
    Mark(monotonic_s=51.0, metadata={"phase": "train", "epoch": 1}),
    sample(1.0, d0=reading(("power_cap",), power_w=110.0, pcie_gen=4.0)),
    UnavailableMetrics(monotonic_s=51.0, physical_index=1, reasons={"power_w": "lost"}),
    sample(3.0, d0=reading(None, power_w=120.0)),
    RecordingEnd(
        monotonic_s=53.0,
        unix_s=1003.0,
        samples=3,
        missed_ticks=0,
        max_jitter_s=0.0,
        own_cpu_s=0.1,
        reason="duration",
    ),
]


def write(path: Path, records: list[object]) -> Path:
    path.write_text("".join(encode(record) + "\n" for record in records))
    return path


def test_columns_have_one_entry_a_sample_and_nan_where_nothing_was_read(tmp_path: Path) -> None:
    data = load_recording(write(tmp_path / "m.jsonl", list(RECORDS)))
    np.testing.assert_array_equal(data.time_s, [0.0, 1.0, 3.0])
    np.testing.assert_array_equal(data.devices[0].metrics["power_w"], [100.0, 110.0, 120.0])
    np.testing.assert_array_equal(data.devices[0].metrics["pcie_gen"], [np.nan, 4.0, np.nan])
    np.testing.assert_array_equal(data.devices[1].metrics["power_w"], [200.0, np.nan, np.nan])
    np.testing.assert_array_equal(data.host["host_cpu_percent"], [0.0, 10.0, 30.0])
    assert data.duration_s == 3.0
    assert data.notes == ()


def test_throttling_that_was_not_told_is_told_apart_from_none(tmp_path: Path) -> None:
    data = load_recording(write(tmp_path / "m.jsonl", list(RECORDS)))
    np.testing.assert_array_equal(data.devices[0].throttle_answered, [True, True, False])
    np.testing.assert_array_equal(data.devices[0].throttle["power_cap"], [False, True, False])
    assert data.devices[1].throttle == {}
    np.testing.assert_array_equal(data.devices[1].throttle_answered, [False, False, False])


def test_phases_run_from_mark_to_mark(tmp_path: Path) -> None:
    data = load_recording(write(tmp_path / "m.jsonl", list(RECORDS)))
    assert [(p.name, p.start_s, p.end_s) for p in data.phases()] == [
        ("warmup", 0.0, 1.0),
        ("train", 1.0, 3.0),
    ]
    np.testing.assert_array_equal(phase(data, name="train").holds(data.time_s), [False, True, True])
    np.testing.assert_array_equal(phase(data, name="warmup").holds(data.time_s), [True, False, False])


def test_a_phase_ends_with_a_null_and_is_not_cut_by_marks_that_repeat_it(tmp_path: Path) -> None:
    marks = [(0.5, "train"), (1.0, "train"), (1.5, None), (2.5, "eval")]
    records = [
        HEAD,
        *(sample(float(second), d0=reading(None, power_w=1.0)) for second in range(5)),
        *(Mark(monotonic_s=50.0 + at, metadata={"phase": phase}) for at, phase in marks),
        Mark(monotonic_s=51.2, metadata={"batch": 4}),
    ]
    data = load_recording(write(tmp_path / "m.jsonl", records))
    assert [(p.name, p.start_s, p.end_s) for p in data.phases()] == [("train", 0.5, 1.5), ("eval", 2.5, 4.0)]
    train, evaluation = (phase(data, name=name).holds(data.time_s) for name in ("train", "eval"))
    np.testing.assert_array_equal(train, [False, True, False, False, False])
    np.testing.assert_array_equal(evaluation, [False, False, False, True, True])


def test_a_recording_cut_at_any_byte_gives_its_whole_samples_and_says_so(tmp_path: Path) -> None:
    whole = write(tmp_path / "m.jsonl", list(RECORDS)).read_bytes()
    head_end = whole.index(b"\n")
    ends = [i for i, byte in enumerate(whole) if byte == ord("\n")]
    is_sample = [isinstance(record, Sample) for record in RECORDS]
    for cut in range(head_end, len(whole) - 1):
        (tmp_path / "cut.jsonl").write_bytes(whole[:cut])
        data = load_recording(tmp_path / "cut.jsonl")
        assert len(data.time_s) == sum(s for s, end in zip(is_sample, ends, strict=True) if end <= cut)
        assert any("has no end" in note for note in data.notes) == (cut < ends[-1])


def test_a_damaged_line_in_the_middle_costs_only_itself(tmp_path: Path) -> None:
    path = write(tmp_path / "m.jsonl", list(RECORDS))
    lines = path.read_text().splitlines()
    lines[5] = lines[5][:40]
    path.write_text("\n".join(lines) + "\n")
    data = load_recording(path)
    np.testing.assert_array_equal(data.time_s, [0.0, 3.0])
    assert data.notes == ("1 damaged line(s) skipped (line 6)",)


def test_a_file_that_is_no_recording_is_refused_with_its_name(tmp_path: Path) -> None:
    path = write(tmp_path / "m.jsonl", list(RECORDS[1:]))
    with pytest.raises(RecordError, match=r"m\.jsonl: contains no recording line"):
        load_recording(path)
    with pytest.raises(RecordError, match="No such file"):
        load_recording(tmp_path / "absent.jsonl")


def test_a_recording_of_a_newer_schema_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "m.jsonl"
    path.write_text(encode(HEAD).replace('"v":2', '"v":3') + "\n")
    with pytest.raises(RecordError, match="schema version 3"):
        load_recording(path)


def test_columns_of_several_owners_hold_what_each_gave() -> None:
    columns = Columns()
    columns.put(0, "0", {})
    columns.put(0, HOST, {"load": 1.0})
    columns.put(1, "0", {"power_w": 300, "temp_gpu_c": 60.0})
    columns.put(2, "1", {"temp_gpu_c": 61.0})
    columns.put(2, "0", {"temp_gpu_c": 62.0, "power_w": 310.0})
    with pytest.raises(TypeError):
        columns.put(1, "1", {"clock_sm_mhz": 1980.0, "power_w": "n/a"})  # type: ignore[dict-item]
    found = columns.arrays(3)
    assert {owner: list(own) for owner, own in found.items()} == {
        "0": ["power_w", "temp_gpu_c"],
        HOST: ["load"],
        "1": ["temp_gpu_c"],
    }
    np.testing.assert_array_equal(found["0"]["power_w"], [np.nan, 300.0, 310.0])
    np.testing.assert_array_equal(found["0"]["temp_gpu_c"], [np.nan, 60.0, 62.0])
    np.testing.assert_array_equal(found["1"]["temp_gpu_c"], [np.nan, np.nan, 61.0])
    np.testing.assert_array_equal(found[HOST]["load"], [1.0, np.nan, np.nan])
    assert Columns().arrays(3) == {}

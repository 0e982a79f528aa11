"""Samples by column: what a line holds, what a damaged one costs, and that old files say the same."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

import recordings as rec
from gpuproof.base.errors import RecordError
from gpuproof.readings import sample_columns
from gpuproof.readings.recording import RecordingData, load_recording
from gpuproof.records.codec import to_json
from gpuproof.records.journal import decode, encode
from gpuproof.records.readings import Sample


def samples(num: int = 12) -> list[Sample]:
    """Two GPUs of which one is lost for a while and one never has a fan; a slow reading each fourth."""
    made = []
    for t in range(num):
        first = {"power_w": 200.0 + t, "temp_gpu_c": 60.0, "energy_j": 1e8 + 0.125 * t}
        first |= {"fan_percent": 40.0} if t % 4 == 0 else {}
        second = {"power_w": 100.5, "temp_gpu_c": 60.0} if t not in (5, 6) else {}
        reasons: dict[int, tuple[str, ...]] = {0: ("power_cap",) if t % 2 else ()}
        if second:
            reasons[1] = ()
        host = {"cpu_percent": 12.5 + t} if t % 4 == 0 else {}
        made.append(rec.sample(t, {0: first, 1: second}, reasons=reasons, host=host))
    return made


def as_version_1(sample: Sample) -> str:
    return json.dumps({"kind": "sample", "v": 1, **to_json(sample)})


def loaded(path: Path, lines: list[str]) -> RecordingData:
    head = encode(rec.header([rec.identity(0), rec.identity(1)]))
    path.write_text("\n".join([head, *lines]) + "\n")
    return load_recording(path)


def assert_same(one: RecordingData, other: RecordingData) -> None:
    np.testing.assert_array_equal(one.time_s, other.time_s)
    for mine, theirs in zip(one.devices, other.devices, strict=True):
        assert mine.metrics.keys() == theirs.metrics.keys()
        for name, column in mine.metrics.items():
            np.testing.assert_array_equal(column, theirs.metrics[name], err_msg=name)
        assert mine.throttle.keys() == theirs.throttle.keys()
        for reason, flags in mine.throttle.items():
            np.testing.assert_array_equal(flags, theirs.throttle[reason])
        np.testing.assert_array_equal(mine.throttle_answered, theirs.throttle_answered)
    assert one.host.keys() == other.host.keys()
    np.testing.assert_array_equal(one.host["cpu_percent"], other.host["cpu_percent"])


def test_a_line_comes_back_as_the_sample_that_it_was() -> None:
    for sample in [*samples(), rec.sample(0, {}), rec.sample(1, {0: {}}, reasons={0: ("other",)})]:
        assert decode(encode(sample)) == sample
        assert decode(as_version_1(sample)) == sample


@pytest.mark.parametrize("chunk", [1, 5, 2048])
def test_both_versions_and_a_mixture_say_the_same(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, chunk: int
) -> None:
    monkeypatch.setattr(sample_columns, "CHUNK", chunk)
    monkeypatch.setattr(sample_columns, "BATCH", min(chunk, 64))
    new, old = [encode(s) for s in samples()], [as_version_1(s) for s in samples()]
    data = loaded(tmp_path / "new.jsonl", new)
    assert_same(data, loaded(tmp_path / "old.jsonl", old))
    assert_same(data, loaded(tmp_path / "mixed.jsonl", [*new[:7], *old[7:]]))
    assert "fan_percent" not in data.devices[1].metrics
    assert data.devices[0].metrics["temp_gpu_c"].strides == (0,)


@pytest.mark.parametrize(
    ("key", "value"),
    [("values", [1]), ("values", 3), ("values", ["x", [1, 2], 3]), ("values", [[1], 2, 3]), ("names", 4),
     ("gpus", None), ("gpus", 4), ("reasons", [5]), ("host", {}), ("values", [{}, 1, 2]), ("unix_s", "then")],
)  # fmt: skip
def test_a_damaged_line_is_named_and_costs_itself_alone(tmp_path: Path, key: str, value: object) -> None:
    lines = [
        encode(rec.sample(t, {0: {"a_w": 1.0 + t, "b_w": 2.0, "c_w": 3.0}, 1: {"a_w": 5.0}}))
        for t in range(6)
    ]
    lines[3] = json.dumps({**json.loads(lines[3]), key: value})
    data = loaded(tmp_path / "r.jsonl", lines)
    assert any("line 5" in note for note in data.notes)
    given = data.devices[0].readings("a_w")
    np.testing.assert_array_equal(given, [1.0, 2.0, 3.0, 5.0, 6.0])
    with pytest.raises(RecordError):
        decode(lines[3])


def test_only_the_metrics_that_are_asked_for_are_kept(tmp_path: Path) -> None:
    path = tmp_path / "r.jsonl"
    whole = loaded(path, [encode(s) for s in samples()])
    part = load_recording(path, metrics=("power_w",))
    assert [list(track.metrics) for track in part.devices] == [["power_w"], ["power_w"]]
    np.testing.assert_array_equal(part.devices[0].metrics["power_w"], whole.devices[0].metrics["power_w"])
    assert whole.host
    assert not part.host

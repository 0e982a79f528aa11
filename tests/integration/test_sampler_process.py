"""The sampling process on its own: how it ends, what it leaves, what a failing device does to others."""

from __future__ import annotations

import json
import os
import resource
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from gpuproof.processes.start import our_command
from gpuproof.readings.recording import load_recording
from gpuproof.records.journal import decode
from gpuproof.records.readings import Counters, Recording, RecordingEnd, Sample

PATIENCE_S = 300.0


def environment(fake: str) -> dict[str, str]:
    return {**os.environ, "GPUPROOF_FAKE_DEVICES": fake}


def sample(*arguments: str, fake: str = "2", **options: Any) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [*our_command("gpuproof.worker.commands.sample"), *arguments],
        env=environment(fake),
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
        **options,
    )


def started(*arguments: str, fake: str = "2", **options: Any) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [*our_command("gpuproof.worker.commands.sample"), *arguments],
        env=environment(fake),
        text=True,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        **options,
    )


def decoded(lines: Sequence[str]) -> list[Any]:
    return [decode(line) for line in lines]


def wait_for_samples(path: Path, number: int) -> None:
    """Wait until so many samples are in the file; the deadline only bounds a test that has failed."""
    end_s = time.monotonic() + PATIENCE_S
    while not path.exists() or path.read_text().count('"kind":"sample"') < number:
        assert time.monotonic() < end_s, "waited in vain"
        time.sleep(0.02)


def test_standard_output_carries_the_records_from_first_to_last(tmp_path: Path) -> None:
    done = sample("--interval=0.1", "--duration=0.5")
    assert (done.returncode, done.stderr) == (0, "")
    records = decoded(done.stdout.splitlines())
    assert isinstance(records[0], Recording)
    assert isinstance(records[-1], RecordingEnd)
    samples = [record for record in records if isinstance(record, Sample)]
    assert 2 <= records[-1].samples == len(samples) <= 6  # a late tick is left out
    assert records[-1].own_cpu_s > 0
    start, end = [record for record in records if isinstance(record, Counters)]
    assert end.devices["1"]["energy_j"] > start.devices["1"]["energy_j"]


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGHUP])
def test_a_signal_ends_the_recording_in_good_order(tmp_path: Path, number: signal.Signals) -> None:
    path = tmp_path / "r.jsonl"
    # Whoever runs the tests under nohup has its children ignore SIGHUP; a terminal does not.
    process = started(
        f"--out={path}", "--interval=30", preexec_fn=lambda: signal.signal(number, signal.SIG_DFL)
    )
    wait_for_samples(path, 1)
    process.send_signal(number)
    _, stderr = process.communicate(timeout=PATIENCE_S)
    assert (process.returncode, stderr) == (0, "")
    data = load_recording(path)
    assert data.end is not None
    assert data.end.reason == number.name
    assert [c.at for c in data.counters] == ["start", "end"]
    assert [p.name for p in tmp_path.iterdir()] == ["r.jsonl"]


@pytest.mark.promise("F4.6")
def test_every_sample_that_was_taken_survives_kill_9(tmp_path: Path) -> None:
    path = tmp_path / "r.jsonl"
    process = started(f"--out={path}", "--interval=0.02", fake="8")
    wait_for_samples(path, 20)
    process.kill()
    process.communicate(timeout=PATIENCE_S)
    data = load_recording(path)
    whole = [line for line in path.read_text().splitlines(keepends=True) if line.endswith("\n")]
    assert len(data.time_s) == sum('"kind":"sample"' in line for line in whole) >= 20
    assert all(track.metrics["power_w"].size == len(data.time_s) for track in data.devices)
    assert data.end is None


def test_it_ends_when_its_parent_is_gone(tmp_path: Path) -> None:
    path = tmp_path / "r.jsonl"
    script = """
import subprocess, sys, os, time
subprocess.Popen(sys.argv[1:] + [f"--parent-pid={os.getpid()}"])
while not os.path.exists(sys.argv[-1].partition("=")[2]): time.sleep(0.02)
"""
    command = [*our_command("gpuproof.worker.commands.sample"), "--interval=0.1", f"--out={path}"]
    subprocess.run(
        [sys.executable, "-c", script, *command], env=environment("1"), timeout=PATIENCE_S, check=True
    )
    end_s = time.monotonic() + PATIENCE_S
    while '"recording_end"' not in path.read_text():
        assert time.monotonic() < end_s, "waited in vain"
        time.sleep(0.02)
    end = load_recording(path).end
    assert end is not None
    assert end.reason == "parent gone"


def test_a_lost_gpu_stops_its_own_readings_only(tmp_path: Path) -> None:
    path = tmp_path / "r.jsonl"
    assert sample(f"--out={path}", "--interval=0.1", "--duration=4", fake="3:lost").returncode == 0
    data = load_recording(path)
    healthy, _, lost = (track.metrics["power_w"] for track in data.devices)
    (told,) = (event for event in data.events if event.event == "lost")
    assert told.physical_index == 2
    gone = np.isnan(lost)
    assert gone[-1]
    assert gone[data.time_s >= data.seconds_in(told.monotonic_s)].all()
    assert not gone[data.time_s < data.seconds_in(told.monotonic_s)].all()
    assert not np.isnan(healthy[gone]).all(), "the others are read meanwhile"
    latest = [u.reasons for u in data.unavailable if u.physical_index == 2][-1]
    assert "power_w" in latest


def test_a_hanging_driver_call_stops_its_own_readings_only(tmp_path: Path) -> None:
    path = tmp_path / "r.jsonl"
    assert sample(f"--out={path}", "--interval=0.1", "--duration=4", fake="2:hang").returncode == 0
    data = load_recording(path)
    assert not np.isnan(data.devices[0].metrics["power_w"]).all()
    hung = data.devices[1].metrics.get("power_w")
    assert hung is None or np.isnan(hung[-1])
    assert data.end is not None
    assert data.end.reason == "duration"
    assert "hung" in {event.event for event in data.events if event.physical_index == 1}


def test_only_the_chosen_devices_are_read(tmp_path: Path) -> None:
    done = sample("--duration=0.2", "--devices=1,2", fake="4")
    head, *records = decoded(done.stdout.splitlines())
    assert [device.physical_index for device in head.devices] == [1, 2]
    assert {key for r in records if isinstance(r, Sample) for key in r.devices} == {"1", "2"}


def test_a_file_that_holds_a_recording_is_not_written_to(tmp_path: Path) -> None:
    path = tmp_path / "r.jsonl"
    path.write_text("mine\n")
    done = sample(f"--out={path}", "--duration=0.2")
    assert done.returncode == 2
    assert "r.jsonl: the file exists" in done.stderr
    assert path.read_text() == "mine\n"


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        (["--interval=0"], 2, "0.01 s or more"),
        (["--interval=soon"], 2, "not a number of seconds"),
        (["--devices=7"], 2, "this host has 2 GPU"),
        (["--devices=x"], 2, "not a list of device indices"),
        (["--out=/nowhere/r.jsonl"], 5, "cannot write the recording"),
    ],
)
def test_mistakes_are_told_in_a_line(arguments: list[str], code: int, message: str) -> None:
    done = sample(*arguments, "--duration=0.2")
    assert done.returncode == code
    assert message in done.stderr
    assert "Traceback" not in done.stderr


def test_a_reader_that_goes_away_ends_the_sampler_quietly() -> None:
    process = started("--interval=0.05")
    assert process.stdout is not None
    process.stdout.readline()
    process.stdout.close()
    assert process.wait(timeout=PATIENCE_S) == 0
    assert process.stderr is not None
    assert process.stderr.read() == ""
    process.stderr.close()


def test_a_file_that_may_not_grow_keeps_every_whole_record(tmp_path: Path) -> None:
    path = tmp_path / "r.jsonl"
    limit = 96 * 1024

    def small_disk() -> None:
        resource.setrlimit(resource.RLIMIT_FSIZE, (limit, limit))

    done = sample(f"--out={path}", "--interval=0.01", "--duration=30", fake="8", preexec_fn=small_disk)
    assert done.returncode == 5
    assert "cannot continue recording" in done.stderr
    data = load_recording(path)
    assert len(data.time_s) > 10
    assert all(json.loads(line) for line in path.read_text().splitlines())


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A disk of 256 KiB."""
    folder = tmp_path / "disk"
    folder.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=256k", "gpuproof-test", str(folder)]
    if shutil.which("mount") is None or subprocess.run(mount, capture_output=True).returncode:
        pytest.skip("mounting a small disk needs root")
    yield folder
    subprocess.run(["umount", str(folder)], check=True)


def test_a_full_disk_still_gets_the_last_line(small_disk: Path) -> None:
    path = small_disk / "r.jsonl"
    done = sample(f"--out={path}", "--interval=0.01", "--duration=60", fake="8")
    assert done.returncode == 5
    assert "r.jsonl: cannot continue recording (No space left on device)" in done.stderr
    data = load_recording(path)
    assert data.end is not None
    assert data.end.reason == "cannot write: No space left on device"
    assert data.end.samples == len(data.time_s) > 10
    assert data.notes == ()


@pytest.mark.promise("F4.7")
def test_the_duration_of_a_recording_comes_from_its_timestamps(tmp_path: Path) -> None:
    path = tmp_path / "r.jsonl"
    sample(f"--out={path}", "--interval=0.3", "--duration=1")
    data = load_recording(path)
    assert len(data.time_s) >= 2  # the first at once, and the last at the end
    assert data.end is not None
    assert data.duration_s == data.time_s[-1] - data.time_s[0]
    assert 0 < data.duration_s <= data.end.monotonic_s - data.recording.monotonic_s

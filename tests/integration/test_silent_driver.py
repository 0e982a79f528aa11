"""A driver that hangs while it is opened: the work starts, the host is recorded, and the GPU is named.

The fake driver answers only once a file is there, and who makes that file says what came first.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

from gpuproof.devices.opening import SILENT_NAME
from gpuproof.readings.recording import load_recording
from gpuproof.records.journal import decode
from gpuproof.records.readings import DevicesAppeared, Recording, Sample
from gpuproof.worker.commands.probe import DRIVER_PATIENCE_S
from gpuproof.worker.commands.sample import OPEN_PATIENCE_S, READY_AFTER_S

GPUPROOF = [sys.executable, "-P", "-m", "gpuproof"]
PATIENCE_S = 300.0


def run(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    env = {name: value for name, value in os.environ.items() if not name.startswith("GPUPROOF_")}
    hanging = {"GPUPROOF_FAKE_DEVICES": "2:hang_open", "GPUPROOF_FAKE_RELEASE": str(folder / "release")}
    return subprocess.run(
        [*GPUPROOF, *arguments],
        cwd=folder,
        env={**env, **hanging},
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
        stdin=subprocess.DEVNULL,
    )


def test_the_command_starts_before_the_driver_answers_and_its_devices_join(tmp_path: Path) -> None:
    """The command itself releases the driver: had it waited for it, no device would ever have come."""
    seen = 'until grep -qs \'"kind":"sample"\' out.jsonl; do sleep 0.1; done'
    work = f"echo began; {seen}; touch release; until grep -q devices_appeared out.jsonl; do sleep 0.1; done"
    done = run(tmp_path, "monitor", "record", "--out", "out.jsonl", "--", "sh", "-c", work)
    assert (done.returncode, done.stdout) == (0, "began\n")

    records = [decode(line) for line in (tmp_path / "out.jsonl").read_text().splitlines()]
    kinds = [type(record) for record in records]
    assert isinstance(records[0], Recording)
    assert [identity.name for identity in records[0].devices] == [SILENT_NAME] * 2
    before = [r for r in records[: kinds.index(DevicesAppeared)] if isinstance(r, Sample)]
    assert before
    assert any("cpu_percent" in sample.host or "mem_used_bytes" in sample.host for sample in before)

    recording = load_recording(tmp_path / "out.jsonl")
    assert [track.identity.name for track in recording.devices] == ["Fake device"] * 2
    assert len(recording.devices[1].readings("power_w")) > 0
    assert {event.event for event in recording.events} == {"not_answering", "appeared"}


def test_a_driver_that_never_answers_leaves_the_hosts_readings_and_its_name(tmp_path: Path) -> None:
    work = 'until grep -qs \'"kind":"sample"\' results/*.jsonl; do sleep 0.1; done; exit 3'
    done = run(tmp_path, "monitor", "exec", "--config-name", "x", "--", "sh", "-c", work)
    assert done.returncode == 3
    (path,) = (tmp_path / "results").glob("*.jsonl")
    recording = load_recording(path)
    assert len(recording.host["mem_used_bytes"]) > 1
    (summary,) = (tmp_path / "results").glob("*_summary.txt")
    text = summary.read_text()
    assert text.count(f": {SILENT_NAME} (fake, ffff:f") == 2
    assert "not answering since " in text
    assert "the call to open its driver has not returned" in text


def test_nothing_waits_ten_seconds_for_a_driver() -> None:
    """`record`, `exec` and `live` wait as the sampler does, `doctor` as the probe does."""
    assert max(OPEN_PATIENCE_S, READY_AFTER_S, DRIVER_PATIENCE_S) < 10
    assert OPEN_PATIENCE_S < 1


def test_the_live_view_draws_while_the_driver_hangs(tmp_path: Path) -> None:
    """Nobody releases the driver: had the view waited for it, there would be no look."""
    done = run(tmp_path, "monitor", "live", "--once", "--interval", "0.2")
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.count("not answering since ") >= 2
    assert "CPU" in done.stdout


def test_doctor_names_the_gpu_and_since_when_it_does_not_answer(tmp_path: Path) -> None:
    done = run(tmp_path, "doctor", "--json")
    assert done.returncode == 5
    checks = {check["name"]: check["outcome"] for check in json.loads(done.stdout)["checks"]}
    assert checks["accelerators"]["status"] == "FAIL"
    assert "ffff:f1:00.0: not answering since " in checks["accelerators"]["measured"]
    assert checks["PyTorch"]["status"] == "PASS"

"""Faults of devices: planted in what a driver tells, read by the sampler of the node side, and judged.

What stands beside the work of a fleet of one host is a real recording of devices that are made up
(`GPUPROOF_FAKE_DEVICES`), so that everything from the driver's answers on is as in any run.
"""

from __future__ import annotations

import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

from gpuproof.base.errors import EnvironmentUnfitError
from gpuproof.launchers.commands import node_side_for
from gpuproof.processes.start import safe_environment
from gpuproof.readings.recording import RecordingData, load_recording
from gpuproof.records.codec import to_json
from gpuproof.selftest.fleet import Fleet, with_fault
from gpuproof.selftest.judging import Turned, floor, judge_fleet

NUM_DEVICES = 4
RECORDED_S = 4.0
"""Long enough for what happens to the last device after two or three seconds."""
MARGIN_S = 0.5
LAST = f"FAKE-{NUM_DEVICES - 1:04d}"
TIMEOUT_S = 60.0
BUSY = floor("devices are busy", "gpu", "utilisation", {"stage": "training"}, (80.0, "%"))
CHECKS = ("xid",)
STATE = ("ecc_uncorrected_count", "remapped_rows_failed", "remapped_rows_pending")


def judge_devices(
    folder: Path, seed: int, *, scenario: str = "normal", slower: float = 1.0, is_lost_later: bool = False
) -> Turned:
    """Judge a host whose last device does what the scenario says; it slows its work by a factor.

    With `is_lost_later` the driver lists no device any more beside all launches but the first.

    Raises:
        EnvironmentUnfitError: the sampler cannot be started, or reads nothing.
    """
    recordings = [record(f"{NUM_DEVICES}:{scenario}", folder / "recording.jsonl")]
    if is_lost_later:
        recordings.append(record("0:normal", folder / "later.jsonl"))
    read = load_recording(recordings[0])
    fleet = Fleet(
        hosts=("node1",),
        num_devices=NUM_DEVICES,
        uuid="FAKE-{index:04d}",
        device_name="Fake device",
        listed=[_listed(read, place) for place in range(len(read.devices))],
        begins_monotonic_s=read.recording.monotonic_s + MARGIN_S,
        seed=seed,
        window_s=max(0.1, read.duration_s - 2 * MARGIN_S),
    )
    if slower != 1.0:
        fleet = with_fault(fleet, slower={LAST: slower})
    return judge_fleet(fleet, folder, recordings=recordings, rules=[BUSY], checks=CHECKS)


def record(devices: str, path: Path) -> Path:
    """Record devices that are made up (`N:SCENARIO`), by the sampler of the node side.

    Raises:
        EnvironmentUnfitError: it cannot be started, or ends badly.
    """
    environment = safe_environment() | {"GPUPROOF_FAKE_DEVICES": devices}
    with node_side_for(None) as worker:
        words = ["record", "--out", str(path), "--duration", str(RECORDED_S), "--interval", "0.1"]
        command = [sys.executable, *worker, *words, "--quiet"]
        done = subprocess.run(
            command, env=environment, capture_output=True, text=True, timeout=TIMEOUT_S, check=False
        )
    if done.returncode or not path.is_file():
        last = (done.stderr.strip().splitlines() or ["it said nothing"])[-1]
        raise EnvironmentUnfitError(f"the sampler failed: {last}", place="selftest")
    return path


def _listed(read: RecordingData, place: int) -> dict[str, Any]:
    """Return a device as a host's facts list it, with the last of its counters."""
    identity = read.devices[place].identity
    last = read.counters[-1].devices.get(str(identity.physical_index), {}) if read.counters else {}
    state = {name: last[name] for name in STATE if name in last}
    missing = {name: "the driver does not give it" for name in STATE if name not in state}
    return {**to_json(replace(identity, framework_index=place)), "state": state, "state_unavailable": missing}

"""How often is work mistaken for a hang, and how soon is a hang detected? Simulated readings, no GPU.

    python benchmarks/spinning_false_alarms.py [HOURS]

For each kind of workload, simulates HOURS hours of readings at 5 Hz and at 1 Hz (`tests/spinning_traces.py`),
and counts the periods that the rule reports as busy without work. For hangs of random length, counts how many
of those over ten seconds it finds. The traces are synthetic, not measured: they show how the rule handles
noise, not how GPUs behave.
"""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests"))

import recordings as rec
from gpuproof.readings.recording import DeviceTrack, RecordingData
from gpuproof.readings.warnings import SPIN_METRICS, spins
from spinning_traces import HEALTHY, LIMIT_W, Columns, trace


def main(hours: float) -> None:
    """Print one line per kind of work and rate, then the hangs."""
    draw = np.random.default_rng(20261122)
    for interval_s in (0.2, 1.0):
        for kind in HEALTHY:
            n = int(hours * 3600 / interval_s)
            alarms = _stretches(trace(kind, draw, n=n, interval_s=interval_s), interval_s)
            print(f"{kind:<14} every {interval_s:g} s, {hours:g} h: {alarms} false alarms")
        seen, due = 0, 0
        for length_s in draw.uniform(11.0, 60.0, 200):
            parts = [
                trace(name, draw, n=int(span_s / interval_s) + 2, interval_s=interval_s)
                for name, span_s in (("training", 30.0), ("hung", length_s), ("training", 30.0))
            ]
            joined = tuple(np.concatenate(columns) for columns in zip(*parts, strict=True))
            seen, due = seen + (_stretches((joined[0], joined[1], joined[2]), interval_s) == 1), due + 1
        print(f"hangs of 11 to 60 s, every {interval_s:g} s: {seen} of {due} found, each once")


def _stretches(columns: Columns, interval_s: float) -> int:
    n = len(columns[0])
    identity = rec.identity(0, vendor="nvidia", static={"power_limit_default_w": LIMIT_W})
    track = DeviceTrack(
        identity=identity,
        metrics=dict(zip(SPIN_METRICS, columns, strict=True)),
        throttle={},
        throttle_answered=np.zeros(n, dtype=bool),
    )
    data = RecordingData(
        source="simulated",
        format="gpuproof",
        recording=rec.header([identity], fast_interval_s=interval_s),
        time_s=np.arange(n, dtype=np.float64) * np.float64(interval_s),
        unix_s=np.full(n, np.nan),
        devices=(track,),
        host={},
    )
    return len(spins(data, track))


if __name__ == "__main__":
    main(float(sys.argv[1]) if len(sys.argv) > 1 else 10.0)

"""Recordings for tests of `gpuproof.readings`: written line by line as the sampler writes them."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from gpuproof.comparison.recordings import RecordingComparison
from gpuproof.comparison.winners import side_of
from gpuproof.readings.recording import RecordingData, load_recording
from gpuproof.records import readings as r
from gpuproof.records.journal import encode
from gpuproof.records.page import Page
from gpuproof.records.result import Measure
from gpuproof.report.terminal import terminal_text

MONOTONIC_S = 1000.0
UNIX_S = 1_795_181_400.0
"""2026-11-20 13:30:00 UTC."""
GIB = 2**30


def identity(index: int = 0, **changes: Any) -> r.DeviceIdentity:
    """Describe a fake GPU with round numbers."""
    facts: dict[str, Any] = {
        "physical_index": index,
        "vendor": "fake",
        "vendor_index": index,
        "framework_index": index,
        "uuid": f"GPU-{index:04d}",
        "pci_bus_id": f"0000:{0x10 + index:02x}:00.0",
        "name": "Fake GPU 80",
        "static": {
            "driver_version": "1.2.3",
            "mem_total_bytes": 80 * GIB,
            "power_limit_default_w": 400.0,
            "clock_sm_max_mhz": 1980.0,
            "temp_slowdown_c": 87.0,
        },
    }
    return r.DeviceIdentity(**{**facts, **changes})


def header(devices: Sequence[r.DeviceIdentity], **changes: Any) -> r.Recording:
    """Open a recording at a round time, one sample a second, the slow lane each five."""
    facts: dict[str, Any] = {
        "host": "node7",
        "pid": 42,
        "boot_id": None,
        "gpuproof_version": "0.0.0",
        "unix_s": UNIX_S,
        "monotonic_s": MONOTONIC_S,
        "fast_interval_s": 1.0,
        "slow_interval_s": 5.0,
        "devices": tuple(devices),
        "host_facts": {},
    }
    return r.Recording(**{**facts, **changes})


def sample(
    at_s: float,
    devices: dict[int, dict[str, float]],
    *,
    reasons: dict[int, tuple[str, ...]] | None = None,
    host: dict[str, float] | None = None,
) -> r.Sample:
    """Make one sample; devices that `reasons` does not name tell no throttle reasons."""
    told = reasons or {}
    return r.Sample(
        monotonic_s=MONOTONIC_S + at_s,
        unix_s=UNIX_S + at_s,
        lane="fast",
        devices={
            str(index): r.DeviceReading(values=values, throttle_reasons=told.get(index))
            for index, values in devices.items()
        },
        host=host or {},
    )


def counters(at_s: float, at: str, devices: dict[int, dict[str, float]]) -> r.Counters:
    """Read running totals."""
    return r.Counters(
        monotonic_s=MONOTONIC_S + at_s, at=at, devices={str(index): c for index, c in devices.items()}
    )


def mark(at_s: float, **metadata: Any) -> r.Mark:
    """Make what the watched work said of itself."""
    return r.Mark(monotonic_s=MONOTONIC_S + at_s, metadata=metadata)


def end(at_s: float, *, samples: int, exit_code: int | None = 0) -> r.RecordingEnd:
    """Close a recording in good order."""
    return r.RecordingEnd(
        monotonic_s=MONOTONIC_S + at_s,
        unix_s=UNIX_S + at_s,
        samples=samples,
        missed_ticks=2,
        max_jitter_s=0.012,
        own_cpu_s=0.5,
        reason="the command ended",
        exit_code=exit_code,
    )


def write(path: Path, records: Sequence[Any]) -> Path:
    """Write records as JSON Lines."""
    path.write_text("".join(encode(record) + "\n" for record in records), encoding="utf-8")
    return path


def loaded(folder: Path, records: Sequence[Any], *, name: str = "run.jsonl") -> RecordingData:
    """Write records and load them."""
    return load_recording(write(folder / name, records))


def text_of(page: Page, *, width: int = 110) -> str:
    """Return a page of a recording as a log has it."""
    return terminal_text(page, width=width)


def compared(found: RecordingComparison, metric: str) -> dict[str, Measure]:
    """Return the figures of a metric in a comparison: A, B, B minus A, and what would have been shown."""
    return {side_of(m): m for m in found.means if m.labels["metric"] == metric}


def differences(found: RecordingComparison) -> list[Measure]:
    """Return B minus A of every metric."""
    return [measure for measure in found.means if side_of(measure) == "B minus A"]

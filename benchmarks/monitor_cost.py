"""What does the sampler cost? CPU time of one core, memory, and bytes per sample.

    python benchmarks/monitor_cost.py [--interval 0.1] [--gpus 8] [--seconds 20] [--repeats 5]

Each repeat records for a short and a long time; start-up cancels in the difference. The devices are
gpuproof's own fake ones and, if there is a C compiler, the real NVIDIA binding on a fake NVML library, whose
look-ups are included in the measurement. A driver's own time is not included: that needs a real GPU. Nothing
here passes or fails; it prints the results, with n.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from gpuproof.processes.start import our_command

SHORT_S = 3.0
REPOSITORY = Path(__file__).resolve().parents[1]


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """One recording: its cost and its output."""

    seconds: float
    cpu_s: float
    peak_rss_bytes: int
    samples: int
    sample_bytes: int
    missed_ticks: int
    max_jitter_s: float


def main() -> None:
    """Measure each kind of device available here and print a table."""
    options = _options()
    print(f"{platform.machine()}, {os.cpu_count()} CPUs, Python {platform.python_version()}")
    print(f"{options.gpus} GPUs, every {options.interval:g} s, n = {options.repeats}: median (min to max)\n")
    with tempfile.TemporaryDirectory() as folder:
        kinds = {"fake devices": {"GPUPROOF_FAKE_DEVICES": str(options.gpus)}}
        kinds |= _fake_nvml(Path(folder), options.gpus)
        for kind, variables in kinds.items():
            _measure(kind, variables, options=options, folder=Path(folder))


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="What the sampler costs.")
    parser.add_argument("--interval", type=float, default=0.1)
    parser.add_argument("--gpus", type=int, default=8)
    parser.add_argument("--seconds", type=float, default=20.0)
    parser.add_argument("--repeats", type=int, default=5)
    return parser.parse_args()


def _fake_nvml(folder: Path, gpus: int) -> dict[str, dict[str, str]]:
    """Build the tests' fake NVML library; return an empty mapping without a compiler or the binding."""
    sys.path.insert(0, str(REPOSITORY / "tests"))
    try:
        import pynvml  # noqa: F401  # whether the binding is there

        from fakes import nvml_library

        nvml_library.build(folder)
    except (ImportError, OSError, subprocess.CalledProcessError) as error:
        print(f"without the NVML binding on a fake library: {error}")
        return {}
    answers: dict[str, object] = {"s.gpus": gpus}
    for index in range(gpus):
        answers |= nvml_library.gpu(index)
    text = ";".join(f"{key}={value}" for key, value in answers.items())
    return {"NVML binding, fake library": {"LD_LIBRARY_PATH": str(folder), "FAKE_NVML_VALUES": text}}


def _measure(kind: str, variables: Mapping[str, str], *, options: argparse.Namespace, folder: Path) -> None:
    pairs = []
    for _ in range(options.repeats):
        short = _record(SHORT_S, variables, interval_s=options.interval, folder=folder)
        long = _record(SHORT_S + options.seconds, variables, interval_s=options.interval, folder=folder)
        pairs.append((short, long))
    cpu_s = [long.cpu_s - short.cpu_s for short, long in pairs]
    samples = [long.samples - short.samples for short, long in pairs]
    written = [long.sample_bytes / long.samples for _, long in pairs]
    print(kind)
    _line("share of one core", [100 * cpu / options.seconds for cpu in cpu_s], "%")
    _line("CPU time per sample", [1000 * cpu / n for cpu, n in zip(cpu_s, samples, strict=True)], "ms")
    _line("peak resident memory", [long.peak_rss_bytes / 2**20 for _, long in pairs], "MiB")
    _line("on disk per sample", [n / 1024 for n in written], "KiB")
    _line(
        "start-up",
        [
            1000 * (short.cpu_s - c * SHORT_S / options.seconds)
            for (short, _), c in zip(pairs, cpu_s, strict=True)
        ],
        "ms of CPU time",
    )
    _line("latest reading", [1000 * long.max_jitter_s for _, long in pairs], "ms after its deadline")
    _line("missed ticks", [float(long.missed_ticks) for _, long in pairs], "")
    print()


def _record(seconds: float, variables: Mapping[str, str], *, interval_s: float, folder: Path) -> Run:
    path = folder / "recording.jsonl"
    path.unlink(missing_ok=True)
    command = [
        *our_command("gpuproof.worker.commands.sample"),
        f"--interval={interval_s}",
        f"--duration={seconds}",
    ]
    env = {name: value for name, value in os.environ.items() if not name.startswith("GPUPROOF_FAKE")}
    process = subprocess.Popen([*command, f"--out={path}"], env={**env, **variables})
    _, status, usage = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode:
        sys.exit(f"the sampler exited with {process.returncode}")
    lines = path.read_bytes().splitlines(keepends=True)
    samples = [line for line in lines if line.startswith(b'{"kind":"sample"')]
    end = json.loads(lines[-1])
    if b'"devices":{}' in samples[0]:
        sys.exit("no device was read")
    return Run(
        seconds=seconds,
        cpu_s=usage.ru_utime + usage.ru_stime,
        peak_rss_bytes=usage.ru_maxrss * 1024,
        samples=len(samples),
        sample_bytes=sum(len(line) for line in samples),
        missed_ticks=end["missed_ticks"],
        max_jitter_s=end["max_jitter_s"],
    )


def _line(label: str, values: list[float], unit: str) -> None:
    low, middle, high = min(values), statistics.median(values), max(values)
    print(f"  {label:26} {middle:8.2f} ({low:.2f} to {high:.2f}) {unit}")


if __name__ == "__main__":
    main()

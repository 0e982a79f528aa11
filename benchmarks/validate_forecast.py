"""How accurate is the duration that `gpuproof validate` predicts? Compares it with actual times.

Each validation really runs, on this machine's GPUs or, if there are none, on its CPU. Prints the forecast
range and number of launches, the actual ones, the fraction of the planned time that it took, and the load at
its end. Ranges assume an otherwise idle machine. Usage: python benchmarks/validate_forecast.py [--quick]
"""

from __future__ import annotations

import argparse
import subprocess
import sys
from os import getloadavg
from pathlib import Path
from tempfile import TemporaryDirectory
from time import monotonic

from gpuproof.store.names import read_config
from gpuproof.store.run import RunDirectory
from gpuproof.suites.base import THIS_MACHINE
from gpuproof.suites.forecast import LEAST_OF_PLAN
from gpuproof.suites.registry import suite_on
from pairing import machine_line

VALIDATIONS: dict[str, tuple[str, ...]] = {
    "collectives": ("--mode", "nccl"),
    "training": ("--mode", "training"),
    "all stages": (),
    "all stages, three launches": ("--runs", "3"),
}
COMMON = ("--recipe", "quick", "--allow-cpu", "--nproc", "2", "--model", "resnet18", "--batch-size", "4")


def score(words: tuple[str, ...], folder: Path) -> tuple[bool, str]:
    """Run one validation; return whether its time was within its range, and the report line."""
    command = [sys.executable, "-m", "gpuproof", "validate", *COMMON, *words, "--run.run_id=v"]
    began_s = monotonic()
    subprocess.run(command, cwd=folder, capture_output=True, check=False)
    took_s = monotonic() - began_s
    run = RunDirectory.open(folder / "results" / "validate-quick" / "v")
    config = read_config(run)
    suite = suite_on(config, THIS_MACHINE)
    forecast = suite.remaining(suite.begin(config, THIS_MACHINE))
    assert forecast.seconds is not None
    low_s, high_s = LEAST_OF_PLAN * forecast.seconds, forecast.seconds
    share = took_s / high_s
    held = low_s <= took_s <= high_s
    return held, (
        f"{low_s:5.0f} to {high_s:5.0f} s forecast, {took_s:5.0f} s taken ({share:.2f} of the "
        f"plan); {forecast.num_launches} launches forecast, {len(run.cases())} run; "
        f"{'held' if held else 'MISSED'}, "
        f"load {getloadavg()[0]:.1f}"
    )


def main() -> int:
    """Print a line for each validation, and how many ranges were correct."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="only the two shortest")
    options = parser.parse_args()
    chosen = list(VALIDATIONS.items())[: 2 if options.quick else None]
    print(machine_line())
    num_held = 0
    for name, words in chosen:
        with TemporaryDirectory() as folder:
            held, line = score(words, Path(folder))
        num_held += held
        print(f"{name:27} {line}", flush=True)
    print(f"{num_held} of {len(chosen)} ranges were correct")
    return 0 if num_held == len(chosen) else 1


if __name__ == "__main__":
    raise SystemExit(main())

"""How large are the pages of 8 GPUs over an hour and of 512 nodes, and how long do they take?

Writes synthetic files of such runs, evaluates each run, and writes its page; asserts nothing. The values in
the records are made up; only their amount matches real runs. The time to evaluate is reported separately from
the time to lay out and write the page. Budget: under 3 MB and 3 s for the page of 8 GPUs over an hour, under
10 MB and 20 s for that of 512 nodes. Usage: python benchmarks/page_size.py [NODES]
"""

from __future__ import annotations

import sys
import tempfile
import time
from pathlib import Path

from gpuproof.campaign.conclude import conclude
from gpuproof.report.html import html
from gpuproof.store.run import RunDirectory
from gpuproof.suites.load.plan import TESTS

sys.path.append(str(Path(__file__).resolve().parents[1] / "tests"))  # the synthetic runs are from the tests

import load_by_hand as suite
from gpu_run_by_hand import gpu_run


def measured(title: str, run: RunDirectory) -> None:
    """Evaluate a run, create its page, and print the cost of both."""
    marks = [(time.monotonic(), time.process_time())]
    concluded = conclude(run)
    marks.append((time.monotonic(), time.process_time()))
    text = html(concluded.page)
    marks.append((time.monotonic(), time.process_time()))
    print(f"{title}: {len(text.encode()) / 1e6:.2f} MB")
    for what, (wall_s, cpu_s), (end_s, end_cpu_s) in zip(
        ("concluded", "page"), marks, marks[1:], strict=False
    ):
        print(f"  {what:<10} {end_s - wall_s:6.2f} s, CPU time {end_cpu_s - cpu_s:6.2f} s")


def main() -> None:
    """Write, measure, print."""
    nodes = int(sys.argv[1]) if len(sys.argv) > 1 else 512
    with tempfile.TemporaryDirectory() as folder:
        hour = gpu_run(Path(folder) / "hour", gpus=8, launches=1, seconds=3600.0, interval_s=1.0)
        measured("8 GPUs, an hour, 1 reading/s", hour)
        tests = [suite.done(test, monitored=False) for test in TESTS]
        fleet = suite.on_fleet(Path(folder) / "fleet", {f"node{node}": tests for node in range(nodes)})
        measured(f"{nodes} nodes, twelve tests", fleet)


if __name__ == "__main__":
    main()

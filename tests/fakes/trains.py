"""A program that tests start as the command of a matrix: it takes memory and time, and writes its figures."""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import time
from pathlib import Path


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("--optimizer", default="sgd")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--epochs", type=int, default=2)
    parser.add_argument("--ends", default="well")
    parser.add_argument("--sampled", action="store_true", help="end once its readings have begun")
    parser.add_argument("--out", type=Path, default=os.environ.get("GPUPROOF_OUTPUT_DIR"))
    options = parser.parse_args()
    folder = Path(options.out)
    accuracy = {"sgd": 0.8, "adam": 0.9}[options.optimizer] + 0.001 * options.seed
    content = {"epochs": list(range(options.epochs)), "test_accuracy": [accuracy] * options.epochs}
    (folder / "training_metrics.json").write_text(json.dumps(content))
    if "GPUPROOF_MARKS_FD" in os.environ:
        os.write(int(os.environ["GPUPROOF_MARKS_FD"]), b'{"phase": "train", "epoch": 1}\n')
    while options.sampled and not _is_sampled(Path(os.environ["GPUPROOF_OUTPUT_DIR"]).parent):
        time.sleep(0.05)
    print("device", os.environ.get("CUDA_VISIBLE_DEVICES"))
    if options.ends == "badly":
        print("out of luck", file=sys.stderr)
        return 7
    if options.ends == "never":
        sleep = [sys.executable, "-c", "import time; time.sleep(600)"]
        child = subprocess.Popen(sleep, start_new_session=True)
        (folder / "child.txt").write_text(str(child.pid))
        time.sleep(600)
    return 0


def _is_sampled(case: Path) -> bool:
    return any('{"kind":"sample"' in path.read_text() for path in case.glob("monitor-*.jsonl"))


if __name__ == "__main__":
    sys.exit(main())

"""What do other tools and gpuproof report for the same model, relative to a bare loop run alongside?

Runs timm's resnet18 with random weights, forward only in fp32, with the same batch, image and threads: in a
bare loop, in `gpuproof run`, in timm's own benchmark.py and in optimum-benchmark, each in a fresh process,
interleaved, with the bare loop twice for the noise floor. Prints the rate that each reports relative to the
bare loop's. A ratio other than 1 may be an error of the tool, or its own overhead, which it includes. Missing
tools are listed, with how to install them; the others are still compared.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from tempfile import TemporaryDirectory

from gpuproof.statistics.launches import interval_of_launches
from pairing import Block, interval_text, machine_line, palindromes, ratios
from timed_commands import HERE, LAUNCHER_VARIABLES, gpuproof, python

IMAGE = 64
WITH_TIMM = python("-m", "peer_models")
INSTALL = {
    "gpuproof": "pip install -c constraints.txt timm",
    "bare": "pip install -c constraints.txt timm",
    "timm": "get benchmark.py from timm's repository, for the installed version (it is not in the "
    "package), and set its path with --timm-benchmark",
    "optimum": "pip install torch==2.13.0 optimum-benchmark 'transformers<4.50' timm into a "
    "separate environment, and set its Python with --optimum-python",
}
OPTIMUM_CONFIG = """
defaults: [benchmark, {{scenario: inference}}, {{launcher: inline}}, {{backend: pytorch}}, _self_]
name: peer
scenario:
  iterations: {steps}
  duration: 0
  warmup_runs: {warmup}
  latency: true
  input_shapes: {{batch_size: {batch}, num_channels: 3, height: {image}, width: {image}}}
backend:
  {{device: cpu, no_weights: false, library: timm, task: image-classification, model: resnet18,
   model_type: resnet18, torch_dtype: float32, intra_op_num_threads: {threads}}}
hydra: {{run: {{dir: .}}, job: {{chdir: true}}}}
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Work:
    """The workload that every peer runs."""

    batch: int
    warmup: int
    steps: int
    threads: int
    timm_benchmark: Path | None
    optimum_python: Path | None


def main() -> None:
    """Run the available peers, interleaved; print what each reports relative to the bare loop."""
    options = _options()
    work = Work(
        batch=options.batch,
        warmup=5,
        steps=options.steps,
        threads=options.threads,
        timm_benchmark=options.timm_benchmark,
        optimum_python=options.optimum_python,
    )
    print(machine_line())
    print(f"timm's resnet18, forward, fp32, {work.batch} images of {IMAGE} pixels, {work.threads} threads")
    with TemporaryDirectory() as folder:
        sides = _sides_that_work(work, Path(folder))
        if "bare" in sides:
            _compare(work, sides, Path(folder), num_blocks=options.blocks)


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        "--blocks", type=int, default=6, help="number of palindromes, each of which yields a ratio"
    )
    parser.add_argument("--batch", type=int, default=8)
    parser.add_argument("--steps", type=int, default=40)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--timm-benchmark", type=Path, metavar="FILE", help="timm's benchmark.py")
    parser.add_argument(
        "--optimum-python", type=Path, metavar="FILE", help="a Python with optimum-benchmark installed"
    )
    parser.add_argument("--quick", dest="blocks", action="store_const", const=2, help="2 blocks")
    return parser.parse_args()


def _sides_that_work(work: Work, folder: Path) -> list[str]:
    """Try each side once, and report why the others are skipped."""
    found = []
    for side, missing in (
        ("bare", find_spec("timm") is None),
        ("gpuproof", find_spec("timm") is None),
        ("timm", work.timm_benchmark is None or find_spec("timm") is None),
        ("optimum", work.optimum_python is None),
    ):
        reason = "not installed" if missing else _try(side, work, folder)
        if reason is None:
            found.append(side)
        else:
            print(f"{side}: skipped, {reason}\n  {INSTALL[side]}")
    return found


def _try(side: str, work: Work, folder: Path) -> str | None:
    try:
        SIDES[side](work, folder)
    except RuntimeError as error:
        return str(error)
    return None


def _compare(work: Work, sides: list[str], folder: Path, *, num_blocks: int) -> None:
    """Run the blocks; print the ratios."""
    order = [*sides, "bare again"]
    blocks: list[Block] = [
        [(side, SIDES[side.removesuffix(" again")](work, folder)) for side in block]
        for block in palindromes(order, num_blocks=num_blocks)
    ]
    rates = {side: [rate for block in blocks for name, rate in block if name == side] for side in order}
    for side in order:
        listed = ", ".join(f"{rate:.1f}" for rate in rates[side])
        print(f"{side:12} reports samples/s: {listed}")
    for side in order[1:]:
        interval = interval_of_launches(ratios(blocks, side, base="bare"))
        print(f"{side:12} over bare: {interval_text(interval)}")


def run_bare(work: Work, folder: Path) -> float:
    """Time a loop as a person would write it; return samples per second."""
    words = [f"--{name}={getattr(work, name)}" for name in ("batch", "warmup", "steps", "threads")]
    command = [*WITH_TIMM, str(HERE / "bare_timm.py"), f"--image={IMAGE}", *words]
    return float(_output(command, work, folder).splitlines()[-1])


def run_gpuproof(work: Work, folder: Path) -> float:
    """Return the rate that `gpuproof run` reports, samples per second."""
    run_id = f"run-{len(list(folder.glob('runs/*')))}"
    words = [
        *("--kind=inference", "--model.name=python:peer_models:TimmResNet18", "--model.num_classes=1000"),
        *("--model.channels_last=false", "--training.precision=fp32", "--data.name=synthetic"),
        *(f"--data.batch_size={work.batch}", f"--data.image_size={IMAGE}", "--distributed.device=cpu"),
        *(f"--benchmark.warmup_steps={work.warmup}", "--benchmark.measure_by=steps", "--run.repeats=1"),
        *(f"--benchmark.measure_steps={work.steps}", f"--distributed.threads_per_rank={work.threads}"),
        *("--run.save_dir=.", "--run.experiment_name=runs", f"--run.run_id={run_id}"),
    ]
    _output(gpuproof("run", "quick", *words), work, folder)
    summary = json.loads((folder / "runs" / run_id / "run_summary.json").read_text())
    return float(summary["throughput_samples_per_s"])


def run_timm(work: Work, folder: Path) -> float:
    """Return the rate that timm's benchmark.py reports, samples per second."""
    results = folder / "timm.json"
    words = [
        *("--bench", "inference", "--model", "resnet18", "-b", str(work.batch), "--img-size", str(IMAGE)),
        *("--device", "cpu", "--precision", "float32", "--num-warm-iter", str(work.warmup)),
        *("--num-bench-iter", str(work.steps), "--results-format", "json", "--results-file", str(results)),
    ]
    _output([*WITH_TIMM, str(work.timm_benchmark), *words], work, folder)
    return float(json.loads(results.read_text())["infer_samples_per_sec"])


def run_optimum(work: Work, folder: Path) -> float:
    """Return the rate that optimum-benchmark reports, samples per second."""
    place = folder / "optimum"
    place.mkdir(exist_ok=True)
    fields = {"batch": work.batch, "warmup": work.warmup, "steps": work.steps, "threads": work.threads}
    (place / "peer.yaml").write_text(OPTIMUM_CONFIG.format(**fields, image=IMAGE))
    report = place / "benchmark_report.json"
    report.unlink(missing_ok=True)
    words = ["optimum_benchmark.cli:main", "--config-dir", str(place), "--config-name", "peer"]
    command = [str(work.optimum_python), *WITH_TIMM[1:], *words]
    _output(command, work, place)
    if not report.exists():  # it exits with 0 in any case
        raise RuntimeError("it wrote no benchmark_report.json")
    found = json.loads(report.read_text())
    return float(found["forward"]["throughput"]["value"])


SIDES: Mapping[str, Callable[[Work, Path], float]] = {
    "bare": run_bare,
    "gpuproof": run_gpuproof,
    "timm": run_timm,
    "optimum": run_optimum,
}


def _output(command: list[str], work: Work, folder: Path) -> str:
    """Run a command offline with the requested number of threads; return its output.

    Raises:
        RuntimeError: it failed; the message is the last line of its output.
    """
    kept = {name: value for name, value in os.environ.items() if name not in LAUNCHER_VARIABLES}
    path = os.pathsep.join(filter(None, [str(HERE / "plugin"), os.environ.get("PYTHONPATH")]))
    threads = {"OMP_NUM_THREADS": str(work.threads), "MKL_NUM_THREADS": str(work.threads)}
    offline = {"HF_HUB_OFFLINE": "1", "TRANSFORMERS_OFFLINE": "1"}
    result = subprocess.run(
        command,
        cwd=folder,
        env={**kept, **threads, **offline, "PYTHONPATH": path},
        capture_output=True,
        text=True,
        check=False,
    )
    if result.returncode != 0:
        raise RuntimeError((result.stderr.strip().splitlines() or ["it failed without a message"])[-1])
    return result.stdout


if __name__ == "__main__":
    main()

"""Every example of the five older tools runs as it is typed, from a checkout.

`tests/seed_examples.md` is what their users type and have. Each piece of it in backticks stands here: in a
line that is run with a window of a few steps behind it, as a shape of `seed_shapes`, or with the test of it.
"""

from __future__ import annotations

import csv
import json
import re
from collections.abc import Collection, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from gpuproof.base.errors import ExitCode
from old_tree_by_hand import record_of, tree_of_recordings
from older_checkout import ROOT, make_checkout, typed
from running import MEASURED
from seed_shapes import SHAPES
from ssh_hosts import hosts_in
from sshd import can_serve, ssh_world

LIST = ROOT / "tests" / "seed_examples.md"
ELSEWHERE: Mapping[str, str] = {
    "pip install -r requirements.txt": "test_notebook.py::test_the_install_line_resolves_to_pinned_versions",
    "notebooks/analysis.ipynb": "test_notebook.py::test_it_draws_throughput_efficiency_time_and_step_times",
    "data/": "../unit/test_download.py::test_a_case_that_asks_for_it_gets_it_and_asks_only_once",
    "srun": "test_slurm.py::test_a_task_a_rank_of_the_users_own_srun",
    "all_reduce_perf -b 8K -e 8G": "../unit/test_nccl_tests.py::test_the_command_line",
}
"""What needs a network, a cluster or another's program → the test that shows it."""
LOAD = {
    "system_info": "hostname gpu_names cuda_version pytorch_version",
    "test_summary": "requested_duration_minutes actual_duration_seconds total_tests successful_tests "
    "failed_tests",
    "results": [
        "test_name test_type description model_name batch_size throughput_samples_per_second "
        "avg_iteration_time_ms peak_gpu_memory_mb peak_gpu_utilization_percent success"
    ],
}
EPOCH = (
    "epoch throughput_samples_per_s epoch_time_s total_steps measured_steps measured_samples mean_step_ms "
    "p50_step_ms p95_step_ms"
)
SUMMARY = (
    "experiment_name run_id world_size precision channels_last batch_size global_batch_size "
    "effective_batch_size total_steps total_samples total_measured_time_s total_wall_clock_s commit_hash env "
    "notes"
)
TRAINED = {
    "results/*/run_*/metrics_epoch.jsonl": [EPOCH],
    "results/*/run_*/run_summary.json": SUMMARY,
    "results/*/run_*/summary.csv": ["experiment_name run_id throughput_samples_per_s"],
}
CLUSTER = (
    "model world_size batch_size_per_gpu global_batch_size avg_step_time_ms throughput_samples_per_second "
    "nccl_overhead_ms gpu_utilization_pct backend"
)
RECORD = (
    "timestamp gpu_name gpu_type utilization memory_used memory_total memory_percent power temperature "
    "elapsed_seconds training_metadata"
)
BATCHES = ["batch_size detailed_runs"]
LONG = (pytest.mark.long,)
LIGHT = "--distributed.threads_per_rank=1 --monitoring.enabled=false"
FEW_BATCHES = "--num-epochs 1 --num-batches 1 --run.repeats=1 --distributed.threads_per_rank=1"
FEW_STEPS = (
    "--benchmark.warmup_steps=1 --benchmark.measure_steps=2 --data.batch_size=2 --data.image_size=8 "
    f"--run.repeats=1 {LIGHT}"
)
FEW_RUNS = f"--batch-sizes 8 --runs 1 --benchmark.measure_steps=5 --benchmark.warmup_steps=1 {LIGHT}"
TWO_CPUS = "--device cpu --max-devices 2 --scaling strong"
FEW_ITERATIONS = (
    "--batch-size 2 --active-iterations 3 --warmup-iterations 1 --learning-rate 0.0001 --recipe quick "
    "--data.image_size=32 --training.precision=fp32 --validate.window_s=0.2 --benchmark.own_compute=false "
    f"{LIGHT}"
)
ONE_EPOCH = "--epochs 1 --batch-size 256 --distributed.threads_per_rank=1"
LENET = (
    "python3 scripts/train_with_monitoring.py --model lenet5 --config-name lenet5_adamw_magnitude_70 "
    "--generate-graphs{} -- --optimizer adamw --pruning-method magnitude --target-sparsity 0.7"
)
MULTI = "MASTER_ADDR=127.0.0.1 MASTER_PORT=29547 NNODES=1 NODE_RANK=0 NPROC_PER_NODE=1 "


@dataclass(frozen=True, kw_only=True)
class Example:
    """A line as its users type it, what makes it short here, and what they expect of it."""

    line: str
    of: Collection[str] = ()
    """Pieces of the list that it shows; none: the line itself."""
    added: str = ""
    exits: Collection[int] = MEASURED
    files: Mapping[str, Any] = field(default_factory=dict)
    """Pattern below the checkout → the fields of each such file (`assert_has`); None: a picture or text."""
    prints: Collection[str] = ()
    is_long: bool = False

    @property
    def pieces(self) -> Collection[str]:
        return self.of or (self.line,)


LOADS = {"gpu_loadtest_results_*.json": LOAD}
STUDY = "python run_benchmark.py "
TRAIN = (
    "python src/train.py --model {} --batch-size 64 --active-iterations 100 --warmup-iterations 20 "
    "--data-mode synthetic"
)
TRAIN_OF = (
    "python src/train.py",
    "--model resnet50|transformer --batch-size 64 --active-iterations 100 --warmup-iterations 20 "
    "--data-mode synthetic|cifar10|imagenet",
)
JUDGED = {"results/validate-quick/run_*/validation_result.json": CLUSTER}
EXAMPLES = (
    Example(line="python gpu_loadtest.py", added=FEW_BATCHES, files=LOADS),
    Example(
        line="python gpu_loadtest.py --num-epochs 5 --num-batches 500 --output results.json",
        of=("--num-epochs 5 --num-batches 500 --output results.json",),
        added=FEW_BATCHES,
        files={"results.json": LOAD},
    ),
    Example(
        line="python gpu_loadtest.py --log-file gpu_test.log --num-epochs 2 --num-batches 100 "
        "--num-workers 4",
        of=("--log-file gpu_test.log --num-epochs 2 --num-batches 100 --num-workers 4",),
        added=FEW_BATCHES,
        files={**LOADS, "gpu_test.log": None},
    ),
    Example(
        line="python gpu_loadtest.py --quick -o r.json --device cpu --metrics-sample-rate 5.0",
        of=("--quick", "-o", "--device cuda|cpu", "--metrics-sample-rate 5.0"),
        added=FEW_BATCHES,
        files={"r.json": LOAD},
    ),
    Example(
        line="python gpu_loadtest.py --device cuda",
        of=("--device cuda|cpu",),
        exits=(ExitCode.UNFIT_ENVIRONMENT,),
        prints=("--device cpu",),
    ),
    Example(
        line="python cli.py test load --deployment-file cluster.json --ssh-key ~/.ssh/key.pem --num-epochs 3 "
        "--num-batches 200",
        added=f"{FEW_BATCHES} --device cpu --known-hosts known_hosts",
        files={"gpu_loadtest_results_*.json": {"successful_results": [LOAD]}},
    ),
    Example(
        line="bash scripts/run_single_node.sh 1 configs/synthetic_resnet50.yaml",
        added=f"{FEW_STEPS} --training.precision=fp32 --profiling.enabled=true",
        files={**TRAINED, "results/*/run_*/trace_rank0.json": "traceEvents"},
    ),
    Example(
        line="bash scripts/run_single_node.sh 4 configs/cifar100_resnet50.yaml --training.precision=bf16",
        added=f"{FEW_STEPS} --training.compile.enabled=false --data.num_workers=0",
        files=TRAINED,
        is_long=True,  # four ranks of ResNet-50 on a processor; the same with a small model is not
    ),
    Example(
        line="bash scripts/run_single_node.sh 4 configs/cifar100_resnet50.yaml --training.precision=bf16 ",
        of=("bash scripts/run_single_node.sh 4 configs/cifar100_resnet50.yaml --training.precision=bf16",),
        added=f"{FEW_STEPS} --training.compile.enabled=false --data.num_workers=0 --data.image_size=32 "
        "--model.name=simple_cnn",
        files=TRAINED,
    ),
    Example(
        line=f"{MULTI}bash scripts/run_multi_node.sh configs/synthetic_resnet50.yaml",
        of=("bash scripts/run_multi_node.sh configs/synthetic_resnet50.yaml",),
        added=f"{FEW_STEPS} --training.precision=fp32",
        files=TRAINED,
    ),
    Example(
        line="bash scripts/run_single_node.sh 1 configs/synthetic_resnet50.yaml --training.epochs=5 "
        "--data.batch_size=512",
        of=("--training.epochs=5 --data.batch_size=512",),
        added="--benchmark.enabled=false --data.samples_per_epoch=512 --data.image_size=32 "
        f"--model.name=simple_cnn --training.precision=fp32 --run.repeats=1 {LIGHT}",
        files=TRAINED,
        prints=tuple(f"epoch {epoch}: " for epoch in range(1, 6)),
    ),
    Example(
        line=f"{STUDY}--model medium --gpu-mode auto",
        added=FEW_RUNS,
        files={"results/benchmark_medium_single_gpu.json": BATCHES},
        prints=(
            "=== Batch size 8 ===",
            "Run 1/1",
            "Benchmark complete! Results saved to: results/benchmark_medium",
        ),
    ),
    Example(
        line=f"{STUDY}--model large --gpu-mode auto --runs 25",
        of=("--model large --gpu-mode auto --runs 25",),
        added=FEW_RUNS,
        files={"results/benchmark_large_single_gpu.json": BATCHES},
        prints=("Run 1/1",),
    ),
    Example(
        line=f"{STUDY}--model medium --batch-sizes 32 64 128 --runs 20",
        of=(
            "--model medium --batch-sizes 32 64 128 --runs 20",
            "Run i/N",
            "Benchmark complete! Results saved to: …",
        ),
        added=FEW_RUNS.removeprefix("--batch-sizes 8 "),
        files={"results/benchmark_medium_single_gpu.json": BATCHES},
        prints=(
            *("=== Batch size 32 ===", "=== Batch size 64 ===", "=== Batch size 128 ===", "Run 1/1"),
            "Benchmark complete! Results saved to: results/benchmark_medium_single_gpu.json",
        ),
    ),
    Example(
        line=f"{STUDY}--model medium --gpu-mode multi --runs 50",
        of=("--model medium --gpu-mode multi --runs 50",),
        exits=(1,),
        prints=("requires at least 2 GPUs; found 0",),
    ),
    Example(
        line=f"{STUDY}--model large --runs 10 --output-dir ./quick_test",
        of=(
            *("--model large --runs 10 --output-dir ./quick_test", "benchmark_MODEL_single_gpu.json"),
            "benchmark_MODEL_multi_gpu.json",
        ),
        added=f"--gpu-mode multi {TWO_CPUS} {FEW_RUNS}",
        files={f"quick_test/benchmark_large_{side}_gpu.json": BATCHES for side in ("single", "multi")},
    ),
    Example(
        line=TRAIN.format("resnet50"),
        of=TRAIN_OF,
        added=f"{FEW_ITERATIONS} --nproc 1",
        exits=(ExitCode.INCONCLUSIVE,),
        files=JUDGED,
    ),
    Example(
        line=TRAIN.format("transformer"),
        of=TRAIN_OF,
        added=f"{FEW_ITERATIONS} --nproc 1 --model.options.seq_len=8".replace("--data.image_size=32 ", ""),
        exits=(ExitCode.INCONCLUSIVE,),
        files=JUDGED,
    ),
    Example(
        line=f"torchrun --nproc-per-node 2 --master-port 29548 {TRAIN.format('resnet50')[7:]}",
        of=("torchrun",),
        added=FEW_ITERATIONS,
        exits=(1,),  # torchrun's, where a rank ends with another code than 0
        files=JUDGED,
        prints=("INCONCLUSIVE",),
    ),
    Example(
        line="bash scripts/entrypoint.sh --model resnet50 --batch-size 64",
        of=("scripts/entrypoint.sh",),
        added=f"{FEW_ITERATIONS} --mode training --allow-cpu --nproc=1",
        exits=(ExitCode.INCONCLUSIVE,),
        files=JUDGED,
        prints=("starts: gpuproof validate",),
    ),
    Example(
        line=LENET.format(""),
        added=ONE_EPOCH,
        prints=("gpuproof monitor exec --format=adamwprune",),
        files={
            "results/gpu_stats_lenet5_adamw_magnitude_70_*[0-9].json": [RECORD],
            "results/gpu_stats_lenet5_adamw_magnitude_70_*_summary.txt": None,
            "results/gpu_stats_lenet5_adamw_magnitude_70_*_plot.png": None,
        },
    ),
    Example(
        line=LENET.format(" --compare-with results/gpu_stats_run1_*.json"),
        of=("--compare-with results/gpu_stats_run1_*.json",),
        added=ONE_EPOCH,
        files={"results/gpu_stats_lenet5_adamw_magnitude_70_*_comparison.txt": None},
    ),
    Example(
        line="make test-matrix",
        added="MATRIX=small.yaml",
        files={"results/matrix/*/test_matrix_results_*/all_results.json": None},
    ),
    Example(
        line="make parallel",
        added="MATRIX=small.yaml",
        files={"results/matrix/*/test_matrix_results_*/all_results.json": None},
    ),
    Example(
        line="python3 scripts/gputop.py --compare A.json B.json",
        exits=(ExitCode.DONE,),
        prints=("memory", "cannot tell"),
    ),
    Example(
        line="python3 scripts/visualize_gpu_comparison.py A.json B.json",
        exits=(ExitCode.DONE,),
        prints=("memory",),
    ),
    Example(
        line="python3 scripts/generate_gpu_memory_comparison.py test_matrix_results_20250829_040425",
        exits=(ExitCode.DONE,),
        files={
            f"test_matrix_results_20250829_040425/graphs/{name}.png": None
            for name in ("gpu_memory_timeline", "training_memory_comparison")
        },
        prints=("mean memory 1,381.5 MiB compared with 1,494.0 MiB: 7.5 % less",),
    ),
)


def pieces_of(text: str) -> set[str]:
    """Return what stands in backticks."""
    return set(re.findall(r"`([^`]+)`", text))


@pytest.mark.parametrize(
    "path", [LIST, ROOT.parent / "shared" / "seed-examples.md"], ids=["copy", "original"]
)
def test_every_piece_of_the_list_has_its_row(path: Path) -> None:
    if not path.exists():
        path = LIST  # the list that it is a copy of lies beside the project's own checkout alone
    shown = {piece for example in EXAMPLES for piece in example.pieces} | set(SHAPES) | set(ELSEWHERE)
    assert pieces_of(path.read_text(encoding="utf-8")) == shown


def test_what_is_shown_elsewhere_is_a_test() -> None:
    for place in ELSEWHERE.values():
        file, _, name = place.partition("::")
        assert f"def {name}(" in (Path(__file__).parent / file).read_text(encoding="utf-8"), place


def assert_has(content: Any, fields: Any) -> None:
    """A text names keys of an object; a list, of each in it; a dictionary says what is under its keys."""
    if isinstance(fields, str):
        assert set(fields.split()) <= set(content), set(fields.split()) - set(content)
    elif isinstance(fields, list):
        assert content
        for part in content:
            assert_has(part, fields[0])
    else:
        for key, part in fields.items():
            assert_has(content[key], part)


def content_of(path: Path) -> Any:
    text = path.read_text(encoding="utf-8")
    if path.suffix == ".jsonl":
        return [json.loads(line) for line in text.splitlines()]
    return list(csv.DictReader(text.splitlines())) if path.suffix == ".csv" else json.loads(text)


@contextmanager
def hosts_of(folder: Path) -> Iterator[Mapping[str, str]]:
    """Give a home with the key of a deployment of one host, sshd on loopback."""
    with ssh_world(folder.parent / "servers", ("127.0.0.2",)) as world:
        (home := folder.parent / "home" / ".ssh").mkdir(parents=True)
        (home / "key.pem").write_bytes(world.key.read_bytes())
        (home / "key.pem").chmod(0o600)
        (folder / "known_hosts").write_bytes(world.known_hosts.read_bytes())
        hosts_in(world).write_inventory(folder / "cluster.json", world.servers)
        yield {"HOME": str(home.parent)}


def prepare(folder: Path) -> None:
    """Put what the lines name into the checkout: recordings, a tree of them, a matrix of two cases."""
    (folder / "results").mkdir()
    for name in ("A.json", "B.json", "results/gpu_stats_run1_20250829_040425.json"):
        (folder / name).write_text(json.dumps([record_of(second) for second in range(3)]))
    tree_of_recordings(folder)
    matrix = (folder / "examples/matrix/matrix.yaml").read_text()
    for before, after in (("[sgd, adam, adamw]", "[adam, adamw]"), ("[8, 64]", "[8]"), ("[1, 2, 3]", "[1]")):
        matrix = matrix.replace(before, after)
    (folder / "small.yaml").write_text(matrix.replace("  exclude: [{optimizer: sgd, width: 8}]\n", ""))


@pytest.mark.promise("S0.2", "S0.20", "S0.21", "S0.26", "S0.27", "S0.32", "S0.33", "S0.34")
@pytest.mark.promise("S1.2", "S1.12", "S1.17", "S1.18", "S1.19", "S1.23", "S1.27")
@pytest.mark.promise("S2.19", "S2.25", "S2.28", "S3.5", "S3.8", "S3.14")
@pytest.mark.promise("S4.6", "S4.7", "S4.8", "S4.11", "S4.12", "S4.13", "S4.15")
@pytest.mark.parametrize(
    "example",
    [pytest.param(example, id=example.line, marks=LONG if example.is_long else ()) for example in EXAMPLES],
)
def test_it_runs_as_it_is_typed(example: Example, tmp_path: Path) -> None:
    folder = make_checkout(tmp_path / "a checkout")
    prepare(folder)
    if "--ssh-key" in example.line and (reason := can_serve()):
        pytest.skip(reason)
    deployed: AbstractContextManager[Mapping[str, str]] = nullcontext({})
    if "--ssh-key" in example.line:
        deployed = hosts_of(folder)
    with deployed as variables:
        done = typed(f"{example.line} {example.added}", folder, variables)
    printed = f"{done.stdout}{done.stderr}"
    assert "this is a bug in gpuproof" not in printed, printed
    assert done.returncode in example.exits, printed
    for pattern, fields in example.files.items():
        paths = list(folder.glob(pattern))
        assert paths, f"{pattern}: {sorted(folder.glob('*'))}\n{printed}"
        for path in paths if fields is not None else ():
            assert_has(content_of(path), fields)
    for text in example.prints:
        assert text in " ".join(printed.split()), printed

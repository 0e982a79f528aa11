"""The whole of gpuproof on simulated devices: ranks, graphs, precisions, the load suite, and faults."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

from gpuproof.base.errors import ExitCode
from gpuproof.records.case import InferenceWork
from gpuproof.records.collected import CaseRecords
from gpuproof.records.run import Failure, Setup, Start, Window
from gpuproof.records.what_ran import Effective
from gpuproof.records.work.collective import CollectiveTrial
from gpuproof.store.run import RunDirectory
from gpuproof.suites.load.plan import TESTS
from running import MEASURED, TIMEOUT_S, TINY, gpuproof, only_case, run_directory
from simulating import needs_simulator, simulated

pytestmark = needs_simulator

HERE = Path(__file__).parent

ON_SIM = ("--distributed.device=simgpu", "--run.run_id=s", "--distributed.threads_per_rank=1")
UNREAD = "--monitoring.enabled=false"


def stderr_of(run: RunDirectory, records: CaseRecords) -> set[str]:
    folder = run.case_folder(records.case)
    return {path.read_text() for path in folder.glob("stderr-*.txt")}


def readings_of(run: RunDirectory, records: CaseRecords) -> list[str]:
    return [path.read_text() for path in run.case_folder(records.case).glob("monitor-*.jsonl")]


def test_every_report_says_that_the_device_is_simulated(tmp_path: Path) -> None:
    environment = simulated({1: {"slower_percent": 30}}, devices=2)
    result = gpuproof("run", "quick", *TINY, *ON_SIM, cwd=tmp_path, environment=environment)
    assert result.returncode == ExitCode.DONE, result.stdout + result.stderr
    run = run_directory(tmp_path, "s")
    records = only_case(run)
    (setup,) = records.of(Setup)
    assert (setup.device.kind, setup.device.uuid, setup.device.simulated) == ("simgpu", "SIM-0000", True)
    concluded = json.loads((run.root / "result.json").read_text())
    assert concluded["conditions"]["simulated"] is True
    assert concluded["verdict"] == f"SIMULATED {concluded['validity']}"
    assert "SIM-0001" in "".join(readings_of(run, records))
    forms = [
        gpuproof("report", str(run.root), "--format", form, cwd=tmp_path) for form in ("markdown", "html")
    ]
    for page in (result.stdout, *(written.stdout for written in forms)):
        assert "SIMULATED" in page
        assert "no result here applies to any hardware" in " ".join(page.split())
    listed = gpuproof("runs", "--json", cwd=tmp_path)
    assert "SIMULATED" in json.loads(listed.stdout)[0]["verdict"]


def test_precisions_graphs_and_inference_in_forked_cases(tmp_path: Path) -> None:
    plain: dict[str, object] = {
        "kind": "training",
        "training.precision": "fp32",
        "training.cuda_graphs": False,
    }
    chosen: list[dict[str, object]] = [
        {},
        {"training.precision": "bf16"},
        {"training.precision": "amp"},
        {"training.cuda_graphs": True},
        {"training.cuda_graphs": "auto"},
        {"kind": "inference"},
    ]
    recipe = tmp_path / "sweep.yaml"
    points = [plain | own for own in chosen]
    recipe.write_text(f"kind: training\nmatrix: {{include: {json.dumps(points)}}}\n")
    words = ("run", str(recipe), *TINY, *ON_SIM, UNREAD, "--run.experiment_name=quick")
    result = gpuproof(*words, cwd=tmp_path, environment=simulated(devices=1))
    assert result.returncode == ExitCode.DONE, result.stdout + result.stderr
    run = run_directory(tmp_path, "s")
    cases = run.cases()
    setups = [setup for records in cases for setup in records.of(Setup)]
    assert sorted(setup.precision for setup in setups) == ["amp", "bf16", *["fp32"] * 4]
    assert {start.start for records in cases for start in records.of(Start)} == {"fork"}
    assert {setup.device.kind for setup in setups} == {"simgpu"}
    assert {text for records in cases for text in stderr_of(run, records)} == {""}
    assert sum(isinstance(records.case.work, InferenceWork) for records in cases) == 1
    assert sum(setup.options is not None and setup.options.cuda_graphs is True for setup in setups) == 2


DECODER = "d_model: 64, num_layers: 2, num_heads: 4, num_kv_heads: 2, d_ff: 128, vocab_size: 512"
DECODING = (
    *(
        "--kind=inference",
        "--inference.phase=decode",
        "--model.name=decoder",
        f"--model.options={{{DECODER}}}",
    ),
    *("--data.name=synthetic", "--data.batch_size=4", "--inference.prompt_tokens=30", "--run.repeats=1"),
    *("--inference.new_tokens=70", "--training.precision=bf16", "--benchmark.measure_by=steps"),
    *("--benchmark.warmup_steps=4", "--benchmark.measure_steps=80", *ON_SIM, UNREAD),
)


def test_decoding_is_a_graph_for_each_bucket_and_the_device_does_not_wait(tmp_path: Path) -> None:
    """On a slow memory: a step takes the device ten times as long as its host."""
    slow = simulated(devices=1, memory_bytes_per_s=2e7)
    result = gpuproof("run", "quick", *DECODING, cwd=tmp_path, environment=slow)
    assert result.returncode in MEASURED, result.stdout + result.stderr
    records = only_case(run_directory(tmp_path, "s"))
    (setup,), (window,) = records.of(Setup), records.of(Window)
    assert setup.options is not None
    assert setup.options.graph_ends == (64, 128)
    assert "CUDA graphs of decoding (attention to place 64, 128)" in " ".join(result.stdout.split())
    # Four sequences, two layers, two key-value heads of 16, two bytes each; 100 tokens, in buckets.
    token_bytes = 4 * 2 * 2 * 2 * 16 * 2
    assert setup.kv_cache_bytes == 128 * token_bytes
    keys = range(31, 101)
    padded = sum((64 if key <= 64 else 128) - key for key in keys) / 70
    assert setup.padded_bytes_per_step == pytest.approx(padded * token_bytes)
    exported = json.loads((tmp_path / "results/quick/s/run_summary.json").read_text())
    assert exported["weights"] == "bfloat16"
    assert exported["inference"]["padded_bytes_per_step"] == setup.padded_bytes_per_step
    (effective,) = records.of(Effective)
    assert {work.dtype for work in effective.work} == {"bfloat16"}
    assert window.caught_up_steps is not None
    assert window.caught_up_steps <= 1  # the first, to a device at rest: it never waited for its host


def test_a_decode_step_takes_as_long_as_the_device_is_busy() -> None:
    """Bound by itself: no step waits for its host, and those of a bucket are alike."""
    declared = simulated(
        devices=1, memory_bytes_per_s=4e7, flops_per_s=4e8, zero_products=True, queue_depth=100_000
    )
    result = subprocess.run(
        [sys.executable, str(HERE / "simulate_decoding.py")],
        env={**declared, "PYTHONPATH": str(HERE.parent)},
        capture_output=True,
        text=True,
        timeout=TIMEOUT_S,
    )
    assert result.returncode == 0, result.stderr
    decoded = json.loads(result.stdout)
    times_s = decoded["times_s"]
    assert sum(times_s) == pytest.approx(decoded["busy_s"], rel=0.02)
    # From 31 tokens to 64 in the first bucket, to 100 in the second; then back to the prompt, which copies.
    near, far, again = times_s[1:34], times_s[34:70], times_s[71:]
    assert near + again == pytest.approx([near[0]] * (33 + 4), rel=0.001)
    assert far == pytest.approx([far[0]] * 36, rel=0.001)
    # 64 keys and values more, of 4 sequences, 2 layers, 2 heads of 16, in bf16, are moved once or more.
    assert far[0] - near[0] > 64 * 4 * 2 * 2 * 2 * 16 * 2 / 4e7


def test_a_batch_without_room_is_refused_with_the_largest_that_fits(tmp_path: Path) -> None:
    """The allocator has taken 2 of 4 MiB; of the rest the weights take 209 KiB, a sequence 25,344 bytes."""
    small = simulated(devices=1, memory_bytes=2**22)
    result = gpuproof("run", "quick", *DECODING, "--data.batch_size=80", cwd=tmp_path, environment=small)
    text = " ".join((result.stdout + result.stderr).split())
    fitting = (2**21 - 2 * 107_072) // (99 * 2 * 2 * 32 * 2)
    assert (
        f"data.batch_size: 80 sequences of 99 tokens do not fit in 2.00 MiB of free memory: {fitting}" in text
    )
    assert f"Set it to {fitting} or less" in text
    assert result.returncode not in MEASURED


def test_a_processor_refuses_a_batch_by_the_memory_that_its_host_could_give(tmp_path: Path) -> None:
    """A million sequences of a million tokens take 256 TB."""
    many = ("--data.batch_size=1000000", "--data.samples_per_epoch=1000000")
    long = ("--inference.prompt_tokens=1000000", "--distributed.device=cpu")
    result = gpuproof("run", "quick", *DECODING, *many, *long, cwd=tmp_path)
    text = " ".join((result.stdout + result.stderr).split())
    assert "data.batch_size: 1000000 sequences of 1000069 tokens do not fit in" in text
    assert re.search(r"Set it to \d+ or less", text)
    assert result.returncode not in MEASURED


def test_prefill_is_one_graph_and_experts_are_none(tmp_path: Path) -> None:
    prefill = (*DECODING, "--inference.phase=prefill", "--benchmark.measure_steps=8")
    result = gpuproof("run", "quick", *prefill, cwd=tmp_path, environment=simulated(devices=1))
    assert result.returncode in MEASURED, result.stdout + result.stderr
    (setup,) = only_case(run_directory(tmp_path, "s")).of(Setup)
    assert setup.options is not None
    assert (setup.options.cuda_graphs, setup.options.graph_ends) == (True, ())
    assert (setup.padded_bytes_per_step, setup.bytes_per_step) == (None, None)
    experts = (*DECODING, "--model.name=moe_decoder", f"--model.options={{num_experts: 2, {DECODER}}}")
    refused = gpuproof(
        *("run", "quick", *experts, "--inference.cuda_graphs=true", "--run.run_id=m"),
        cwd=tmp_path,
        environment=simulated(devices=1),
    )
    assert refused.returncode == ExitCode.UNFIT_ENVIRONMENT, refused.stdout + refused.stderr
    text = " ".join(refused.stdout.split())
    assert "inference.cuda_graphs: in each layer, the host reads how many tokens go to each expert" in text


@pytest.mark.long
def test_eight_ranks_on_this_machine(tmp_path: Path) -> None:
    words = ("run", "quick", *TINY, *ON_SIM, UNREAD, "--nproc=8", "--benchmark.measure_steps=5")
    result = gpuproof(*words, cwd=tmp_path, environment=simulated(zero_products=True))
    assert result.returncode == ExitCode.DONE, result.stdout + result.stderr
    run = run_directory(tmp_path, "s")
    records = only_case(run)
    setups = records.of(Setup)
    assert sorted(setup.device.uuid or "" for setup in setups) == [f"SIM-{rank:04d}" for rank in range(8)]
    assert {setup.backend for setup in setups} == {"simccl"}
    assert {(window.rank, window.items) for window in records.of(Window)} == {(rank, 40) for rank in range(8)}
    assert stderr_of(run, records) == {""}


def test_the_load_suite(tmp_path: Path) -> None:
    short = ("--load.num_epochs=1", "--load.num_batches=2", "--benchmark.warmup_steps=1")
    words = ("run", "load", "--distributed.device=simgpu", *short)
    environment = simulated(devices=1, zero_products=True)
    result = gpuproof(*words, cwd=tmp_path, environment=environment)
    assert result.returncode == ExitCode.DONE, result.stdout + result.stderr
    assert "SIMULATED" in result.stdout
    (root,) = (tmp_path / "results" / "load").iterdir()
    cases = RunDirectory.open(root).cases()
    assert [records.status for records in cases] == ["done"] * len(TESTS)
    assert {setup.device.simulated for records in cases for setup in records.of(Setup)} == {True}


def test_windows_of_few_steps_continue_and_the_file_counts_what_was_measured(tmp_path: Path) -> None:
    short = ("--num-epochs=2", "--num-batches=2", "--benchmark.warmup_steps=1", "--benchmark.min_seconds=1")
    words = ("load", "--device=simgpu", *short, "-o", "results.json")
    environment = simulated(devices=1, zero_products=True)
    done = gpuproof(*words, cwd=tmp_path, environment=environment)
    assert done.returncode == ExitCode.DONE, done.stdout + done.stderr
    assert "4 steps per launch requested, then extended" in done.stdout
    file = json.loads((tmp_path / "results.json").read_text())
    assert (file["parameters"]["num_epochs"], file["parameters"]["num_batches"]) == (2, 2)
    assert len(file["results"]) == len(TESTS)
    for test in file["results"]:
        assert test["duration_seconds"] >= 1
        assert test["iterations"] % 2 == 0, "whole epochs"
        items = test["iterations"] * test["batch_size"] * test["num_devices"]
        assert test["throughput_samples_per_second"] == pytest.approx(items / test["duration_seconds"])
        assert test["peak_gpu_utilization_percent"] is not None, test["missing"]
        assert test["gpu_memory_stats"]["avg_value"] > 0


def test_ranks_continue_together(tmp_path: Path) -> None:
    words = ("run", "quick", *TINY, *ON_SIM, "--nproc=2", "--benchmark.min_seconds=1.5")
    done = gpuproof(*words, cwd=tmp_path, environment=simulated(devices=2, zero_products=True))
    assert done.returncode in MEASURED, done.stdout + done.stderr
    windows = only_case(run_directory(tmp_path, "s")).of(Window)
    assert len({window.num_steps for window in windows}) == 1
    for window in windows:
        assert window.wall_s >= 1.5
        assert window.requested_steps is not None
        assert window.num_steps > window.requested_steps


def test_a_kernel_that_hangs_ends_as_a_record_of_a_time_out(tmp_path: Path) -> None:
    words = ("run", "quick", *TINY, *ON_SIM, UNREAD, "--run.time_limit_s=20")
    environment = simulated({0: {"hang_in_kernel": 500}}, devices=1)
    result = gpuproof(*words, cwd=tmp_path, environment=environment)
    assert result.returncode == ExitCode.TIMEOUT, result.stdout + result.stderr
    failures = only_case(run_directory(tmp_path, "s")).of(Failure)
    assert "timeout" in {failure.cause for failure in failures}


def test_a_model_that_does_not_fit_ends_as_a_record_of_no_memory(tmp_path: Path) -> None:
    words = ("run", "quick", *TINY, *ON_SIM, UNREAD)
    environment = simulated({0: {"memory_bytes": 2**19}}, devices=1)
    result = gpuproof(*words, cwd=tmp_path, environment=environment)
    assert result.returncode == ExitCode.FAILED, result.stdout + result.stderr
    failures = only_case(run_directory(tmp_path, "s")).of(Failure)
    assert {failure.cause for failure in failures} == {"out_of_memory"}


@pytest.mark.parametrize(("percent", "batch"), [(1000, 64), pytest.param(30, 256, marks=pytest.mark.long)])
def test_the_slower_of_two_ranks_is_named(percent: int, batch: int, tmp_path: Path) -> None:
    """By steps of each device alone, which a busy host scatters: ten times slower stands out even then."""
    words = ("run", "quick", *TINY, *ON_SIM, UNREAD, "--nproc=2", f"--data.batch_size={batch}")
    environment = simulated(
        {1: {"slower_percent": percent}},
        devices=2,
        flops_per_s=1e9,
        memory_bytes_per_s=1e12,
        zero_products=True,
    )
    result = gpuproof(*words, cwd=tmp_path, environment=environment)
    assert result.returncode in MEASURED, result.stdout + result.stderr
    doubts = json.loads((run_directory(tmp_path, "s").root / "result.json").read_text())["doubts"]
    (named,) = [doubt["reason"] for doubt in doubts if doubt["code"] == "unequal-ranks"]
    assert named.startswith("rank 1 on ")
    assert "SIM-0001" in named


def test_collectives_carry_no_more_than_the_link(tmp_path: Path) -> None:
    link_bytes_per_s, size = 1e9, 2**20
    result = gpuproof(
        *("run", "collectives", *ON_SIM, UNREAD, "--nproc=2", "--run.experiment_name=quick"),
        *("-b", str(size), "-e", str(size), "-n", "10", "-w", "5"),
        cwd=tmp_path,
        environment=simulated(devices=2, peer_link_bytes_per_s=link_bytes_per_s),
    )
    assert result.returncode == ExitCode.DONE, result.stdout + result.stderr
    trials = only_case(run_directory(tmp_path, "s")).of(CollectiveTrial)
    assert [(trial.num_checked, trial.num_wrong) for trial in trials] == [(16 * size // 4, 0)] * 2
    # Over two ranks 2 × ½ of the bytes go over the link: 1.05 ms, if the other rank is listed already.
    by_hand_s = size / link_bytes_per_s
    assert min(time_s for trial in trials for time_s in trial.durations_s) >= by_hand_s * 0.999
    (measure,) = [
        measure
        for measure in json.loads((run_directory(tmp_path, "s").root / "result.json").read_text())["measures"]
        if measure["labels"].get("quantity") == "bus bandwidth" and measure["statistic"] == "mean"
    ]
    assert 0 < measure["value"] <= link_bytes_per_s * 1.001

"""`gpuproof validate` from the command line: on ranks of the CPU, on simulated devices, and refused."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any
from xml.etree.ElementTree import fromstring

import pytest

from gpuproof.base.errors import ExitCode
from gpuproof.records.codec import to_json
from gpuproof.suites.validate.options import HARDWARE
from running import clean_environment, gpuproof
from simulating import needs_simulator, simulated

NO_GPU = clean_environment(CUDA_VISIBLE_DEVICES="")
SHORT = (
    *("--recipe", "quick", "--model", "medium", "--batch-size", "8", "--run.run_id=v"),
    *("--warmup-iterations", "3", "--active-iterations", "40", "--monitoring.enabled=false"),
    *("--validate.stages=[collective, training]", "--benchmark.own_compute=false"),
    "--validate.collective={operations: [all_reduce], min_bytes: 8K, max_bytes: 64K, factor: 8}",
    "--distributed.threads_per_rank=1",
)
RULES = """
rules:
  - name: it trains
    each: whole
    measure: {name: step-time drift, labels: {case: training}}
    expect: {at_most: 1, unit: "1"}
    required: false
  - {check: xid, required: false}
"""
"""Of a run without monitoring, in which nobody listens; a floor that suits any machine would be refused."""
RIGHT_RESULTS = json.dumps(
    [
        {
            "aspect": "right results",
            "each": "host",
            "title": "right collectives",
            "measure": "launches",
            "labels": {"stage": "collective"},
        },
        {
            "aspect": "right results",
            "each": "whole",
            "title": "finite losses",
            "measure": "launches",
            "labels": {"stage": "training", "case": "each"},
        },
    ]
)
"""What READY needs of its two stages, but how fast they are."""
STRICTER = """\
rules:
  - name: it trains
    each: whole
    measure: {{name: throughput, labels: {{case: training}}}}
    expect: {{at_least: {floor}, unit: samples/s}}
    tolerance: 0.1
"""


def result_of(folder: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((folder / "results/validate-quick/v/result.json").read_text())
    return found


def statuses(result: dict[str, Any]) -> dict[str, str]:
    return {item["name"]: item["outcome"]["status"] for item in result["outcomes"]}


@pytest.mark.promise("S3.1", "S3.20")
def test_two_ranks_of_a_processor_are_tried_out_and_never_ready(tmp_path: Path) -> None:
    (tmp_path / "rules.yaml").write_text(RULES)
    found = gpuproof(
        *("validate", "--allow-cpu", "--rules", "rules.yaml", "--expected-hosts", "nobody", *SHORT),
        *("--junit", "v.xml", "--bundle", "v.tar.gz", "--validate.max_drift=1000"),
        cwd=tmp_path,
        environment=NO_GPU,
    )
    assert found.returncode == ExitCode.FAILED, found.stdout + found.stderr
    result = result_of(tmp_path)
    assert result["verdict"] == "NOT-READY"
    assert statuses(result)["expected hosts"] == "FAIL"
    # A busy machine keeps no pace, or a slow one; that the rule is asked is what counts.
    assert statuses(result)["it trains"] in ("PASS", "FAIL", "ERROR")
    tests = fromstring((tmp_path / "v.xml").read_text())
    assert int(tests.get("failures", "0")) >= 1
    assert (
        json.loads((tmp_path / "results/validate-quick/v/validation_result.json").read_text())["world_size"]
        == 2
    )

    # the archive says the same, and without the missing host it is a processor all the same
    again = gpuproof("validate", "--from", "v.tar.gz", "--json", cwd=tmp_path)
    assert json.loads(again.stdout) == result
    rates = [m["value"] for m in result["measures"] if m["name"] == "throughput" and m["subject"] == "whole"]
    (tmp_path / "stricter.yaml").write_text(STRICTER.format(floor=1e6 * max(rates)))
    stricter = gpuproof("validate", "--from", "v.tar.gz", "--rules", "stricter.yaml", "--json", cwd=tmp_path)
    assert stricter.returncode == ExitCode.FAILED
    assert statuses(json.loads(stricter.stdout))["it trains"] == "FAIL"
    assert result_of(tmp_path) == result
    described = tmp_path / "results/validate-quick/v/run.json"
    told = json.loads(described.read_text())
    told["config"]["suite_options"]["validate"]["expected_hosts"] = []
    described.write_text(json.dumps(told))
    alone = gpuproof("validate", "--from", "results/validate-quick/v", cwd=tmp_path)
    assert alone.returncode == ExitCode.INCONCLUSIVE, alone.stdout
    assert "a CPU is never ready for production" in " ".join(alone.stdout.split())


def test_without_a_gpu_it_is_refused(tmp_path: Path) -> None:
    found = gpuproof("validate", cwd=tmp_path, environment=NO_GPU)
    assert found.returncode == ExitCode.UNFIT_ENVIRONMENT
    assert "--allow-cpu" in found.stderr
    assert not (tmp_path / "results").exists()


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("--rules", "empty.yaml"), "there are no rules"),
        (("--time-budget", "soon"), "is not a time"),
        (("--data-mode", "fashion_mnist"), "there is no fashion-mnist in"),
        (("--data-mode", "cifar10", "--data-dir", "nowhere"), "there is no cifar-10-batches-py"),
        (("--mode", "nccl", "--soak", "1h"), "a soak comes after all other stages"),
        (("--from", "nowhere"), "--from: the run keeps its own settings, so --"),
    ],
)
@pytest.mark.promise("S3.3")
def test_what_cannot_be_asked_is_refused(words: tuple[str, ...], said: str, tmp_path: Path) -> None:
    (tmp_path / "empty.yaml").write_text("rules: []\n")
    found = gpuproof("validate", "--device", "cpu", "--nproc", "2", "--allow-cpu", *words, cwd=tmp_path)
    assert found.returncode == ExitCode.USAGE, found.stderr
    assert said in found.stderr


@needs_simulator
def test_healthy_simulated_devices_would_be_ready_and_are_said_to_be_simulated(tmp_path: Path) -> None:
    (tmp_path / "rules.yaml").write_text(RULES)
    found = gpuproof(
        *("validate", "--device", "simgpu", "--nproc", "2", "--rules", "rules.yaml", *SHORT),
        *("--validate.max_drift=1000", f"--validate.aspects={RIGHT_RESULTS}"),
        cwd=tmp_path,
        environment=simulated(devices=2),
    )
    assert found.returncode == ExitCode.INCONCLUSIVE, found.stdout + found.stderr
    result = result_of(tmp_path)
    assert result["verdict"] == "SIMULATED INCONCLUSIVE"
    assert result["detail"]["readiness"]["uncapped"] == "READY", found.stdout
    assert {branch["subject"] for branch in result["detail"]["readiness"]["tree"]["branches"]}


MEMORY_ALONE = (
    *("validate", "--device", "simgpu", "--nproc", "1", "--recipe", "quick", "--validate.stages=[memory]"),
    *("--validate.memory_buffer_bytes=16M", "--monitoring.enabled=false", "--run.run_id=v"),
)


@needs_simulator
def test_a_known_board_is_simulated_by_its_name_and_says_what_a_kernel_takes(tmp_path: Path) -> None:
    """What buyers compare stands on the page; a file of references is read, and none of it is hardware."""
    board = simulated(devices=1, name="NVIDIA H200", first_card=7, memory_bytes_per_s=1e9)
    (tmp_path / "mine.toml").write_text("")
    found = gpuproof(*MEMORY_ALONE, "--references", "mine.toml", cwd=tmp_path, environment=board)
    assert found.returncode == ExitCode.INCONCLUSIVE, found.stdout + found.stderr
    result = result_of(tmp_path)
    (latency,) = [m for m in result["measures"] if m["name"] == "kernel launch latency"]
    assert latency["subject"].endswith("/gpu/SIM-0007")
    assert latency["value"] >= 99e-6
    page = " ".join(found.stdout.split())
    assert f"advisory: kernel launch latency {latency['text']}" in page
    assert "before that cap: INCONCLUSIVE" in page
    assert "NVIDIA H200" in page


OF_PRODUCTS = [row for row in HARDWARE if row.labels.get("stage") == "gemm"]
SHORT_PRODUCTS = (
    *("--device", "simgpu", "--nproc", "2", "--recipe", "quick", "--run.run_id=v", "--rules", "rules.yaml"),
    *("--monitoring.enabled=false", "--benchmark.own_compute=false", "--distributed.threads_per_rank=1"),
    *("--validate.gemm_size=128", "--validate.window_s=3"),
    "--validate.stages=[gemm]",
    f"--validate.aspects={json.dumps(to_json(OF_PRODUCTS))}",
)
PRODUCTS = """
rules:
  - name: it multiplies
    each: gpu
    measure: {name: throughput, labels: {workload: gemm, at_once: false}}
    expect: {at_least: 0.05e+9, unit: FLOP/s}
    contract: true
  - {check: xid, required: false}
"""
"""A quarter of what the devices are declared to do: a product of 128 takes 21 ms, and hosts stay ahead."""


def products_of(folder: Path, faults: dict[int, dict[str, Any]]) -> dict[str, Any]:
    (folder / "rules.yaml").write_text(PRODUCTS)
    environment = simulated(faults, devices=2, flops_per_s=0.2e9)
    found = gpuproof("validate", *SHORT_PRODUCTS, cwd=folder, environment=environment)
    result = result_of(folder)
    assert found.returncode == result["exit_code"], found.stdout + found.stderr
    return result


@needs_simulator
@pytest.mark.parametrize(("faults", "word"), [({}, "READY"), ({0: {"wrong_products_from": 1}}, "NOT-READY")])
def test_one_device_closes_equal_results_by_itself_and_one_that_multiplies_wrongly_does_not(
    faults: dict[int, dict[str, Any]], word: str, tmp_path: Path
) -> None:
    rows = to_json([row for row in HARDWARE if row.labels.get("stage") == "fingerprint"])
    words = (
        *("--device", "simgpu", "--recipe", "quick", "--run.run_id=v", "--validate.rules=[]"),
        *(
            "--monitoring.enabled=false",
            "--validate.stages=[fingerprint]",
            "--distributed.threads_per_rank=1",
        ),
        "--validate.probes={fingerprint: {rounds: 2, heat_s: 0.1, time_limit_s: 0.5, edge: 256}}",
        f"--validate.aspects={json.dumps(rows)}",
    )
    environment = simulated(faults, devices=1, flops_per_s=1e12)
    found = gpuproof("validate", *words, cwd=tmp_path, environment=environment)
    readiness = result_of(tmp_path)["detail"]["readiness"]
    assert readiness["uncapped"] == word, found.stdout + found.stderr
    assert [cell["title"] for cell in readiness["cells"]] == ["equal results"]


@needs_simulator
def test_a_device_with_one_wrong_product_is_named_and_its_twin_is_not(tmp_path: Path) -> None:
    result = products_of(tmp_path, {1: {"wrong_products_from": 1}})
    assert result["exit_code"] == ExitCode.INCONCLUSIVE  # simulated
    assert result["detail"]["readiness"]["uncapped"] == "READY-WITH-EXCLUSIONS"
    assert result["headline"].startswith("failed: right products (GPU 1 on ")
    failed = [item["outcome"] for item in result["outcomes"] if item["outcome"]["status"] == "FAIL"]
    assert {item["subject"].rsplit("/", 1)[-1] for item in failed} == {"SIM-0001"}
    assert {item["responsible"] for item in failed} == {"vendor"}


@needs_simulator
def test_healthy_devices_give_right_products_and_would_be_ready(tmp_path: Path) -> None:
    result = products_of(tmp_path, {})
    assert result["exit_code"] == ExitCode.INCONCLUSIVE
    good = ("PASS", "NOT-APPLICABLE")
    open_ = [x for x in result["outcomes"] if x["is_required"] and x["outcome"]["status"] not in good]
    assert (result["detail"]["readiness"]["uncapped"], open_) == ("READY", [])


@needs_simulator
def test_a_precision_that_a_device_has_not_got_is_not_asked_of_it(tmp_path: Path) -> None:
    found = gpuproof(
        *("validate", "--device", "simgpu", "--nproc", "1", "--recipe", "quick", "--validate.stages=[gemm]"),
        *("--validate.gemm_precisions=[fp32, tf32]", "--monitoring.enabled=false", "--run.run_id=v"),
        cwd=tmp_path,
        environment=simulated(devices=1),
    )
    assert found.returncode == ExitCode.INCONCLUSIVE, found.stdout + found.stderr
    cells = [
        cell for cell in result_of(tmp_path)["detail"]["readiness"]["cells"] if cell["aspect"] == "compute"
    ]
    assert [cell["labels"]["dtype"] for cell in cells] == ["fp32", "tf32"]
    assert [cell["standing"] for cell in cells] == ["undecided", "passed"]
    assert "nothing to measure: TF32 needs NVIDIA's tensor cores" in cells[1]["reason"]

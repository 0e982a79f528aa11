"""Ceilings on the spot: tried on this processor, and on a simulated accelerator's clock."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from gpuproof.records.run import Ceilings, CeilingTrial, Evaluation, Setup
from gpuproof.worker.engine import ceilings
from gpuproof.worker.engine.ceilings import CPU_PLAN, CeilingPlan, reason_no_product, try_ceilings, try_costs
from gpuproof.worker.engine.host_clock import HostClock
from gpuproof.worker.rank.after_window import PROFILED_STEPS
from gpuproof.workloads.info.catalogue.gemm import GEMM, GemmOptions
from gpuproof.workloads.info.catalogue.memory import MEMORY, MemoryOptions
from gpuproof.workloads.torch.gemm import build_gemm
from gpuproof.workloads.torch.memory_pass import build_memory
from running import MEASURED, TINY, gpuproof, only_case, run_directory

CPU = torch.device("cpu")
PLAN = CeilingPlan(gemm_sizes=(8, 16, 32), buffer_bytes=4096, flush_bytes=1024, repeats=3, longest_s=60.0)


def tried(precision: str, plan: CeilingPlan = PLAN, clock: HostClock | None = None) -> list[CeilingTrial]:
    beats: list[None] = []
    trials = list(
        try_ceilings(
            precision, device=CPU, clock=clock or HostClock(), plan=plan, beat=lambda: beats.append(None)
        )
    )
    assert len(beats) == sum(len(trial.durations_s) for trial in trials)
    return trials


def test_products_go_up_the_ladder_and_memory_comes_in_two_patterns() -> None:
    trials = tried("fp32")
    assert [(trial.what, trial.size) for trial in trials] == [
        *(("gemm", (8, 8, 8)), ("gemm", (16, 16, 16)), ("gemm", (32, 32, 32))),
        *(("copy", (4096,)), ("triad", (4096,))),
    ]
    assert [trial.work for trial in trials] == [2 * 8**3, 2 * 16**3, 2 * 32**3, 2 * 4096, 3 * 4096]
    assert all(len(trial.durations_s) == 3 and min(trial.durations_s) > 0 for trial in trials)


@pytest.mark.parametrize("cache_bytes", [None, 2**22])
def test_what_a_kernel_takes_and_what_the_cache_carries_where_its_size_is_known(
    cache_bytes: int | None,
) -> None:
    launch, cache = try_costs(0, device=CPU, cache_bytes=cache_bytes, clock=HostClock(), beat=lambda: None)
    assert (launch.quantity, launch.unit, cache.quantity, cache.unit) == (
        *("kernel launch latency", "s"),
        *("cache bandwidth", "B/s"),
    )
    assert launch.value is not None
    assert 0 < launch.value < 0.01
    if cache_bytes is None:
        assert (cache.value, cache.missing) == (None, "its cache size is not known")
    else:
        assert cache.value is not None
        assert cache.value > 1e6
        assert cache.labels == {"buffer_bytes": 2**19}


def test_a_cache_whose_passes_take_no_longer_than_their_launches_has_no_bandwidth(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(ceilings, "LEAST_LAUNCHES", 1e9)  # as of a device that is far faster than its host
    _, cache = try_costs(0, device=CPU, cache_bytes=2**22, clock=HostClock(), beat=lambda: None)
    assert (cache.value, cache.missing) == (None, "a pass ends before the host can launch the next one")


@pytest.mark.parametrize(
    ("precision", "dtype"), [("fp32", "float32"), ("bf16", "bfloat16"), ("amp", "float16")]
)
def test_products_are_of_the_type_of_the_run(precision: str, dtype: str) -> None:
    assert {trial.dtype for trial in tried(precision) if trial.what == "gemm"} == {dtype}
    assert reason_no_product(precision) is None


def test_a_precision_without_plain_products_says_so_and_memory_is_tried_all_the_same() -> None:
    assert [trial.what for trial in tried("fp8")] == ["copy", "triad"]
    assert "fp8" in str(reason_no_product("fp8"))


class SlowClock(HostClock):
    """Says that every piece of work took ten seconds."""

    def drain(self, *, in_flight: int) -> Sequence[float]:
        return [10.0 for _ in super().drain(in_flight=in_flight)]


def test_the_ladder_ends_where_the_next_size_would_take_too_long() -> None:
    # 3 repeats of 10 s each; the next size has eight times the work, so 240 s.
    assert len(tried("fp32", replace(PLAN, longest_s=239.0), SlowClock())) == 1 + 2
    assert len(tried("fp32", replace(PLAN, longest_s=241.0), SlowClock())) == 3 + 2


def test_the_ladder_ends_where_the_memory_does() -> None:
    # Three matrices of 16 × 16 × 4 bytes are 3,072; the room is three buffers of 1,024 bytes.
    trials = tried("fp32", replace(PLAN, buffer_bytes=1024))
    assert [trial.size for trial in trials if trial.what == "gemm"] == [(8, 8, 8), (16, 16, 16)]


def test_a_processors_buffers_are_large_beside_its_caches() -> None:
    assert CPU_PLAN.buffer_bytes >= 2**28


@pytest.mark.parametrize("autocast", [False, True])
def test_gemm_multiplies_once_for_each_sample_in_the_type_of_autocast(autocast: bool) -> None:
    options = GemmOptions(m=2, n=3, k=4)
    module = build_gemm(options, GEMM.input_shape(options, None, None))
    samples = torch.zeros(5, 1)
    with torch.autocast("cpu", dtype=torch.bfloat16, enabled=autocast):
        assert module(samples) is samples
    assert module.product.dtype == (torch.bfloat16 if autocast else torch.float32)
    torch.testing.assert_close(module.product, module.left[0] @ module.right[0])
    work = GEMM.work(options, GEMM.input_shape(options, None, None))
    assert work is not None
    assert work.forward_flops == 2 * 2 * 3 * 4


@pytest.mark.parametrize(("pattern", "value", "num_bytes"), [("copy", 5.0, 16), ("triad", 26.0, 24)])
def test_memory_passes_do_what_their_pattern_says(pattern: str, value: float, num_bytes: int) -> None:
    options = MemoryOptions(pattern=pattern, buffer_bytes=8)  # type: ignore[arg-type]  # spelled out above
    module = build_memory(options, MEMORY.input_shape(options, None, None))
    module.first.fill_(5.0)
    if pattern == "triad":
        module.second.fill_(7.0)  # 5 + 3·7
    module(torch.zeros(2, 1))
    assert module.target.tolist() == [value, value]
    assert MEMORY.bytes_per_step is not None
    assert MEMORY.bytes_per_step(options, MEMORY.input_shape(options, None, None), 10) == 10 * num_bytes


def test_memory_buffers_hold_whole_numbers_of_values() -> None:
    with pytest.raises(ValueError, match="multiple of 4"):
        MemoryOptions(buffer_bytes=10)


def test_plain_products_run_by_the_same_engine_with_ceilings_profile_and_picture(tmp_path: Path) -> None:
    result = gpuproof(
        *("run", "quick", *TINY, "--kind=inference", "--model.name=gemm", "--data.batch_size=2"),
        *("--model.options={m: 256, n: 128, k: 384}", "--benchmark.evaluate_after=true"),
        *("--profiling.ceilings=true", "--profiling.enabled=true", "--run.run_id=g"),
        cwd=tmp_path,
    )
    assert result.returncode in MEASURED, result.stdout + result.stderr
    run = run_directory(tmp_path, "g")
    records = only_case(run)
    (setup,), (ceilings,) = records.of(Setup), records.of(Ceilings)
    assert setup.item == "products"
    assert setup.flops_per_step == setup.flops_per_step_counted == 2 * (2 * 256 * 128 * 384)
    assert {trial.what for trial in ceilings.trials} == {"gemm", "copy", "triad"}
    assert "without weights" in str(records.of(Evaluation)[0].missing)
    assert (run.root / "roofline.png").read_bytes().startswith(b"\x89PNG")
    assert "of GEMM ceiling" in result.stdout
    summary = json.loads((run.root / "run_summary.json").read_text())
    assert summary["measured_ceilings"]["compute"]["value_per_s"] > 0
    assert (summary["mfu"], summary["comm_exposed_ms"]) == (None, None)
    assert summary["communication_missing"]["comm_exposed_ms"] == "a single device does not communicate"
    assert summary["profile"]["summary"]["profiled"] is True
    calls = {told["name"]: told["calls"] for told in summary["profile"]["summary"]["operators"]}
    assert calls["aten::mm"] == PROFILED_STEPS * 2  # whichever takes longest: one for each sample of a step


def test_passes_over_memory_know_their_bytes_and_plain_work_is_not_trained(tmp_path: Path) -> None:
    words = ("run", "quick", *TINY, "--model.name=memory", "--model.options={buffer_bytes: 4194304}")
    result = gpuproof(*words, "--kind=inference", "--run.run_id=m", cwd=tmp_path)
    assert result.returncode in MEASURED, result.stdout + result.stderr
    (setup,) = only_case(run_directory(tmp_path, "m")).of(Setup)
    assert (setup.item, setup.bytes_per_step) == ("passes", 8 * 3 * 4_194_304)
    assert "memory traffic" in result.stdout
    refused = gpuproof(*words, "--kind=training", cwd=tmp_path)
    assert refused.returncode == 2
    assert "kind: memory is not a workload for kind: training. Set kind to inference." in refused.stderr

"""Summaries of traces made by hand, in which every microsecond is known; and of files that are damaged."""

from __future__ import annotations

import json
import tracemalloc
from pathlib import Path
from typing import Any

import pytest

from gpuproof.suites.recipe.profile import summarize_trace_file
from gpuproof.suites.recipe.trace import (
    ProfileSummary,
    communication_times,
    parse_trace_event,
    summarize_trace,
    trace_events,
)

ALL_REDUCE = "ncclDevKernel_AllReduce_Sum_f32_RING_LL(ncclDevKernelArgsStorage<4096ul>)"


def raw(
    category: str, name: str, begin: float, end: float, *, thread: Any = 7, **args: Any
) -> dict[str, Any]:
    return {
        **{"ph": "X", "cat": category, "name": name, "pid": 0, "tid": thread},
        **{"ts": begin, "dur": end - begin, "args": args},
    }


def kernel(name: str, begin: float, end: float, **args: Any) -> dict[str, Any]:
    return raw("kernel", name, begin, end, **args)


def summary(*events: dict[str, Any], steps: int = 1) -> ProfileSummary:
    found = summarize_trace(filter(None, map(parse_trace_event, events)), steps=steps)
    assert found is not None
    return found


def microseconds(found: ProfileSummary) -> dict[str, float]:
    names = ("span_s", "compute_s", "communication_s", "exposed_s", "copy_s", "idle_s")
    return {name.removesuffix("_s"): round(getattr(found, name) * 1e6, 6) for name in names}


@pytest.mark.parametrize(
    ("begin", "end", "exposed", "idle"),
    [
        (110.0, 190.0, 0.0, 0.0),  # beside the computation from 100 to 200: hidden
        (200.0, 280.0, 80.0, 0.0),  # after it: exposed
        (150.0, 230.0, 30.0, 0.0),  # 50 beside it, 30 after
        (70.0, 150.0, 30.0, 0.0),  # 30 before it
        (90.0, 210.0, 20.0, 0.0),  # around it
        (230.0, 250.0, 20.0, 30.0),  # after a gap of 30
    ],
)
def test_communication_is_exposed_where_nothing_computes(
    begin: float, end: float, exposed: float, idle: float
) -> None:
    found = summary(kernel("gemm", 100.0, 200.0), kernel(ALL_REDUCE, begin, end))
    assert microseconds(found) == {
        "span": max(end, 200.0) - min(begin, 100.0),
        "compute": 100.0,
        "communication": end - begin,
        "exposed": exposed,
        "copy": 0.0,
        "idle": idle,
    }
    assert (found.looked_at, found.profiled) == ("gpu", True)


def test_streams_overlap_and_copies_count_where_nothing_else_runs() -> None:
    found = summary(
        kernel("gemm", 0.0, 10.0),
        kernel("gemm", 5.0, 20.0, thread=8),
        raw("gpu_memcpy", "Memcpy HtoD", 15.0, 30.0, thread=9),
        raw("gpu_memset", "Memset", 40.0, 42.0, thread=9),
        kernel(ALL_REDUCE, 25.0, 28.0, thread=10),
        kernel("ncclKernel_AllGather", 26.0, 35.0, thread=11),
        raw("gpu_user_annotation", "DistributedDataParallel.forward", 0.0, 1000.0),
        raw("user_annotation", "nccl:all_reduce", 0.0, 1000.0),
        raw("cuda_runtime", "cudaLaunchKernel", 0.0, 1000.0),
    )
    # The copy runs alone from 20 to 25, and the memset 2: 7. Between 35 and 40 nothing runs.
    assert microseconds(found) == {
        **{"span": 42.0, "compute": 20.0, "communication": 10.0, "exposed": 10.0, "copy": 7.0, "idle": 5.0}
    }
    assert found.num_events == 6


def test_device_time_goes_to_the_operator_that_launched_it_and_to_the_kernel() -> None:
    found = summary(
        raw("cpu_op", "aten::linear", 0.0, 9.0, **{"External id": 1}),
        raw("cpu_op", "aten::addmm", 1.0, 5.0, **{"External id": 2}),
        kernel("gemm", 10.0, 40.0, **{"External id": 2}),
        kernel("gemm", 40.0, 60.0, **{"External id": 2}),
        kernel("bias", 60.0, 90.0, **{"External id": 1}),
        kernel("other", 90.0, 110.0, **{"External id": 99}),
    )
    rows = [(row.name, row.calls, round(row.self_s * 1e6, 6), round(row.share, 6)) for row in found.operators]
    assert rows == [
        ("aten::addmm", 2, 50.0, 0.5),
        ("aten::linear", 1, 30.0, 0.3),
        ("(launched by no operator)", 1, 20.0, 0.2),
    ]
    assert [(row.name, row.calls) for row in found.kernels] == [("gemm", 2), ("bias", 1), ("other", 1)]


def test_on_a_processor_an_operator_has_its_own_time_and_gloo_its_threads() -> None:
    found = summary(
        raw("cpu_op", "aten::linear", 0.0, 50.0),
        raw("cpu_op", "aten::addmm", 10.0, 40.0),
        raw("cpu_op", "aten::copy_", 15.0, 20.0),
        raw("cpu_op", "backward", 60.0, 100.0),
        raw("cpu_op", "c10d::allreduce_", 90.0, 100.0),
        raw("user_annotation", "gloo:all_reduce", 80.0, 130.0, thread=8),
        raw("user_annotation", "Optimizer.step#SGD.step", 0.0, 500.0),
        raw("cpu_op", "aten::add_", 120.0, 125.0),
    )
    # Computing: 0–15, 20–50, 60–90 and 120–125; gloo runs 80–130, of which 90–120 and 125–130 alone.
    assert microseconds(found) == {
        **{"span": 130.0, "compute": 80.0, "communication": 50.0, "exposed": 35.0, "copy": 5.0, "idle": 10.0}
    }
    own = {row.name: round(row.self_s * 1e6, 6) for row in found.operators}
    assert own == {
        **{"backward": 30.0, "aten::addmm": 25.0, "aten::linear": 20.0, "c10d::allreduce_": 10.0},
        **{"aten::copy_": 5.0, "aten::add_": 5.0},
    }
    assert (found.looked_at, found.kernels) == ("processor", ())
    assert sum(row.share for row in found.operators) == pytest.approx(1.0)


def test_a_trace_without_work_has_no_summary() -> None:
    assert summarize_trace([], steps=5) is None
    assert parse_trace_event({"ph": "M", "name": "process_name", "ts": 1.0}) is None
    assert parse_trace_event({"ph": "X", "name": "no time"}) is None


def trace_file(folder: Path, events: list[dict[str, Any]]) -> Path:
    path = folder / "trace_rank0.json"
    path.write_text(json.dumps({"schemaVersion": 1, "note": "[", "traceEvents": events, "traceName": "x"}))
    return path


def test_a_file_is_read_event_by_event(tmp_path: Path) -> None:
    path = trace_file(tmp_path, [kernel("gemm", 0.0, 10.0), {"ph": "M"}, kernel(ALL_REDUCE, 10.0, 15.0)])
    found = summarize_trace_file(path, steps=5)
    assert isinstance(found, ProfileSummary)
    assert found.steps == 5
    assert found.exposed_s == pytest.approx(5e-6)


def test_a_long_trace_takes_no_more_memory_than_a_chunk_and_an_event(tmp_path: Path) -> None:
    path = trace_file(tmp_path, [kernel("gemm " * 100, 0.0, 10.0) for _ in range(20_000)])
    assert path.stat().st_size > 10_000_000
    tracemalloc.start()
    assert sum(1 for _ in trace_events(path)) == 20_000
    _, peak_bytes = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak_bytes < 6_000_000


def test_a_damaged_trace_has_a_reason_and_no_summary(tmp_path: Path) -> None:
    path = trace_file(tmp_path, [kernel("gemm", 0.0, 10.0)] * 3)
    path.write_text(path.read_text()[:-60])
    assert "truncated" in str(summarize_trace_file(path, steps=5))
    path.write_text('{"schemaVersion": 1}')
    assert "no list of events" in str(summarize_trace_file(path, steps=5))
    assert "contains no work" in str(summarize_trace_file(trace_file(tmp_path, []), steps=5))


def test_a_trace_that_is_too_large_is_not_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gpuproof.suites.recipe.trace.LARGEST_BYTES", 10)
    assert "are not read" in str(summarize_trace_file(trace_file(tmp_path, []), steps=5))


def test_communication_is_told_a_step_and_what_was_not_measured_has_a_reason() -> None:
    found = summary(kernel("gemm", 0.0, 1000.0), kernel(ALL_REDUCE, 600.0, 1600.0), steps=5)
    times = communication_times(found, world_size=2)
    # 1 ms of collectives, of which 0.6 ms were alone, in 5 steps.
    assert times.comm_kernel_ms == pytest.approx(0.2)
    assert times.comm_exposed_ms == pytest.approx(0.12)
    assert times.allreduce_standalone_ms is None
    assert set(times.missing) == {"allreduce_standalone_ms"}


@pytest.mark.parametrize(("world_size", "reason"), [(1, "does not communicate"), (2, "has no collective")])
def test_no_communication_is_no_zero(world_size: int, reason: str) -> None:
    times = communication_times(summary(kernel("gemm", 0.0, 1000.0)), world_size=world_size)
    assert (times.comm_kernel_ms, times.comm_exposed_ms, times.allreduce_standalone_ms) == (None, None, None)
    assert reason in times.missing["comm_exposed_ms"]
    assert set(times.missing) == {"comm_exposed_ms", "comm_kernel_ms", "allreduce_standalone_ms"}

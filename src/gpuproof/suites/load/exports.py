"""`gpu_loadtest_results.json`: the load suite in the format that GPU load-test readers expect.

The input is the results, the run's description and its host's hardware. The output is plain data in four
parts: `system_info`, `test_summary`, `parameters` and `results`, which has one entry for each test that ran.
A missing value is null, with the reason next to it in `missing`. Memory in `_mb` is in MiB (2^20 bytes), in
`_gb` in GiB (2^30).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from gpuproof.config.models import RunConfig
from gpuproof.launches.point_measures import PEAK_MEMORY, STEP, WINDOW
from gpuproof.records.codec import to_json
from gpuproof.records.collected import CaseRecords
from gpuproof.records.run import Failure, Start
from gpuproof.statistics.percentiles import percentile
from gpuproof.suites.load.readings import MIB_BYTES, MIN_READINGS, NO_GPU, NOT_MEASURED, Quantity

if TYPE_CHECKING:
    from gpuproof.suites.load.conclude import LoadResult

RESULTS_FILE = "gpu_loadtest_results.json"
SCHEMA = 1
MS_PER_S = 1e3
GIB_BYTES = 2**30
PERCENTILES = (50, 95, 99)
UNITS = {
    "cpu_usage_stats": "percent of all CPUs of the host, all processes",
    "memory_usage_stats": "MiB of host memory in use, all processes",
    "gpu_utilization_stats": "percent of time with a kernel running, on the GPUs of the test",
    "gpu_memory_stats": "MiB in use on a GPU of the test, all processes",
    "peak_gpu_memory_mb": "MiB, by the framework's allocator, in the window",
    "peak_gpu_utilization_percent": (
        f"highest of total_samples_collected readings, of which there are at least {MIN_READINGS}"
    ),
    "memory_total_gb": "GiB",
    "monitoring_sample_rate": "seconds between two readings, as actually taken",
    "duration_seconds": "the window: iterations x batch_size x num_devices / duration_seconds = throughput",
    "avg_iteration_time_ms": (
        "duration_seconds / iterations, so it includes waits at both ends of the window, which the other "
        "iteration times do not: in a short window it may exceed max_iteration_time_ms"
    ),
    "actual_duration_seconds": "all tests, from the first record of each to its last",
}
NO_PEAK = "the framework's allocator reported no peak on this device"
Missing = dict[str, str]


def loadtest_json(
    results: Sequence[LoadResult],
    *,
    config: RunConfig,
    description: Mapping[str, Any],
    environment: Mapping[str, Any] | None,
    cases: Sequence[CaseRecords],
) -> dict[str, Any]:
    """Return the content of the whole file."""
    return {
        "schema_version": SCHEMA,
        "gpuproof_version": description["gpuproof_version"],
        "run_id": description["run_id"],
        "system_info": _system_info(environment, cases, timestamp=description["created"]),
        "test_summary": _test_summary(results, cases, timestamp=description["created"]),
        "parameters": _parameters(config),
        "units": UNITS,
        "results": [_result_json(result) for result in results if result.success is not None],
    }


def _system_info(
    environment: Mapping[str, Any] | None, cases: Sequence[CaseRecords], *, timestamp: str
) -> dict[str, Any]:
    hosts = list((environment or {}).items())
    host, facts = hosts[0] if hosts else (_first_host(cases), {})
    devices, cpu, memory_bytes = (facts.get(key) for key in ("devices", "cpu", "memory_total_bytes"))
    names = None
    if isinstance(devices, list) and all(isinstance(device, Mapping) for device in devices):
        names = [device.get("name") for device in devices]
    fields = {
        "hostname": host,
        "gpu_names": names,
        "gpu_count": None if names is None else len(names),
        "cuda_version": facts.get("torch_cuda"),
        "pytorch_version": facts.get("torch"),
        "cpu_count": cpu.get("logical_cpus") if isinstance(cpu, Mapping) else None,
        "memory_total_gb": memory_bytes / GIB_BYTES if isinstance(memory_bytes, int | float) else None,
        "timestamp": timestamp,
    }
    reason = "not reported by this host" if facts else "no test got far enough to report its host's facts"
    missing = {key: reason for key, value in fields.items() if value is None}
    if "cuda_version" in missing and facts:
        missing["cuda_version"] = "this PyTorch is built without CUDA"
    return {**fields, "missing": missing}


def _first_host(cases: Sequence[CaseRecords]) -> str | None:
    return next((start.host for records in cases for start in records.of(Start)), None)


def _test_summary(
    results: Sequence[LoadResult], cases: Sequence[CaseRecords], *, timestamp: str
) -> dict[str, Any]:
    ended = [result.success for result in results]
    not_run = [result.test.name for result in results if result.success is None]
    actual_s = _seconds_taken(cases)
    missing = {"requested_duration_minutes": "the length is set in batches, not in minutes"}
    if actual_s is None:
        missing["actual_duration_seconds"] = "no test was run"
    return {
        "requested_duration_minutes": None,
        "actual_duration_seconds": actual_s,
        "total_tests": len(results),
        "successful_tests": ended.count(True),
        "failed_tests": ended.count(False),
        "not_run_tests": not_run,
        "timestamp": timestamp,
        "missing": missing,
    }


def _seconds_taken(cases: Sequence[CaseRecords]) -> float | None:
    """Sum, over launches, the time from first to last record; None if nothing was launched."""
    total_s, has_ended = 0.0, False
    for records in cases:
        taken_s = [] if records.taken_s is None else [records.taken_s]
        begin_unix_s = min((start.unix_s for start in records.of(Start)), default=None)
        if begin_unix_s is not None:
            taken_s += [failure.unix_s - begin_unix_s for failure in records.of(Failure)]
        if taken_s:
            total_s, has_ended = total_s + max(0.0, *taken_s), True
    return total_s if has_ended else None


def _parameters(config: RunConfig) -> dict[str, Any]:
    loader = config.data.loading == "loader"
    reason = "samples are generated on the device, and no loader runs (--loader starts one)"
    return {
        "num_epochs": config.load.num_epochs,
        "num_batches": config.load.num_batches,
        "num_workers": config.data.num_workers if loader else None,
        "device": config.distributed.device,
        "data_loading": config.data.loading,
        "longest_sample_rate": config.load.metrics_sample_rate_s,
        "warmup_batches": config.benchmark.warmup_steps,
        "launches_per_test": config.run.repeats,
        "precision": config.training.precision,
        "optimizer": config.training.optimizer,
        "learning_rate": config.training.learning_rate,
        "seed": config.training.seed,
        "missing": {} if loader else {"num_workers": reason},
    }


def _result_json(result: LoadResult) -> dict[str, Any]:
    test, failure = result.test, result.failure
    missing: Missing = {}
    figures = {**_speed(result, missing), **_memory(result, missing), **_readings(result, missing)}
    if not result.success:
        figures = {key: [] if isinstance(value, list) else None for key, value in figures.items()}
        missing = {key: NOT_MEASURED for key, value in figures.items() if value is None}
    return {
        "test_name": test.name,
        "test_type": test.test_type,
        "description": test.description,
        "model_name": test.model,
        "batch_size": test.batch_size,
        "success": bool(result.success),
        "error_message": None if failure is None else failure.message or failure.cause,
        "error_cause": None if failure is None else failure.cause,
        **figures,
        "validity": result.point.result.validity if result.success else None,
        "findings": [to_json(doubt) for doubt in result.doubts] if result.success else [],
        "missing": missing,
    }


def _speed(result: LoadResult, missing: Missing) -> dict[str, Any]:
    point, launches, times_s = result.point.figures, result.point.launches, result.step_times_s
    figures: dict[str, Any] = {
        "duration_seconds": point.value(WINDOW),
        "iterations": sum(launch.slowest.num_steps for launch in launches) or None,
        "num_devices": launches[0].world_size if launches else None,
        "throughput_samples_per_second": point.rate_value,
        "avg_iteration_time_ms": _ms(point.value(STEP)),
        "min_iteration_time_ms": _ms(min(times_s, default=None)),
        "max_iteration_time_ms": _ms(max(times_s, default=None)),
    }
    if not times_s:
        reason = "step times were not stored (benchmark.log_step_times is false)"
        missing.update(dict.fromkeys(("min_iteration_time_ms", "max_iteration_time_ms"), reason))
    for q in PERCENTILES:
        step = percentile(times_s, q)
        figures[f"p{q}_iteration_time_ms"] = _ms(step.value)
        if step.reason is not None:
            missing[f"p{q}_iteration_time_ms"] = step.reason
    return figures


def _memory(result: LoadResult, missing: Missing) -> dict[str, Any]:
    peaks = {
        "peak_gpu_memory_mb": result.point.figures.value(PEAK_MEMORY),
        "peak_gpu_memory_with_warmup_mb": result.peak_with_warmup_bytes,
    }
    is_on_cpu = all(launch.setup.device.kind == "cpu" for launch in result.point.launches)
    reason = NO_GPU if is_on_cpu else NO_PEAK
    missing.update({key: reason for key, peak in peaks.items() if peak is None})
    return {key: None if peak is None else peak / MIB_BYTES for key, peak in peaks.items()}


def _readings(result: LoadResult, missing: Missing) -> dict[str, Any]:
    read = result.readings
    blocks = {
        "cpu_usage_stats": read.cpu_percent,
        "memory_usage_stats": read.memory_mib,
        "gpu_utilization_stats": read.gpu_utilization_percent,
        "gpu_memory_stats": read.gpu_memory_mib,
    }
    missing.update({key: block.missing for key, block in blocks.items() if block.missing is not None})
    utilization = read.gpu_utilization_percent
    if utilization.missing is not None:
        missing["peak_gpu_utilization_percent"] = utilization.missing
    if read.interval_s is None:
        reason = read.cpu_percent.missing or NOT_MEASURED
        missing.update(dict.fromkeys(("monitoring_sample_rate", "total_samples_collected"), reason))
    return {
        "peak_gpu_utilization_percent": None if utilization.stats is None else utilization.stats.max_value,
        **{key: to_json(block.stats) for key, block in blocks.items()},
        "gpus": [
            {
                "index": gpu.physical_index,
                "name": gpu.name,
                "uuid": gpu.uuid,
                **_gpu_json(utilization_stats=gpu.utilization_percent, memory_stats=gpu.memory_mib),
            }
            for gpu in read.gpus
        ],
        "monitoring_sample_rate": read.interval_s,
        "total_samples_collected": None if read.interval_s is None else read.num_readings,
    }


def _gpu_json(**blocks: Quantity) -> dict[str, Any]:
    reasons = {key: block.missing for key, block in blocks.items() if block.missing is not None}
    return {**{key: to_json(block.stats) for key, block in blocks.items()}, "missing": reasons}


def _ms(value_s: float | None) -> float | None:
    return None if value_s is None else value_s * MS_PER_S

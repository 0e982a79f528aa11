"""A small fleet written down by hand: what its hosts tell of themselves, and what was measured."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from gpuproof.records.outcome import Judged
from gpuproof.records.result import LaunchValue, Measure, MeasureInterval
from gpuproof.verdict.baseline import Baseline, RunValues, record_baseline, stack_of
from gpuproof.verdict.facts import FleetFacts
from gpuproof.verdict.rules import judge_rules, read_rules

H100 = "NVIDIA H100 80GB HBM3"
GEMM = {"workload": "gemm", "dtype": "bf16", "at_once": True}
STATIC: Mapping[str, Any] = {
    **{"ecc_mode": "enabled", "mig_mode": "disabled", "persistence_mode": "enabled"},
    **{"power_limit_w": 700.0, "power_limit_default_w": 700.0, "vbios_version": "96.00.61"},
    **{"clock_sm_application_mhz": 1980.0, "clock_sm_max_mhz": 1980.0, "mem_total_bytes": 85_520_809_984},
    **{"pcie_gen_max": 5, "pcie_width_max": 16},
}
STATE: Mapping[str, Any] = {
    **{"pcie_gen": 1.0, "pcie_width": 16.0, "nvlink_links_active": 18.0},
    **{"remapped_rows_failed": 0.0, "remapped_rows_pending": 0.0, "ecc_uncorrected_count": 0.0},
}
PORT = {"device": "mlx5_0", "port": "1", "state": "ACTIVE", "rate": "400 Gb/sec (4X NDR)"}


def gpu(host: str, index: int) -> str:
    return f"host/{host}/gpu/GPU-{host}-{index}"


def host_facts(
    host: str, *, gpus: int = 2, name: str = H100, driver: str = "570.86", **other: Any
) -> dict[str, Any]:
    """Return what a healthy host tells; `static` and `state` are laid over those of its first GPU."""
    static, state = other.pop("static", {}), other.pop("state", {})
    listed = [
        {
            **{"physical_index": i, "framework_index": i, "uuid": f"GPU-{host}-{i}", "name": name},
            **{"static": {**STATIC, **(static if i == 0 else {})}, "unavailable": {}},
            **{"state": {**STATE, **(state if i == 0 else {})}, "state_unavailable": {}},
        }
        for i in range(gpus)
    ]
    return {
        **{"host": host, "os": "Linux-6.8", "torch": "2.9.1", "torch_cuda": "13.0", "nccl": "2.27.7"},
        "devices": [{"index": i, "uuid": f"GPU-{host}-{i}", "name": name} for i in range(gpus)],
        "accelerators": {"devices": listed, "drivers": {"nvidia": {"version": driver}}, "absent": {}},
        "infiniband": [PORT],
        "affinity": {
            **{"numa_nodes": {"0": "0-3", "1": "4-7"}, "allowed_cpus": list(range(8))},
            **{"device_numa_nodes": {"0000:01:00.0": "0", "0000:81:00.0": "1"}, "peer_memory": True},
        },
        "environment": {},
        **other,
    }


def hosts(*names: str, gpus: int = 2, **other: Any) -> dict[str, dict[str, Any]]:
    return {name: host_facts(name, gpus=gpus, **other) for name in names}


def measured(
    subject: str,
    value: float | None,
    *,
    spread: float | None = None,
    name: str = "throughput",
    labels: Mapping[str, Any] = GEMM,
    unit: str = "FLOP/s",
    launches: int = 0,
    **other: Any,
) -> Measure:
    """Return a measure; `spread` is half the width of its interval, over the value."""
    interval = None
    if spread is not None and value is not None:
        interval = MeasureInterval(
            low=value * (1 - spread),
            high=value * (1 + spread),
            level=0.95,
            kind="between_launches" if launches else "within_launch",
            method="by hand",
        )
    return Measure(
        name=name,
        value=value,
        unit=unit,
        text="–" if value is None else f"{value:g} {unit}",
        subject=subject,
        labels=labels,
        interval=interval,
        launches=tuple(LaunchValue(replicate=i, order=i, value=value or 0.0) for i in range(launches)),
        **{"better": "higher", **other},
    )


def rule(expect: str, *, each: str = "gpu", more: str = "", measure: str = "") -> str:
    """Write a file of one rule."""
    match = measure or "{name: throughput, labels: {workload: gemm, dtype: bf16}}"
    return f"rules:\n  - name: r\n    each: {each}\n    measure: {match}\n    expect: {expect}\n{more}"


def judged(text: str, facts: FleetFacts) -> list[Judged]:
    return judge_rules(read_rules(text, source="rules.yaml"), facts)


def statuses(found: Sequence[Judged]) -> dict[str, str]:
    """Return the status of each subject; of several of one, the last."""
    return {item.outcome.subject: item.outcome.status for item in found}


def baseline(facts: FleetFacts, *more: Sequence[Measure]) -> Baseline:
    """Return the baseline of runs on these hosts."""
    stack = stack_of(facts.hosts)
    runs = [facts.measures, *more]
    figures = [RunValues(run_id=f"run-{i}", measures=run, stack=stack) for i, run in enumerate(runs)]
    return record_baseline("pod", figures, recorded="2026-11-22", gpuproof_version="0")

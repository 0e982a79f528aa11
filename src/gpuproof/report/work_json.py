"""What run_summary.json says of work, ceilings, learning and the traced steps, beyond the known fields."""

from __future__ import annotations

from typing import Any

from gpuproof.analysis.run_summary import RunSummary
from gpuproof.records.codec import to_json
from gpuproof.report.profiled import Profiled


def work_json(summary: RunSummary) -> dict[str, Any]:
    """Return utilisation with what it is a share of, ceilings and evaluations; null is not known."""
    first = summary.launches[0] if summary.launches else None
    flops, traffic = summary.flops_per_s_per_device, summary.bytes_per_s_per_device
    peak, memory_peak = summary.peak, summary.memory_peak
    return {
        "flops_per_step": None if first is None else first.flops_per_step,
        "flops_per_step_closed_form": None if first is None else first.setup.flops_per_step,
        "flops_per_step_counted": None if first is None else first.setup.flops_per_step_counted,
        "flops_not_counted": None if first is None else first.setup.flops_not_counted,
        "mfu": None if flops is None or peak is None else flops / peak.flops_per_s,
        "mfu_peak": None if peak is None else {**to_json(peak), "density": "dense"},
        "bytes_per_s_per_device": traffic,
        "memory_bandwidth_use": None
        if traffic is None or memory_peak is None
        else traffic / memory_peak.bytes_per_s,
        "memory_peak": None if memory_peak is None else to_json(memory_peak),
        "measured_ceilings": None if summary.roofline is None else to_json(summary.roofline),
        "evaluations": [to_json(each) for launch in summary.launches for each in launch.evaluations],
    }


def profile_json(profile: Profiled | None) -> dict[str, Any]:
    """Return the three independent numbers of communication, and the summary of the traced steps."""
    times = None if profile is None else profile.communication
    reason = "nothing was traced (profiling.enabled)" if profile is None else profile.missing
    names = ("comm_exposed_ms", "comm_kernel_ms", "allreduce_standalone_ms")
    return {
        **{name: None if times is None else getattr(times, name) for name in names},
        "communication_missing": dict.fromkeys(names, reason) if times is None else times.missing,
        "profile": None if profile is None else to_json(profile),
    }

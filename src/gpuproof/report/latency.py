"""What a run in latency mode says: how long one batch takes that nobody queues behind. Never a throughput.

In: the summary of a run. Out: its measures for the report, and the fields of its summary as JSON and CSV. In
throughput mode a step time is no latency, since steps are queued, and these fields are null.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import fsum
from typing import Any

from gpuproof import units
from gpuproof.analysis.launch import Launch
from gpuproof.analysis.run_summary import RunSummary
from gpuproof.records.case import InferencePhase
from gpuproof.report.measure import Measure, with_interval
from gpuproof.statistics.estimate import Interval, Unavailable
from gpuproof.statistics.percentiles import Percentile, percentile

LATENCY_OF: dict[InferencePhase, str] = {
    "forward": "latency",
    "prefill": "time to first token",
    "decode": "time per output token",
}
QUEUED = "throughput mode queues its steps, so that no step time is a latency"


def latency_measures(summary: RunSummary) -> list[Measure]:
    """Return the figures of a run in latency mode: the median first, with its interval."""
    what = LATENCY_OF[summary.launches[0].case.inference.phase]
    median, *tail = summary.step_percentiles
    times_s = _pooled(summary.launches)
    measures = [
        with_interval(
            f"p{median.q:g} {what}",
            median.value,
            "s",
            units.seconds(median.value),
            summary.step_s_interval if median.value is not None else Unavailable(reason=_needs(median)),
        )
    ]
    counted = f"of {units.count(len(times_s))} steps, each waited for"
    measures += [_of_tail(f"p{found.q:g} {what}", found, counted) for found in tail]
    mean_s = fsum(times_s) / len(times_s)
    for name, value_s in (("mean", mean_s), ("shortest", min(times_s)), ("longest", max(times_s))):
        measures.append(_seconds(f"{name} {what}", value_s, counted))
    return measures


def _of_tail(name: str, found: Percentile, counted: str) -> Measure:
    if found.value is None:
        return _seconds(name, None, _needs(found))
    return _seconds(
        name, found.value, f"{counted}; at most {units.seconds(found.bound)} at {found.confidence:.0%}"
    )


def _needs(found: Percentile) -> str:
    return f"needs {units.count(found.num_needed)} steps, have {units.count(found.num_samples)}"


def _seconds(name: str, value_s: float | None, detail: str) -> Measure:
    return Measure(name=name, value=value_s, unit="s", text=units.seconds(value_s), detail=detail)


def _pooled(launches: Sequence[Launch]) -> list[float]:
    return [time_s for launch in launches for time_s in launch.step_times_s]


def inference_json(summary: RunSummary) -> dict[str, Any] | None:
    """Return the `inference` field of run_summary.json; None for a run that trains or measured nothing."""
    if not summary.launches or summary.launches[0].case.kind != "inference":
        return None
    case, setup = summary.launches[0].case, summary.launches[0].setup
    generates = case.generates
    return {
        "mode": case.inference.mode,
        "phase": case.inference.phase,
        "prompt_tokens": case.inference.prompt_tokens if generates else None,
        "new_tokens": case.inference.new_tokens if case.inference.phase == "decode" else None,
        "kv_cache_bytes": setup.kv_cache_bytes,
        "bytes_per_step": setup.bytes_per_step,
        "latency": _latency_json(summary) if case.measures_latency else None,
        "latency_missing": None if case.measures_latency else QUEUED,
    }


def _latency_json(summary: RunSummary) -> dict[str, Any]:
    times_s = _pooled(summary.launches)
    found = summary.step_percentiles
    interval = summary.step_s_interval
    return {
        "of": LATENCY_OF[summary.launches[0].case.inference.phase],
        "num_steps": len(times_s),
        **{f"p{each.q:g}_s": each.value for each in found},
        "mean_s": fsum(times_s) / len(times_s),
        "min_s": min(times_s),
        "max_s": max(times_s),
        "percentiles_missing": [each.reason for each in found if each.reason],
        "p50_low_s": interval.low if isinstance(interval, Interval) else None,
        "p50_high_s": interval.high if isinstance(interval, Interval) else None,
    }


def latency_columns(launch: Launch) -> dict[str, Any]:
    """Return what a row of summary.csv says of inference; empty where it does not apply."""
    case = launch.case
    inference = case.inference if case.kind == "inference" else None
    return {
        "inference_mode": inference.mode if inference else None,
        "inference_phase": inference.phase if inference else None,
        **{f"p{q}_latency_ms": _latency_ms(launch, q) for q in (50, 95, 99)},
    }


def _latency_ms(launch: Launch, q: float) -> float | None:
    value_s = percentile(launch.step_times_s, q).value if launch.case.measures_latency else None
    return None if value_s is None else value_s * 1e3

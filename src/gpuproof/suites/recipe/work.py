"""Device utilisation: FLOP/s, model FLOPs utilisation, memory bandwidth, memory, learning.

Every percentage states its reference: the formula, the ceiling's value, its data type and density, and its
source. If a device's ceiling is unknown, there is no percentage, and the report says so.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from gpuproof.base import units
from gpuproof.launches.launch import Launch
from gpuproof.records.result import Measure
from gpuproof.records.run import Evaluation
from gpuproof.records.what_ran import Memory
from gpuproof.verdict.summary import RunSummary

if TYPE_CHECKING:
    from gpuproof.launches.launch import MeasuredCeiling


def work_measures(summary: RunSummary) -> list[Measure]:
    """Return the known measures of the workload in a fixed order; unknown values are omitted."""
    return [
        *_arithmetic(summary),
        *_memory_traffic(summary),
        *_ceilings(summary),
        *memory_measures(summary),
        *_evaluation(summary),
        *_pruning(summary),
    ]


def memory_measures(summary: RunSummary) -> list[Measure]:
    """Return the known measures of the run's memory use."""
    return [*_cache(summary), *_peak_memory(summary), *_memory_estimate(summary)]


def _cache(summary: RunSummary) -> Iterator[Measure]:
    cached = summary.launches[0].setup.kv_cache_bytes
    if cached is not None:
        yield Measure(
            name="key-value cache",
            value=cached,
            unit="bytes",
            text=units.memory(cached),
            detail="per device, for all sequences of a batch",
        )


def _arithmetic(summary: RunSummary) -> Iterator[Measure]:
    reached = summary.flops_per_s_per_device
    if not reached:
        return
    precision = summary.launches[0].setup.precision
    unknown = f"; no MFU: no known {precision} peak for {summary.launches[0].setup.device.name}"
    yield Measure(
        name="model FLOP/s",
        value=reached,
        unit="FLOP/s",
        text=units.flops(reached),
        detail=f"per device: {_flops_of_a_step(summary)}{'' if summary.peak else unknown}",
    )
    if summary.peak is not None:
        yield _share(
            "MFU",
            reached / summary.peak.flops_per_s,
            f"model FLOP/s over {units.flops(summary.peak.flops_per_s, digits=4)}, "
            f"the dense {summary.peak.dtype} peak: {summary.peak.provenance}",
        )


def _flops_of_a_step(summary: RunSummary) -> str:
    """Report a step's FLOPs and where the number comes from."""
    setup = summary.launches[0].setup
    closed, counted = setup.flops_per_step, setup.flops_per_step_counted
    amount = units.flop_count(summary.launches[0].flops_per_step)
    if closed is None:
        return f"{amount} per step, counted by torch"
    if counted is None:
        not_counted = f" (not counted: {setup.flops_not_counted})" if setup.flops_not_counted else ""
        return f"{amount} per step by closed form{not_counted}"
    agreement = "torch counts the same" if counted == closed else f"torch counts {units.flop_count(counted)}"
    return f"{amount} per step by closed form; {agreement}"


def _memory_traffic(summary: RunSummary) -> Iterator[Measure]:
    reached = summary.bytes_per_s_per_device
    if not reached:
        return
    launch = summary.launches[0]
    amount = units.memory(launch.setup.bytes_per_step or 0.0)
    unknown = f"; no percentage: no known memory peak for {launch.setup.device.name}"
    yield Measure(
        name="memory traffic",
        value=reached,
        unit="bytes/s",
        text=units.bandwidth(reached),
        detail=f"per device: {amount} per step by closed form{'' if summary.memory_peak else unknown}",
    )
    if summary.memory_peak is not None:
        peak = summary.memory_peak
        yield _share(
            "memory bandwidth use",
            reached / peak.bytes_per_s,
            f"memory traffic over {units.bandwidth(peak.bytes_per_s)}: {peak.provenance}",
        )
    padded = launch.setup.padded_bytes_per_step
    if padded is not None:
        yield Measure(
            name="padded cache",
            value=padded,
            unit="bytes",
            text=units.memory(padded),
            detail="data read per step beyond the tokens, up to the end of a bucket; not in memory traffic",
            better="lower",
        )
    if summary.flops_per_s_per_device:
        intensity = summary.flops_per_s_per_device / reached
        yield Measure(
            name="arithmetic intensity",
            value=intensity,
            unit="FLOP/byte",
            text=f"{units.significant(intensity)} FLOP/byte",
            detail=_side_of_the_ridge(summary, intensity),
        )


def _side_of_the_ridge(summary: RunSummary, intensity: float) -> str:
    ridge = None if summary.roofline is None else summary.roofline.ridge_flops_per_byte
    if ridge is None:
        return "model FLOPs divided by bytes; profiling.ceilings shows whether memory or arithmetic limits it"
    limit = "memory" if intensity < ridge else "arithmetic"
    return f"{limit} is the limit: the measured ceilings meet at {units.significant(ridge)} FLOP/byte"


def _ceilings(summary: RunSummary) -> Iterator[Measure]:
    """Report this device's GEMM and memory ceilings, and the run's fraction of each."""
    roofline = summary.roofline
    if roofline is None:
        return
    precision = summary.launches[0].setup.precision
    for name, ceiling, reached, unit, text in (
        ("GEMM", roofline.compute, summary.flops_per_s_per_device, "FLOP/s", units.flops),
        ("memory", roofline.memory, summary.bytes_per_s_per_device, "bytes/s", units.bandwidth),
    ):
        if ceiling is None:
            continue
        kind = f"{precision} {_describe_ceiling(ceiling)}" if name == "GEMM" else _describe_ceiling(ceiling)
        slowest = f", slowest of {roofline.num_devices} devices" if roofline.num_devices > 1 else ""
        yield Measure(
            name=f"{name} ceiling",
            value=ceiling.value_per_s,
            unit=unit,
            text=text(ceiling.value_per_s),
            detail=f"measured after the window: {kind}, best of {ceiling.num_repeats}, "
            f"median {units.share(ceiling.relative_spread)} below{slowest}",
        )
        if reached:
            yield _share(
                f"of {name} ceiling",
                reached / ceiling.value_per_s,
                "achieved rate divided by the measured ceiling, not by the data sheet's",
            )


def _describe_ceiling(ceiling: MeasuredCeiling) -> str:
    if ceiling.what == "gemm":
        return f"matrix product of {' × '.join(map(units.count, ceiling.size))}"
    return f"{ceiling.what} over buffers of {units.memory(ceiling.size[0])}"


def _share(name: str, value: float, detail: str) -> Measure:
    return Measure(name=name, value=value, unit="share", text=units.share(value), detail=detail)


def _peak_memory(summary: RunSummary) -> Iterator[Measure]:
    allocated = [w.peak_allocated_bytes for launch in summary.launches for w in launch.windows]
    peaks = [value for value in allocated if value is not None]
    if peaks and len(peaks) == len(allocated):  # the largest rank is not known if one rank's peak was lost
        yield Measure(
            name="peak memory",
            value=max(peaks),
            unit="bytes",
            text=units.memory(max(peaks)),
            detail="allocated by tensors in the window, largest rank",
        )


def _memory_estimate(summary: RunSummary) -> Iterator[Measure]:
    estimated = _estimated_memory(summary.launches)
    if estimated is not None:
        value, detail = estimated
        yield Measure(name="memory", value=value, unit="bytes", text=units.memory(value), detail=detail)


def _evaluation(summary: RunSummary) -> Iterator[Measure]:
    """Yield the models' loss and accuracy: the mean over all samples that the ranks evaluated."""
    evaluations = [one for launch in summary.launches for one in launch.evaluations]
    taken = [one for one in evaluations if not one.is_held_out]
    held_out = [one for one in evaluations if one.is_held_out]
    none = "" if held_out else ": no samples are held out"
    yield from _learnt(taken, "", f"samples also used in steps{none}")
    yield from _learnt(held_out, "held-out ", "samples that no step used")


def _learnt(evaluations: Sequence[Evaluation], prefix: str, which: str) -> Iterator[Measure]:
    samples = sum(one.samples for one in evaluations)
    if not samples:
        return
    over = f"after the window, over {units.count(samples)} {which}"
    losses = [(one.mean_loss, one.samples) for one in evaluations if one.mean_loss is not None]
    if len(losses) == len(evaluations):
        loss = sum(value * weight for value, weight in losses) / samples
        text = units.significant(loss, 4)
        yield Measure(name=f"{prefix}evaluation loss", value=loss, unit="", text=text, detail=over)
    scores = [(one.accuracy, one.samples) for one in evaluations if one.accuracy is not None]
    if len(scores) == len(evaluations):
        yield _share(f"{prefix}accuracy", sum(value * weight for value, weight in scores) / samples, over)
    errors = [(x.mean_absolute_error, x.samples) for x in evaluations if x.mean_absolute_error is not None]
    if len(errors) == len(evaluations):
        error = sum(value * weight for value, weight in errors) / samples
        text = units.significant(error, 4)
        yield Measure(name=f"{prefix}mean absolute error", value=error, unit="", text=text, detail=over)


def _pruning(summary: RunSummary) -> Iterator[Measure]:
    """Yield the model's sparsity, and the memory of its masks and scores."""
    models = [model for launch in summary.launches for model in launch.pruned]
    if not models:
        return
    least = min(models, key=lambda model: model.sparsity)
    yield _share(
        "sparsity",
        least.sparsity,
        f"{least.method} pruning, target {units.share(least.target_sparsity)} at update "
        f"{units.count(least.end_step)}: {units.count(least.num_zero)} of {units.count(least.num_weights)} "
        f"weights are zero after update {units.count(least.num_updates)}",
    )
    yield Measure(
        name="pruning memory",
        value=least.buffers_bytes,
        unit="bytes",
        text=units.memory(least.buffers_bytes),
        detail="size of the tensors for a rank's masks and scores; in addition to the optimizer's state",
    )


def _estimated_memory(launches: Sequence[Launch]) -> tuple[int, str] | None:
    """Report the estimated and the measured memory of the launches, for the rank that uses the most."""
    if not launches or not launches[0].memory:
        return None
    launch = launches[0]
    largest = max(launch.memory, key=_estimated_bytes)
    measured = _measured_text(launch, largest)
    return _estimated_bytes(largest), f"estimated for a rank: {_parts(largest)}; {measured}"


def _estimated_bytes(memory: Memory) -> int:
    return memory.estimate.total_bytes + (memory.activations_bytes or 0)


def memory_parts(launches: Sequence[Launch]) -> dict[str, int]:
    """Return the estimated memory, in bytes, of the rank that uses the most; only known parts count."""
    return _parts_of(max(launches[0].memory, key=_estimated_bytes)) if launches[0].memory else {}


def _parts_of(memory: Memory) -> dict[str, int]:
    estimate = memory.estimate
    parts = {
        "parameters": estimate.parameters_bytes,
        "gradients": estimate.gradients_bytes,
        "optimizer": estimate.optimizer_bytes,
        "communication": estimate.communication_bytes,
        "activations": memory.activations_bytes,
    }
    return {name: value for name, value in parts.items() if value}


def _parts(memory: Memory) -> str:
    sizes = [f"{name} {units.memory(value)}" for name, value in _parts_of(memory).items()]
    if memory.activations_bytes is None:
        sizes.append(f"activations not known: {memory.activations_missing}")
    return ", ".join(sizes)


def _measured_text(launch: Launch, memory: Memory) -> str:
    window = next(window for window in launch.windows if window.rank == memory.rank)
    if window.peak_allocated_bytes is not None:
        return (
            f"measured peak allocated {units.memory(window.peak_allocated_bytes)}, reserved "
            f"{units.memory(window.peak_reserved_bytes)}, on the device by all processes "
            f"{units.memory(memory.device_used_bytes)}"
        )
    if memory.counted is None:
        return "nothing was counted"
    total = units.memory(memory.counted.total_bytes)
    return f"total size of tensors: {total}, without activations and communication"

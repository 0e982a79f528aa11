"""What is measured: the window and its end, how inference is timed, and steps that no CUDA graph can hold."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from gpuproof.config.rules.base import Refusal, Refusals

if TYPE_CHECKING:
    from gpuproof.config.models import RunConfig


OWN_GRAPHS = ("reduce-overhead", "max-autotune")
"""Modes in which torch.compile makes CUDA graphs by itself."""


def window_has_an_end(config: RunConfig) -> Refusals:
    """Ask for the length that `measure_by` needs."""
    window = config.benchmark
    needed = {"steps": "measure_steps", "time": "measure_seconds"}.get(window.measure_by)
    if window.enabled and needed is not None and getattr(window, needed) is None:
        yield Refusal(
            keys=("benchmark.measure_by", f"benchmark.{needed}"),
            cause=f"the window is measured by {window.measure_by}, but benchmark.{needed} is null",
            next_step=f"Set benchmark.{needed}",
        )


def window_fits_the_time_limit(config: RunConfig) -> Refusals:
    """Refuse a time limit that ends before the window does."""
    limit_s, window = config.run.time_limit_s, config.benchmark
    if limit_s is not None and window.measure_by == "time" and limit_s <= (window.measure_seconds or 0):
        yield Refusal(
            keys=("run.time_limit_s", "benchmark.measure_seconds"),
            cause=f"the time limit of {limit_s:g} s ends before the window of "
            f"{window.measure_seconds:g} s does",
            next_step="Raise run.time_limit_s, or shorten benchmark.measure_seconds",
        )


def throughput_waits_for_no_step(config: RunConfig) -> Refusals:
    """Refuse to wait for each step where throughput queues them."""
    if config.kind == "inference" and config.inference.mode == "throughput" and config.benchmark.sync_cuda:
        yield Refusal(
            keys=("benchmark.sync_cuda", "inference.mode"),
            cause="inference in throughput mode queues its steps, but benchmark.sync_cuda waits for each",
            next_step="Set inference.mode to latency, or remove benchmark.sync_cuda",
        )


def latency_keeps_its_steps(config: RunConfig) -> Refusals:
    """Ask for step times where they are the result."""
    latency = config.kind == "inference" and config.inference.mode == "latency"
    if latency and not config.benchmark.log_step_times:
        yield Refusal(
            keys=("benchmark.log_step_times", "inference.mode"),
            cause="latencies are step times, but benchmark.log_step_times is false",
            next_step="Set benchmark.log_step_times to true, or inference.mode to throughput",
        )


def a_graph_can_hold_the_step(config: RunConfig) -> Refusals:
    """Refuse what cannot be captured whatever the device; the worker refuses what a device cannot do."""
    if config.training.cuda_graphs:
        for key, holds, cause, next_step in _obstacles_to_a_graph(config):
            if holds:
                yield Refusal(
                    keys=("training.cuda_graphs", key),
                    cause=f"the step cannot be captured: {cause}",
                    next_step=next_step,
                )
                return


def _obstacles_to_a_graph(config: RunConfig) -> Iterator[tuple[str, bool, str, str]]:
    """Yield keys, whether what they say stands in the way, why, and what to do."""
    training, ranks, compiled = config.training, config.distributed, config.training.compile
    yield (
        "training.precision",
        training.precision == "amp" and config.kind == "training",
        "amp's gradient scaler waits for the device in each step",
        "Set training.precision to bf16",
    )
    yield (
        "training.activation_checkpointing",
        training.activation_checkpointing != "none" and config.kind == "training",
        "checkpointing saves and restores the random state on the host",
        "Set training.activation_checkpointing to none",
    )
    yield (
        "training.compile.mode",
        compiled.enabled and compiled.mode in OWN_GRAPHS,
        f"torch.compile makes graphs of its own in mode {compiled.mode}",
        "Set training.compile.mode to default or max-autotune-no-cudagraphs, or "
        "training.cuda_graphs to false",
    )
    without_graphs = "Set training.cuda_graphs to false"
    yield "kind", config.kind == "serving", "requests come in batches of several sizes", without_graphs
    yield (
        "inference.phase",
        config.kind == "inference" and config.inference.phase != "forward",
        f"{config.inference.phase} works on a cache that grows",
        f"{without_graphs}, or inference.phase to forward",
    )
    is_loaded = config.data.loading == "loader"
    yield (
        "data.loading",
        is_loaded,
        "a loader brings each batch to another place",
        "Set data.loading to device",
    )
    yield "distributed.device", ranks.device == "cpu", "the device is cpu", without_graphs
    yield "distributed.nproc", ranks.nproc > 1, "a graph holds one rank only", "Set distributed.nproc to 1"


def host_is_read_no_more_often(config: RunConfig) -> Refusals:
    """Refuse an interval of the host that is shorter than the devices', which the sampler never keeps."""
    monitoring = config.monitoring
    if monitoring.host_interval_s is not None and monitoring.host_interval_s < monitoring.interval_s:
        yield Refusal(
            keys=("monitoring.host_interval_s", "monitoring.interval_s"),
            cause=f"the host cannot be read every {monitoring.host_interval_s:g} s where all is read every "
            f"{monitoring.interval_s:g} s",
            next_step=f"Set it to {monitoring.interval_s:g} or more, or lower monitoring.interval_s",
        )

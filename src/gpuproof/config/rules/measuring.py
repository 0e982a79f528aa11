"""What is measured: the window, how inference is timed, and steps that no CUDA graph can capture."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from gpuproof.config.rules.base import Refusal, Refusals
from gpuproof.records.work.window import BATCHES_VARY, CaptureObstacle, capture_obstacles

if TYPE_CHECKING:
    from gpuproof.config.models import RunConfig


def window_has_an_end(config: RunConfig) -> Refusals:
    """Require the length that the chosen `measure_by` needs."""
    window = config.benchmark
    needed = {"steps": "measure_steps", "time": "measure_seconds"}.get(window.measure_by)
    if window.enabled and needed is not None and getattr(window, needed) is None:
        yield Refusal(
            keys=("benchmark.measure_by", f"benchmark.{needed}"),
            cause=f"the window is measured by {window.measure_by}, but benchmark.{needed} is null",
            next_step=f"Set benchmark.{needed}",
        )


def window_fits_the_time_limit(config: RunConfig) -> Refusals:
    """Reject a time limit that expires before the window ends."""
    limit_s, window = config.run.time_limit_s, config.benchmark
    if limit_s is not None and window.measure_by == "time" and limit_s <= (window.measure_seconds or 0):
        yield Refusal(
            keys=("run.time_limit_s", "benchmark.measure_seconds"),
            cause=f"the time limit of {limit_s:g} s expires before the window of "
            f"{window.measure_seconds:g} s ends",
            next_step="Raise run.time_limit_s, or shorten benchmark.measure_seconds",
        )


def throughput_waits_for_no_step(config: RunConfig) -> Refusals:
    """Reject waiting for each step in throughput mode, which queues steps."""
    if config.kind == "inference" and config.inference.mode == "throughput" and config.benchmark.sync_cuda:
        yield Refusal(
            keys=("benchmark.sync_cuda", "inference.mode"),
            cause="inference in throughput mode queues its steps, but benchmark.sync_cuda waits for each",
            next_step="Set inference.mode to latency, or remove benchmark.sync_cuda",
        )


def latency_keeps_its_steps(config: RunConfig) -> Refusals:
    """Require step times if they are the result of the run."""
    latency = config.kind == "inference" and config.inference.mode == "latency"
    if latency and not config.benchmark.log_step_times:
        yield Refusal(
            keys=("benchmark.log_step_times", "inference.mode"),
            cause="latencies are step times, but benchmark.log_step_times is false",
            next_step="Set benchmark.log_step_times to true, or inference.mode to throughput",
        )


def a_scaler_has_whole_weights(config: RunConfig) -> Refusals:
    """Reject training with fp16 weights: torch's gradient scaler only accepts fp32 gradients."""
    if (config.kind, config.training.precision, config.training.weights) == ("training", "amp", "precision"):
        yield Refusal(
            keys=("training.weights", "training.precision"),
            cause="amp's gradient scaler only accepts fp32 gradients, and those of fp16 weights are fp16",
            next_step="Set training.weights to fp32, or training.precision to bf16",
        )


def a_graph_can_hold_the_step(config: RunConfig) -> Refusals:
    """Reject steps that no device can capture; the worker rejects those that its own device cannot."""
    works_on_a_cache = config.kind == "inference" and config.inference.phase != "forward"
    choices = {
        "training.cuda_graphs": config.training.cuda_graphs is True and not works_on_a_cache,
        "inference.cuda_graphs": config.inference.cuda_graphs is True
        and (works_on_a_cache or config.kind == "serving"),
    }
    for key in (key for key, is_chosen in choices.items() if is_chosen):
        for obstacle in _obstacles_to_a_graph(config, key):
            yield Refusal(
                keys=(key, obstacle.key),
                cause=f"the step cannot be captured: {obstacle.cause}",
                next_step=obstacle.next_step.replace("training.cuda_graphs", key),
            )
            return


def _obstacles_to_a_graph(config: RunConfig, key: str) -> Iterator[CaptureObstacle]:
    yield from capture_obstacles(config.training, config.data, updates_weights=config.kind == "training")
    if config.kind == "serving" and key == "training.cuda_graphs":
        yield CaptureObstacle("kind", BATCHES_VARY)
    if config.distributed.device == "cpu":
        yield CaptureObstacle("distributed.device", "the device is cpu")
    exchanges = config.kind == "training" or config.distributed.strategy == "tensor"
    if config.distributed.nproc > 1 and exchanges:
        cause = "a graph supports one rank only"
        yield CaptureObstacle("distributed.nproc", cause, "Set distributed.nproc to 1")


def host_is_read_no_more_often(config: RunConfig) -> Refusals:
    """Reject a host interval shorter than the device interval, since the sampler cannot achieve it."""
    monitoring = config.monitoring
    if monitoring.host_interval_s is not None and monitoring.host_interval_s < monitoring.interval_s:
        yield Refusal(
            keys=("monitoring.host_interval_s", "monitoring.interval_s"),
            cause=f"the host cannot be read every {monitoring.host_interval_s:g} s if everything "
            f"is read every {monitoring.interval_s:g} s",
            next_step=f"Set it to {monitoring.interval_s:g} or more, or lower monitoring.interval_s",
        )

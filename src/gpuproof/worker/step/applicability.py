"""Which keys of a case have no effect here, and why; recorded so that none seems to take effect."""

from __future__ import annotations

from collections.abc import Iterator

from gpuproof.accelerators.base import Accelerator
from gpuproof.records.case import Case, InferenceWork, ModelWork, ServingWork, TrainingWork
from gpuproof.records.run import NotApplied
from gpuproof.records.work.data import OWN_MODULE, DataSpec
from gpuproof.records.work.parallel import ParallelSpec
from gpuproof.records.work.window import WindowSpec
from gpuproof.worker.host.heap import reason_freed_memory_is_not_kept
from gpuproof.worker.parallel.distributed import NCCL
from gpuproof.worker.step.cuda_graph import capture_obstacle
from gpuproof.workloads.info.base import InputShape
from gpuproof.workloads.info.lookup import find_workload

PRECISION_KEYS = ("target_precision", "min_steps")
WINDOW_KEYS = (
    *("warmup_steps", "measure_by", "measure_steps", "min_seconds", "measure_seconds"),
    *PRECISION_KEYS,
)


def not_applied(
    case: Case, *, accelerator: Accelerator, shape: InputShape, world_size: int
) -> tuple[NotApplied, ...]:
    """List the keys in the case that have no effect on this device, in this kind of run."""
    work = case.model_work
    ineffective = [
        *_device_keys(work, shape, accelerator=accelerator),
        *_graph_keys(work, accelerator, world_size),
        *_kind_keys(work),
        *_inference_keys(work),
        *_window_keys(work),
        *_after_window_keys(work),
        *_input_keys(work, shape),
        *_data_keys(work.data),
        *_loader_keys(work.data, can_pin=accelerator.pins_memory),
        *_rank_keys(case, world_size),
        *_profile_keys(work.parallel, accelerator, world_size),
        *_limit_keys(work.parallel, accelerator),
        *find_workload(work.model.name).without_effect,
    ]
    return tuple(NotApplied(key=key, reason=reason) for key, reason in ineffective)


def _device_keys(
    work: ModelWork, shape: InputShape, *, accelerator: Accelerator
) -> Iterator[tuple[str, str]]:
    compute, queues = work.training, accelerator.asynchronous
    if work.model.channels_last and not accelerator.has_channels_last:
        yield "model.channels_last", "the layout is for CUDA; this run is on the CPU"
    elif work.model.channels_last and shape.kind != "image":
        yield "model.channels_last", f"{work.model.name} does not use images"
    if compute.cudnn_benchmark and not accelerator.has_cudnn:
        yield "training.cudnn_benchmark", "cuDNN runs on CUDA devices only"
    elif compute.cudnn_benchmark and compute.deterministic:
        yield "training.cudnn_benchmark", "deterministic mode disables cuDNN's benchmarking"
    if compute.compile.enabled and compute.compile.mode == "reduce-overhead" and not queues:
        yield (
            "training.compile.mode",
            "it adds CUDA graphs; on a CPU this mode is the same as the default mode",
        )
    if compute.keep_freed_memory and (reason := reason_freed_memory_is_not_kept(accelerator)) is not None:
        yield "training.keep_freed_memory", reason
    if work.window.sync_cuda and not queues:
        yield "benchmark.sync_cuda", "a CPU step is complete when its call returns"


def _graph_keys(work: ModelWork, accelerator: Accelerator, world_size: int) -> Iterator[tuple[str, str]]:
    reason = capture_obstacle(work, accelerator, world_size=world_size)
    if work.cuda_graphs == "auto" and reason is not None:
        yield work.graphs_key, reason
    if work.generates and work.training.cuda_graphs:
        yield (
            "training.cuda_graphs",
            "steps that use a key-value cache follow inference.cuda_graphs instead",
        )
    elif not (work.generates or work.trains):
        yield (
            "inference.cuda_graphs",
            "no step uses a key-value cache, so training.cuda_graphs applies instead",
        )


def _kind_keys(work: ModelWork) -> Iterator[tuple[str, str]]:
    if not isinstance(work, TrainingWork):
        yield from _update_keys(work)
    elif work.training.optimizer != "SGD" and work.training.momentum:
        yield "training.momentum", f"{work.training.optimizer} does not use it; it is for SGD"
    if isinstance(work, TrainingWork):
        yield from _schedule_keys(work)
    if not work.training.compile.enabled:
        for key in work.training.compile.changed():
            yield f"training.compile.{key}", "training.compile.enabled is false"


def _schedule_keys(work: TrainingWork) -> Iterator[tuple[str, str]]:
    training = work.training
    if training.pruning.method == "none":
        for key in training.pruning.changed():
            yield f"training.pruning.{key}", "nothing is pruned"
    if training.optimizer != "AdamWSpam":
        for key in training.spam.changed():
            yield f"training.spam.{key}", f"{training.optimizer} does not use it; it is for AdamWSpam"
    if training.total_steps and training.pruning.method == "none" and training.optimizer != "AdamWAdv":
        yield (
            "training.total_steps",
            "neither the learning rate nor pruning follows a schedule over all updates",
        )


def _window_keys(work: ModelWork) -> Iterator[tuple[str, str]]:
    if isinstance(work, ServingWork):
        others = ("enabled", "power_cap_limit_s", "log_step_times", "evaluate_after", "sync_cuda")
        for key in (*WINDOW_KEYS, *others):
            yield f"benchmark.{key}", "serving.* determines what is measured"
        yield "training.epochs", "serving.* determines what is measured"
        yield "data.batch_size", "serving.max_batch applies instead"
    elif not work.window.enabled:
        for key in WINDOW_KEYS:
            yield f"benchmark.{key}", "training.epochs decides the length (benchmark.enabled is false)"
    else:
        yield "training.epochs", "the measured window decides the length (benchmark.enabled)"
        yield from _length_keys(work.window)


def _length_keys(window: WindowSpec) -> Iterator[tuple[str, str]]:
    if window.measure_by != "precision":
        for key in PRECISION_KEYS:
            yield f"benchmark.{key}", f"the window is measured by {window.measure_by}"
    if window.measure_by == "steps" and window.measure_seconds is not None:
        yield "benchmark.measure_seconds", "the window is measured by steps (benchmark.measure_by=time)"
    if window.measure_by != "steps":
        for key in ("measure_steps", "min_seconds"):
            if getattr(window, key) is not None:
                yield f"benchmark.{key}", f"the window is measured by {window.measure_by}"


def _inference_keys(work: ModelWork) -> Iterator[tuple[str, str]]:
    if work.trains:
        for key in ("weights", "cuda_graphs"):
            yield f"inference.{key}", f"the kind of this run is {work.kind}"
    elif work.model.name.startswith(OWN_MODULE):
        yield "inference.weights", "your own module stays in fp32: its code may not work with other types"
    if not isinstance(work, InferenceWork):
        for key in ("mode", "phase", "prompt_tokens", "new_tokens"):
            yield f"inference.{key}", f"the kind of this run is {work.kind}"
        if work.generates:
            yield "model.options.seq_len", "serving.prompt_tokens sets the length of the prompt"
        return
    phase = work.inference.phase
    if phase != "decode":
        yield "inference.new_tokens", f"{phase} does not generate tokens"
    if phase == "forward":
        yield "inference.prompt_tokens", "forward processes whole samples"
    else:
        yield "model.options.seq_len", f"inference.prompt_tokens sets the length that {phase} reads"
    if work.measures_latency and work.window.sync_cuda:
        yield "benchmark.sync_cuda", "latency mode always waits for every step"


def _update_keys(work: ModelWork) -> Iterator[tuple[str, str]]:
    reason = f"{work.kind} does not update weights"
    for key in ("optimizer", "optimizer_implementation", "learning_rate", "weight_decay", "momentum"):
        yield f"training.{key}", reason
    changed = work.training.changed()
    if "weights" in changed:
        yield "training.weights", f"inference.weights applies instead if the kind is {work.kind}"
    if "grad_clip_norm" in changed:
        yield "training.grad_clip_norm", reason
    if "activation_checkpointing" in changed:
        yield "training.activation_checkpointing", f"{work.kind} does not keep activations"
    if work.training.pruning.method != "none":
        yield "training.pruning.method", reason
    if "total_steps" in changed:
        yield "training.total_steps", reason
    for key in ("gradient_accumulation_steps", "gradient_compression"):
        if key in work.parallel.changed():
            yield f"distributed.{key}", reason


def _after_window_keys(work: ModelWork) -> Iterator[tuple[str, str]]:
    """Yield what would follow a window of steps: requests have none, and only training has phases."""
    for key in work.profiling.changed():
        if isinstance(work, ServingWork):
            yield f"profiling.{key}", "it is for training and inference: requests are not traced"
        elif key == "breakdown" and not work.trains:
            yield f"profiling.{key}", f"it is for training steps; the kind of this run is {work.kind}"


def _input_keys(work: ModelWork, shape: InputShape) -> Iterator[tuple[str, str]]:
    if shape.kind == "image":
        return
    if work.data.image_size is not None:
        yield "data.image_size", f"{work.model.name} does not use images"
    if work.model.num_classes is not None:
        instead = {
            "features": "a regression has no classes; see model.options.output_dim",
            "tokens": "the vocabulary is used instead; see model.options.vocab_size",
        }
        yield "model.num_classes", instead[shape.kind]


def _data_keys(data: DataSpec) -> Iterator[tuple[str, str]]:
    if data.name != "synthetic":
        yield "data.samples_per_epoch", f"an epoch of {data.name} is always the whole data set"
    if data.path is not None and data.name in ("synthetic", "digits"):
        yield "data.path", f"{data.name} is not read from a path"
    if data.split == "test" and data.name in ("synthetic", "digits", "tokens"):
        yield "data.split", f"{data.name} has no parts"
    if data.held_out and data.name in ("synthetic", "ImageFolder", "tokens"):
        yield "data.held_out", f"{data.name} does not support held-out samples"
    if data.name != "tokens" and data.token_type != "uint16":  # noqa: S105  # no secret
        yield "data.token_type", f"{data.name} is not a token file"


def _loader_keys(data: DataSpec, *, can_pin: bool) -> Iterator[tuple[str, str]]:
    settings = data.loader
    if data.loading == "device":
        reason = "all samples are on the device before the window starts; no loader runs"
        for key in settings:
            yield f"data.{key}", reason
        return
    if settings["pin_memory"] and not can_pin:
        yield "data.pin_memory", "there is no GPU to copy to"
    if not settings["num_workers"]:
        for key in ("prefetch_factor", "persistent_workers"):
            if settings[key]:
                yield f"data.{key}", "data.num_workers is 0: batches are built inside the step"


def profile_not_applied(
    parallel: ParallelSpec, accelerator: Accelerator, world_size: int
) -> tuple[NotApplied, ...]:
    """List the communication profile if ranks ignore it; without a model, other keys are not checked."""
    return tuple(
        NotApplied(key=key, reason=reason) for key, reason in _profile_keys(parallel, accelerator, world_size)
    )


def _profile_keys(
    parallel: ParallelSpec, accelerator: Accelerator, world_size: int
) -> Iterator[tuple[str, str]]:
    if parallel.communication_profile == "none":
        return
    usual = next(iter(accelerator.collectives), "nothing")
    backend = usual if parallel.backend == "auto" else parallel.backend
    if world_size == 1:
        yield "distributed.communication_profile", "one rank does not communicate with others"
    elif backend != NCCL:
        yield "distributed.communication_profile", f"its settings are for NCCL, and ranks use {backend}"


def _limit_keys(parallel: ParallelSpec, accelerator: Accelerator) -> Iterator[tuple[str, str]]:
    reason_against = accelerator.reason_no_memory_limit()
    if parallel.memory_limit_bytes is not None and reason_against is not None:
        yield "distributed.memory_limit_bytes", reason_against


def _rank_keys(case: Case, world_size: int) -> Iterator[tuple[str, str]]:
    parallel = case.work.parallel
    if world_size == 1:
        for key in ("backend", "timeout_s"):
            yield f"distributed.{key}", "one rank does not communicate with others"
        yield "benchmark.own_compute", "one rank does not wait for others"
        if parallel.strategy != "ddp":
            yield "distributed.strategy", "with one rank, there are no others to share the model with"
        if parallel.gradient_compression != "none" and case.model_work.trains:
            yield "distributed.gradient_compression", "one rank does not send gradients"
    elif case.start == "fork":
        yield "run.start", "with several ranks, torch's agent starts each of them with exec"

"""Which keys of a config, each fine alone, cannot hold together, and what to change.

In: a `RunConfig` whose single values are in bounds. Out: every contradiction, with the keys that make it.
A key that is merely without effect (momentum under Adam, channels_last on a CPU) is none: the run records
it as not applied.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from gpuproof.config.rules import serving, speed
from gpuproof.config.rules.refusal import Contradiction
from gpuproof.config.sections.base import ConfigSection

if TYPE_CHECKING:
    from gpuproof.config.models import RunConfig

CLASSES = {"digits": 10, "CIFAR10": 10, "CIFAR100": 100}
"""Classes in each labelled data set; a model with fewer outputs has no place for some labels."""


def find_contradictions(config: RunConfig) -> list[Contradiction]:
    """Name every contradiction in `config`, in the order of the rules below."""
    return [found for rule in _RULES if (found := rule(config)) is not None]


def _window_has_an_end(config: RunConfig) -> Contradiction | None:
    window = config.benchmark
    if not window.enabled or window.measure_by == "precision":
        return None
    length = {"steps": window.measure_steps, "time": window.measure_seconds}[window.measure_by]
    if length is not None:
        return None
    needed = {"steps": "measure_steps", "time": "measure_seconds"}[window.measure_by]
    return Contradiction(
        keys=("benchmark.measure_by", f"benchmark.{needed}"),
        cause=f"the window is measured by {window.measure_by}, but benchmark.{needed} is null",
        next_step=f"Set benchmark.{needed}",
    )


def _window_fits_the_time_limit(config: RunConfig) -> Contradiction | None:
    limit_s, window = config.run.time_limit_s, config.benchmark
    if limit_s is None or window.measure_by != "time" or limit_s > (window.measure_seconds or 0):
        return None
    return Contradiction(
        keys=("run.time_limit_s", "benchmark.measure_seconds"),
        cause=f"the time limit of {limit_s:g} s ends before the window of {window.measure_seconds:g} s does",
        next_step="Raise run.time_limit_s, or shorten benchmark.measure_seconds",
    )


def _epoch_holds_a_batch(config: RunConfig) -> Contradiction | None:
    data = config.data
    if data.name != "synthetic" or data.samples_per_epoch >= data.batch_size:
        return None
    return Contradiction(
        keys=("data.samples_per_epoch", "data.batch_size"),
        cause=f"an epoch of {data.samples_per_epoch} samples holds no batch of {data.batch_size}",
        next_step=f"Set data.samples_per_epoch to {data.batch_size} or more",
    )


def _data_has_a_place(config: RunConfig) -> Contradiction | None:
    name = config.data.name
    if name in ("synthetic", "digits") or config.data.path is not None:
        return None
    kind, example = ("file", "./tokens.bin") if name == "tokens" else ("folder", "./data")
    return Contradiction(
        keys=("data.name", "data.path"),
        cause=f"{name} is read from a {kind}, but data.path is null",
        next_step=f"Set data.path to the {kind} that holds it, for example {example}",
    )


def _download_is_of_cifar(config: RunConfig) -> Contradiction | None:
    data = config.data
    if not data.download or data.name in ("CIFAR10", "CIFAR100"):
        return None
    return Contradiction(
        keys=("data.download", "data.name"),
        cause=f"only CIFAR10 and CIFAR100 can be fetched, and data.name is {data.name}",
        next_step="Set data.download to false",
    )


def _download_keys_need_a_download(config: RunConfig) -> Contradiction | None:
    data = config.data
    given = [key for key in ("download_url", "download_checksum") if getattr(data, key) is not None]
    if data.download or not given:
        return None
    return Contradiction(
        keys=(f"data.{given[0]}", "data.download"),
        cause=f"data.{given[0]} is set, but data.download is false: nothing is fetched",
        next_step=f"Set data.download to true, or data.{given[0]} to null",
    )


def _every_label_has_an_output(config: RunConfig) -> Contradiction | None:
    classes, outputs = CLASSES.get(config.data.name, 0), config.model.num_classes
    if outputs is None or outputs >= classes:
        return None
    return Contradiction(
        keys=("model.num_classes", "data.name"),
        cause=f"{config.data.name} has {classes} classes, the model {outputs}",
        next_step=f"Set model.num_classes to {classes}",
    )


def _cpu_has_no_indices(config: RunConfig) -> Contradiction | None:
    where = config.distributed
    if where.device != "cpu" or where.devices is None:
        return None
    return Contradiction(
        keys=("distributed.devices", "distributed.device"),
        cause="device indices are given, but the device is cpu, which has none",
        next_step="Remove distributed.devices, or set distributed.device to cuda",
    )


def _nccl_needs_gpus(config: RunConfig) -> Contradiction | None:
    where = config.distributed
    if where.device != "cpu" or where.backend != "nccl":
        return None
    return Contradiction(
        keys=("distributed.backend", "distributed.device"),
        cause="nccl connects GPUs, but the device is cpu",
        next_step="Set distributed.backend to auto",
    )


def _each_device_is_named_once(config: RunConfig) -> Contradiction | None:
    devices = config.distributed.devices or ()
    if len(set(devices)) == len(devices):
        return None
    return Contradiction(
        keys=("distributed.devices",),
        cause=f"a device is named twice in {list(devices)}",
        next_step="Name each device once",
    )


def _each_rank_has_a_device(config: RunConfig) -> Contradiction | None:
    where = config.distributed
    if where.devices is None or where.nproc <= len(where.devices):
        return None
    return Contradiction(
        keys=("distributed.nproc", "distributed.devices"),
        cause=f"{where.nproc} ranks are asked for, but distributed.devices names {len(where.devices)}",
        next_step="Name a device for each rank in distributed.devices, or lower distributed.nproc",
    )


def _throughput_waits_for_no_step(config: RunConfig) -> Contradiction | None:
    if config.kind != "inference" or config.inference.mode == "latency" or not config.benchmark.sync_cuda:
        return None
    return Contradiction(
        keys=("benchmark.sync_cuda", "inference.mode"),
        cause="inference in throughput mode queues its steps, but benchmark.sync_cuda waits for each",
        next_step="Set inference.mode to latency, or remove benchmark.sync_cuda",
    )


def _latency_keeps_its_steps(config: RunConfig) -> Contradiction | None:
    latency = config.kind == "inference" and config.inference.mode == "latency"
    if not latency or config.benchmark.log_step_times:
        return None
    return Contradiction(
        keys=("benchmark.log_step_times", "inference.mode"),
        cause="latencies are step times, but benchmark.log_step_times is false",
        next_step="Set benchmark.log_step_times to true, or inference.mode to throughput",
    )


def _prompts_are_synthetic(config: RunConfig) -> Contradiction | None:
    phase = config.inference.phase
    if config.kind != "inference" or phase == "forward" or config.data.name == "synthetic":
        return None
    return Contradiction(
        keys=("data.name", "inference.phase"),
        cause=f"{phase} reads prompts of drawn tokens, and data.name is {config.data.name}",
        next_step="Set data.name to synthetic",
    )


def _a_cache_is_not_compiled(config: RunConfig) -> Contradiction | None:
    phase = config.inference.phase
    if config.kind != "inference" or phase == "forward" or not config.training.compile.enabled:
        return None
    return Contradiction(
        keys=("training.compile.enabled", "inference.phase"),
        cause=f"{phase} works on a cache that grows, and torch.compile would compile each length anew",
        next_step="Set training.compile.enabled to false",
    )


def _a_cache_is_not_split(config: RunConfig) -> Contradiction | None:
    phase = config.inference.phase
    if config.kind != "inference" or phase == "forward" or config.distributed.strategy != "tensor":
        return None
    return Contradiction(
        keys=("distributed.strategy", "inference.phase"),
        cause=f"{phase} keeps a whole cache on each rank, and strategy tensor splits the heads over ranks",
        next_step="Remove distributed.strategy, or set inference.phase to forward",
    )


def _one_kind_of_sweep(config: RunConfig) -> Contradiction | None:
    if not config.matrix or config.search.kind is None:
        return None
    return Contradiction(
        keys=("search.kind", "matrix"),
        cause="a search chooses its points itself, and a matrix lists them",
        next_step="Remove one of the two sections",
    )


def _search_has_a_kind(config: RunConfig) -> Contradiction | None:
    search = config.search
    changed = [key for key in type(search).model_fields if getattr(search, key) != _default(search, key)]
    if search.kind is not None or not changed:
        return None
    return Contradiction(
        keys=(f"search.{changed[0]}", "search.kind"),
        cause="nothing is searched for, since search.kind is null",
        next_step="Set search.kind to batch_size, or remove the section",
    )


def _order_is_of_a_matrix(config: RunConfig) -> Contradiction | None:
    if config.matrix or config.run.order_seed == _default(config.run, "order_seed"):
        return None
    return Contradiction(
        keys=("run.order_seed",),
        cause="it shuffles the points of a matrix, and there is none",
        next_step="Add a matrix section, or remove run.order_seed",
    )


def _default(section: ConfigSection, key: str) -> object:
    return type(section).model_fields[key].default


def _search_begins_within_its_bounds(config: RunConfig) -> Contradiction | None:
    search = config.search
    if search.kind is None or search.start <= search.up_to:
        return None
    return Contradiction(
        keys=("search.start", "search.up_to"),
        cause=f"the search begins at {search.start}, above its end at {search.up_to}",
        next_step="Raise search.up_to, or lower search.start",
    )


_RULES: tuple[Callable[[RunConfig], Contradiction | None], ...] = (
    _window_has_an_end,
    _window_fits_the_time_limit,
    _epoch_holds_a_batch,
    _data_has_a_place,
    _download_is_of_cifar,
    _download_keys_need_a_download,
    _every_label_has_an_output,
    _cpu_has_no_indices,
    _nccl_needs_gpus,
    _each_device_is_named_once,
    _each_rank_has_a_device,
    _throughput_waits_for_no_step,
    _latency_keeps_its_steps,
    _prompts_are_synthetic,
    _a_cache_is_not_compiled,
    _a_cache_is_not_split,
    _one_kind_of_sweep,
    _search_has_a_kind,
    _order_is_of_a_matrix,
    _search_begins_within_its_bounds,
    serving.serving_can_be_judged,
    serving.endpoint_has_an_address,
    serving.a_request_fits_a_batch,
    serving.one_rank_serves,
    serving.prompts_are_answered,
    serving.an_endpoint_gets_single_prompts,
    speed.a_graph_can_hold_the_step,
)

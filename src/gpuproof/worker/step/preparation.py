"""Everything that a case needs before its first step: ranks, device, model, samples, step, clock.

In: a case and this rank's identity. Out: `Prepared`, with parts that stay the same until the end of the case.
"""

from __future__ import annotations

import gc
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from time import monotonic

import torch
from torch.distributed.distributed_c10d import Store

from gpuproof.accelerators.choose import accelerator_of
from gpuproof.processes.granted import reason_fewer_threads, users_threads
from gpuproof.records.case import Case, InferenceWork, ModelWork, ServingWork, TrainingWork
from gpuproof.records.run import Device, Setup
from gpuproof.records.what_ran import StepOptions
from gpuproof.records.work.device_sizes import sizes_for
from gpuproof.records.work.parallel import Arrangement, Parallelism
from gpuproof.records.work.training import Precision
from gpuproof.worker.data.batch_source import Batches, BatchSource
from gpuproof.worker.data.sources import RankData, data_notes, open_source
from gpuproof.worker.engine.clocks import EventClock, clock_for
from gpuproof.worker.engine.host_clock import HostClock
from gpuproof.worker.host.heap import keep_freed_memory, reason_freed_memory_is_not_kept
from gpuproof.worker.parallel.distributed import NCCL, Ranks, choose_device
from gpuproof.worker.parallel.model import ParallelModel, arranged, parallelize
from gpuproof.worker.rank.identity import RankIdentity, effective_threads
from gpuproof.worker.rank.window import num_steps_of_window
from gpuproof.worker.step.applicability import not_applied
from gpuproof.worker.step.checkpointing import has_batch_norm, num_checkpointed
from gpuproof.worker.step.cuda_graph import (
    Capture,
    CapturedStep,
    ModelStep,
    StaticBatches,
    is_captured,
    read_counts,
)
from gpuproof.worker.step.determinism import choose_algorithms, deterministic_now
from gpuproof.worker.step.fp8 import convert_linear_layers, count_linear_layers
from gpuproof.worker.step.generation import (
    GenerationStep,
    bytes_per_step,
    generation_notes,
    generation_step,
    graph_ends,
    padded_bytes_per_step,
)
from gpuproof.worker.step.inference import InferenceStep
from gpuproof.worker.step.model import (
    WorkloadOnTorch,
    compiled,
    load_workload,
    stored_as,
    uses_channels_last,
)
from gpuproof.worker.step.optimizers import read_implementation
from gpuproof.worker.step.precision import PrecisionPolicy, apply_precision
from gpuproof.worker.step.training import TrainingStep
from gpuproof.workloads.info.library_models import LibraryModel
from gpuproof.workloads.info.lookup import find_workload
from gpuproof.workloads.torch.gemm import FP8, MatrixProduct

PLAIN_TYPES: dict[Precision, torch.dtype] = {"fp64": torch.float64, "fp8": FP8}
"""Data types for plain matmuls that autocast does not provide."""


@dataclass(slots=True, kw_only=True)
class Prepared:
    """A case that is ready to run on this rank."""

    case: Case
    fitted: Mapping[str, int]
    """The model options set to `auto`, with the values chosen for this device."""
    identity: RankIdentity
    device: torch.device
    ranks: Ranks
    threads: int
    precision: PrecisionPolicy
    workload: WorkloadOnTorch
    data: RankData
    pool: BatchSource
    step: TrainingStep | InferenceStep | GenerationStep | CapturedStep
    static: StaticBatches | None
    """The buffers read by a step that is to be captured: the pool's batches, at fixed addresses."""
    clock: EventClock | HostClock
    arrangement: Arrangement
    parallelism: Parallelism | None
    num_gathered_parameters: int

    @property
    def work(self) -> ModelWork:
        """The kind of work requested of the model."""
        return self.case.model_work

    @property
    def eager_step(self) -> ModelStep:
        """The original step, which a captured step replays; it has the module, the loss and the outputs."""
        return self.step.eager if isinstance(self.step, CapturedStep) else self.step

    @property
    def samples_per_step(self) -> int:
        """Number of this rank's samples per step, over all micro-batches."""
        return self.work.data.batch_size * self.work.micro_batches

    @property
    def flops_per_step(self) -> float | None:
        """This rank's model FLOPs per step; None if there is no closed-form FLOP count for the model."""
        per_sample = self.workload.flops_per_sample
        if per_sample is None:
            return None
        return self.samples_per_step * per_sample / self.arrangement.tensor

    @property
    def items_per_step(self) -> int:
        """Items per step in this rank's rate: samples or their tokens, counted once per tensor group."""
        if not self.arrangement.counts_samples(self.identity.rank):
            return 0
        return self.samples_per_step * self.workload.items_per_sample


def release(prepared: Prepared) -> None:
    """Release the model, then leave the process group.

    The order matters: a process that exits while a data-parallel module still references the group may die
    with SIGABRT after its work is done. A single rank has no group, and its memory is freed on exit.
    """
    ranks = prepared.ranks
    ranks.barrier()
    prepared.pool.close()
    for name in ("step", "static", "workload", "pool", "clock"):
        delattr(prepared, name)
    if ranks.backend is not None:
        gc.unfreeze()
        gc.collect()
    ranks.close()


def prepare(case: Case, *, identity: RankIdentity, run_folder: Path, store: Store | None = None) -> Prepared:
    """Build all parts of the case on this rank's device.

    Raises:
        EnvironmentUnfitError: the machine lacks a device, a backend or a precision that the case requires.
        UsageError: the workload is unknown or cannot be imported.
    """
    case, fitted = fitted_to(choose_device(case.placement, identity), case)
    work, device, threads, precision = _set_process_up(case, identity)
    arrangement = arranged(work, world_size=identity.world_size)
    ranks = Ranks(identity, device=device, parallel=work.parallel, store=store)
    workload, precision = _load(work, device, precision=precision, split=arrangement.tensor > 1)
    data = _rank_data(work, workload, arrangement, rank=identity.rank, run_folder=run_folder, device=device)
    pool = open_source(work, workload.shape, data)
    static = StaticBatches(pool, count=work.micro_batches) if work.training.cuda_graphs else None
    capture = accelerator_of(device) if static else None
    total_steps = _total_steps(work, pool, arrangement)
    parallel = parallelize(
        work, workload, arrangement=arrangement, backend=ranks.backend, device=device, precision=precision
    )
    return Prepared(
        case=case,
        fitted=fitted,
        identity=identity,
        device=device,
        ranks=ranks,
        threads=threads,
        precision=parallel.precision,
        workload=workload,
        data=data,
        pool=pool,
        step=_step(
            work, parallel, workload=workload, pool=static or pool, capture=capture, total_steps=total_steps
        ),
        static=static,
        clock=clock_for(device, synchronised=work.window.sync_cuda or work.measures_latency),
        arrangement=arrangement,
        parallelism=parallel.parallelism,
        num_gathered_parameters=parallel.num_gathered_parameters,
    )


def fitted_to(device: torch.device, case: Case) -> tuple[Case, dict[str, int]]:
    """Replace the model's `auto` options with numbers, and return the numbers."""
    work = case.work
    assert isinstance(work, (TrainingWork, InferenceWork, ServingWork))
    info, properties = find_workload(work.model.name), accelerator_of(device).properties(device)
    if info.fitted is None:
        return case, {}
    sizes = sizes_for(properties.memory_total_bytes, cache_bytes=properties.cache_bytes)
    fitted = info.fitted(info.options_type(**work.model.options), sizes)
    model = replace(work.model, options={**work.model.options, **fitted})
    return replace(case, work=replace(work, model=model)), fitted


def _rank_data(
    work: ModelWork,
    workload: WorkloadOnTorch,
    arrangement: Arrangement,
    *,
    rank: int,
    run_folder: Path,
    device: torch.device,
) -> RankData:
    return RankData(
        shard=arrangement.data_rank(rank),
        num_shards=arrangement.data_parallel_size,
        run_folder=run_folder,
        device=device,
        channels_last=uses_channels_last(work, device, workload.shape),
    )


def _set_process_up(
    case: Case, identity: RankIdentity
) -> tuple[ModelWork, torch.device, int, PrecisionPolicy]:
    """Set this process's device, threads, algorithms and precision; decide whether to capture."""
    work, compute = case.model_work, case.model_work.training
    threads = effective_threads(case.work.parallel, identity)
    torch.set_num_threads(threads)
    device = choose_device(case.placement, identity)
    accelerator = accelerator_of(device)
    accelerator.set_device(device)
    limit_bytes = case.work.parallel.memory_limit_bytes
    if limit_bytes is not None and accelerator.reason_no_memory_limit() is None:
        accelerator.limit_memory(limit_bytes, device)
    if compute.keep_freed_memory and reason_freed_memory_is_not_kept(accelerator) is None:
        keep_freed_memory()
    choose_algorithms(
        accelerator, deterministic=compute.deterministic, cudnn_benchmark=compute.cudnn_benchmark
    )
    precision = apply_precision(compute.precision, device)
    captures = is_captured(work, accelerator, world_size=identity.world_size)
    return replace(work, training=replace(compute, cuda_graphs=captures)), device, threads, precision


def _load(
    work: ModelWork, device: torch.device, *, precision: PrecisionPolicy, split: bool
) -> tuple[WorkloadOnTorch, PrecisionPolicy]:
    """Build the model as stored, and return its precision; a model without weights is unchanged."""
    workload = load_workload(work, device)
    stored = getattr(torch, work.stored_type)
    if isinstance(workload.module, MatrixProduct):
        if precision.name in PLAIN_TYPES:
            workload.module.in_type(PLAIN_TYPES[precision.name])
        return workload, precision
    if workload.num_parameters and stored != torch.float32:
        workload, precision = stored_as(workload, stored), replace(precision, cast_by="storage")
    if precision.name == "fp8":
        once = precision.cast_by == "storage" and not work.trains
        convert_linear_layers(workload.module, name=work.model.name, split=split, stored=once)
    return workload, precision


def _total_steps(work: ModelWork, pool: BatchSource, arrangement: Arrangement) -> int | None:
    """Return the total number of warm-up and window steps, if known."""
    window = num_steps_of_window(
        work, num_samples=pool.used.num_samples, num_shards=arrangement.data_parallel_size
    )
    return None if window is None else window + (work.window.warmup_steps if work.window.enabled else 0)


def _step(
    work: ModelWork,
    parallel: ParallelModel,
    *,
    workload: WorkloadOnTorch,
    pool: Batches,
    capture: Capture | None,
    total_steps: int | None,
) -> TrainingStep | InferenceStep | GenerationStep:
    module, precision = parallel.module, parallel.precision
    if work.generates:
        step = generation_step(work, workload.module, pool=pool, precision=precision, capture=capture)
        step.generation.next_scores = compiled(step.generation.next_scores, work.training)
        return step
    if not isinstance(work, TrainingWork):
        return InferenceStep(module=module, pool=pool, precision=precision)
    return TrainingStep(
        work,
        module=module,
        loss=workload.loss,
        pool=pool,
        precision=precision,
        total_steps=total_steps,
    )


def setup_record(prepared: Prepared) -> Setup:
    """Return a record of what was actually built."""
    work, workload = prepared.work, prepared.workload
    device, compiling = device_record(prepared.device), work.training.compile
    step = prepared.eager_step
    return Setup(
        rank=prepared.identity.rank,
        device=device,
        backend=prepared.ranks.backend,
        threads=prepared.threads,
        num_parameters=workload.num_parameters,
        num_active_parameters=workload.num_active_parameters,
        items_per_step=prepared.items_per_step,
        items_per_sample=workload.items_per_sample,
        item=workload.item,
        flops_per_step=prepared.flops_per_step,
        precision=work.training.precision,
        compiled=compiling.mode if compiling.enabled and read_counts().graphs else None,
        data=work.data.name,
        pool_samples=prepared.pool.num_samples,
        not_applied=not_applied(
            prepared.case,
            accelerator=accelerator_of(prepared.device),
            shape=workload.shape,
            world_size=prepared.identity.world_size,
        ),
        notes=(*_notes(prepared), *data_notes(work)),
        monotonic_s=monotonic(),
        parallelism=prepared.parallelism,
        input_shape=workload.shape.shape,
        kv_cache_bytes=step.generation.cache.num_bytes if isinstance(step, GenerationStep) else None,
        bytes_per_step=workload.bytes_per_step or bytes_per_step(work, workload.info, workload.module, step),
        padded_bytes_per_step=padded_bytes_per_step(work, workload.info, step),
        data_used=prepared.pool.used,
        options=step_options(prepared.step, work=work, device=prepared.device),
        fitted=prepared.fitted,
    )


def step_options(step: ModelStep | CapturedStep, *, work: ModelWork, device: torch.device) -> StepOptions:
    """Describe the step."""
    eager = step.eager if isinstance(step, CapturedStep) else step
    optimizer = eager.optimizer if isinstance(eager, TrainingStep) else None
    linear = count_linear_layers(eager.module)
    types = {str(parameter.dtype).removeprefix("torch.") for parameter in eager.module.parameters()}
    return StepOptions(
        optimizer=work.training.optimizer if isinstance(work, TrainingWork) else None,
        optimizer_implementation=None if optimizer is None else read_implementation(optimizer),
        activation_checkpointing=None if optimizer is None else work.activation_checkpointing,
        checkpointed_modules=num_checkpointed(eager.module),
        cuda_graphs=step.is_graph if isinstance(step, CapturedStep) else bool(graph_ends(step)),
        graph_ends=graph_ends(eager),
        deterministic=deterministic_now(),
        tf32=accelerator_of(device).tf32_switch(),
        linear_layers=linear.total,
        fp8_linear_layers=linear.in_fp8,
        weights=" and ".join(sorted(types)) or None,
    )


def _notes(prepared: Prepared) -> tuple[str, ...]:
    notes = []
    if prepared.fitted:
        values = ", ".join(f"{name} {value:,}" for name, value in prepared.fitted.items())
        notes.append(f"{values} on a device with this memory and cache (auto)")
    if prepared.ranks.backend == "gloo":
        notes.append("ranks communicate over gloo: not representative of GPUs with NCCL")
    workload = prepared.workload
    if isinstance(workload.info, LibraryModel) and prepared.work.data.image_size is None:
        notes.append(
            f"a sample is {workload.shape.kind} {workload.shape.shape}, the input size of "
            f"{workload.info.name}"
        )
    if prepared.work.generates:
        notes += generation_notes(prepared.work)
    elif not prepared.work.trains and prepared.workload.shape.kind == "tokens":
        notes.append("inference on whole sequences, scores at every position: no key-value cache or decoding")
    parallel = prepared.work.parallel
    fewer = reason_fewer_threads(users_threads()) if prepared.device.type == "cpu" else None
    if fewer is not None and parallel.threads_per_rank is None:
        more = "distributed.threads_per_rank sets another number"
        notes.append(f"fewer threads than CPUs, because of {fewer}; {more}")
    if prepared.ranks.backend == NCCL and parallel.communication_profile != "none":
        notes.append(f"NCCL uses the communication profile {parallel.communication_profile}")
    if prepared.work.training.precision == "fp8" and accelerator_of(prepared.device).in_software:
        notes.append("fp8 on a CPU is computed in software: its speed says nothing about a GPU")
    if prepared.work.activation_checkpointing != "none" and has_batch_norm(workload.module):
        notes.append("checkpointed modules update the running statistics of batch norms twice in each step")
    return tuple(notes)


def device_record(device: torch.device) -> Device:
    """Describe a device."""
    accelerator = accelerator_of(device)
    properties = accelerator.properties(device)
    return Device(
        kind=device.type,
        index=device.index,
        name=properties.name,
        uuid=properties.uuid,
        memory_total_bytes=properties.memory_total_bytes,
        simulated=accelerator.simulated,
    )

"""Records written down by hand: sensible values everywhere, so that a test states only what matters to it.

The launch of a `Story` is ten samples a step, a hundred steps of 10 ms on one rank: 1,000 samples in 1 s,
on a quiet host of 8 processors. Everything about it can be replaced; what is derived follows.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from itertools import count
from pathlib import Path
from typing import Any

from gpuproof.config.models import RunConfig
from gpuproof.launches.launch import Launch, summarize_launch
from gpuproof.records.breakdown import OwnCompute
from gpuproof.records.case import (
    CASE_SCHEMA_VERSION,
    Case,
    InferenceWork,
    ModelWork,
    Placement,
    TrainingWork,
    Work,
)
from gpuproof.records.codec import to_json
from gpuproof.records.collected import CaseRecords
from gpuproof.records.journal import encode
from gpuproof.records.run import (
    Device,
    DeviceSharing,
    Environment,
    Failure,
    FailureCause,
    HostLoad,
    NotApplied,
    RankResult,
    Setup,
    Start,
    Steps,
    Window,
)
from gpuproof.records.what_ran import (
    Effective,
    ObservedWork,
    StepOptions,
)
from gpuproof.records.work.data import LOADER_KEYS, DataSpec, InferenceSpec, ModelSpec
from gpuproof.records.work.parallel import ParallelSpec
from gpuproof.records.work.training import TrainingSpec
from gpuproof.records.work.window import ProfilingSpec, WindowSpec
from gpuproof.store.run import RunDirectory

ITEMS_PER_STEP = 10
NUM_STEPS = 100
STEP_S = 0.010

CPU = Device(kind="cpu", index=None, name="CPU", uuid=None, memory_total_bytes=None)
H200 = Device(kind="cuda", index=0, name="NVIDIA H200", uuid="GPU-0a", memory_total_bytes=150_754_820_096)
QUIET = HostLoad(
    num_cpus=8, busy_cpu_s=1.1, own_cpu_s=1.0, run_queue_wait_s=0.001, steal_cpu_s=0.0, missing=None
)
ALONE = DeviceSharing(other_processes=0, other_memory_bytes=0, missing=None)


STEP_OPTIONS = StepOptions(
    optimizer="SGD",
    optimizer_implementation="foreach",
    activation_checkpointing="none",
    checkpointed_modules=0,
    cuda_graphs=False,
    deterministic=False,
    tf32="off",
    linear_layers=1,
    fp8_linear_layers=0,
)
"""What torch builds on a GPU where a recipe says nothing."""

MODEL = ModelSpec(name="resnet18", num_classes=10, channels_last=False)
DATA = DataSpec(name="digits", batch_size=ITEMS_PER_STEP, samples_per_epoch=400, image_size=64)
TRAINING = TrainingSpec(
    epochs=1,
    precision="fp32",
    optimizer="SGD",
    learning_rate=0.05,
    seed=0,
    cudnn_benchmark=False,
)
WINDOW = WindowSpec(warmup_steps=3, measure_steps=NUM_STEPS, count_flops=False, own_compute=False)
PARALLEL = ParallelSpec(
    backend="auto",
    gradient_accumulation_steps=1,
    threads_per_rank=None,
    timeout_s=60,
    hang_timeout_s=60,
)
WORK = TrainingWork(
    model=MODEL,
    data=DATA,
    training=TRAINING,
    window=WINDOW,
    profiling=ProfilingSpec(),
    data_file="data/digits.tensors",
    parallel=PARALLEL,
)
CASE = Case(schema_version=CASE_SCHEMA_VERSION, case_id="main", replicate=0, capture_env=True, work=WORK)
"""ResNet-18 on digits, 100 steps."""


def steady_times(num_steps: int = NUM_STEPS, step_s: float = STEP_S) -> tuple[float, ...]:
    """Step times that differ by ±1 % in turns, with the given mean (for an even number of steps)."""
    return tuple(step_s * (1.01 if i % 2 else 0.99) for i in range(num_steps))


def case(
    *,
    kind: str = "training",
    replicate: int = 0,
    nproc: int = 1,
    precision: str = "fp32",
    model: Mapping[str, Any] | None = None,
    training: Mapping[str, Any] | None = None,
    window: Mapping[str, Any] | None = None,
    parallel: Mapping[str, Any] | None = None,
    placement: Mapping[str, Any] | None = None,
    loader: Mapping[str, Any] | None = None,
    data: Mapping[str, Any] | None = None,
    inference: Mapping[str, Any] | None = None,
) -> Case:
    """A case of ResNet-18 on digits; each section takes replacements of its fields.

    `file` of `data` is what the control side prepared.
    """
    asked, of_data = {"precision": precision, **(training or {})}, dict(data or {})
    data_file = of_data.pop("file", WORK.data_file)
    sections: dict[str, Any] = {
        "model": replace(MODEL, **(model or {})),
        "data": replace(DATA, **(loader or {}), **of_data),
        "training": _with(TRAINING, asked),
        "window": replace(WINDOW, **(window or {})),
        "profiling": ProfilingSpec(),
        "data_file": data_file,
        "parallel": replace(PARALLEL, **(parallel or {})),
    }
    work: Work = TrainingWork(**sections)
    if kind == "inference":
        work = InferenceWork(**sections, inference=InferenceSpec(**(inference or {})))
    return replace(
        CASE,
        replicate=replicate,
        placement=Placement(ranks_per_host=nproc, **(placement or {})),
        work=work,
    )


def with_work(case: Case, **changes: Any) -> Case:
    """The same case with parts of its work replaced."""
    return replace(case, work=replace(case.work, **changes))


def _with(spec: Any, changes: Mapping[str, Any]) -> Any:
    return replace(spec, **{f.name: changes[f.name] for f in fields(spec) if f.name in changes})


def of_schema_3(case: Case) -> dict[str, Any]:
    """Write a case that trains or infers as schema 3 was, which cut its parts otherwise than the recipe."""
    told = to_json(case)
    work = told["work"]
    training, profiling = work.pop("training"), work.pop("profiling")
    compiling = {f"compile_{key}": value for key, value in training.pop("compile").items()}
    of_compute = ("precision", "seed", "cudnn_benchmark", "deterministic", "cuda_graphs")
    work["compute"] = {**{key: training.pop(key) for key in of_compute}, **compiling}
    window = {**work["window"], "epochs": training.pop("epochs"), "profile": profiling.pop("enabled")}
    work["window"] = {**window, **profiling, "target_precision": None}
    framework = {"name": training.pop("framework"), "reduction": training.pop("reduction"), "num_replicas": 1}
    if case.kind == "training":
        work["training"] = {**training, "framework": framework, "pruning": None, "spam": None}
    data = work["data"]
    data |= {"file": work.pop("data_file"), "download": None}
    data["loader"] = {key: data.pop(key) for key in LOADER_KEYS}
    work["parallel"].pop("nproc")
    return {**told, "schema_version": 3}


def of_schema_2(case: Case) -> dict[str, Any]:
    """Write a case that trains or infers as schema 2 was, which had no work."""
    told = of_schema_3(case)
    work, monitor = told.pop("work"), told.pop("monitor") or {}
    epochs = work["window"].pop("epochs")
    training = {"epochs": epochs, **work.pop("compute"), **work.get("training", {})}
    return {
        **told,
        "schema_version": 2,
        "inference": to_json(InferenceSpec()),
        "serving": None,
        **work,
        "training": training,
        "monitor_interval_s": monitor.get("interval_s"),
        "monitor_host_interval_s": monitor.get("host_interval_s"),
    }


def window(rank: int = 0, **changes: Any) -> Window:
    """100 steps in 1 s."""
    base = Window(
        rank=rank,
        host="node1",
        num_steps=NUM_STEPS,
        requested_steps=None,
        requested_s=None,
        items=NUM_STEPS * ITEMS_PER_STEP,
        wall_s=1.0,
        steps_s=1.0,
        clock="host",
        stop_reason="100 steps",
        begin_monotonic_s=50.0,
        end_monotonic_s=51.0,
        load=QUIET,
        neighbours=ALONE,
        peak_allocated_bytes=None,
        peak_reserved_bytes=None,
        peak_with_warmup_bytes=None,
    )
    changed = replace(base, **changes)
    return changed if "end_monotonic_s" in changes else lasting(changed, changed.wall_s)


def lasting(measured: Window, wall_s: float) -> Window:
    """The window with another duration, from its begin on."""
    return replace(measured, wall_s=wall_s, end_monotonic_s=measured.begin_monotonic_s + wall_s)


def setup(rank: int = 0, **changes: Any) -> Setup:
    """ResNet-18 in fp32 on the CPU."""
    base = Setup(
        rank=rank,
        device=CPU,
        backend=None,
        threads=4,
        num_parameters=11_181_642,
        items_per_step=ITEMS_PER_STEP,
        item="samples",
        flops_per_step=1e9,
        precision="fp32",
        compiled=None,
        data="digits",
        pool_samples=1797,
        not_applied=(),
        notes=(),
        monotonic_s=49.0,
    )
    return replace(base, **changes)


LAUNCHES = count(4711)


def start(rank: int = 0, *, world_size: int = 1, host: str = "node1") -> Start:
    """A rank that began at 40 s on its host's clock, a process of its own."""
    return Start(
        rank=rank,
        world_size=world_size,
        local_rank=rank,
        local_world_size=world_size,
        host=host,
        pid=next(LAUNCHES),
        start="exec",
        gpuproof_version="0.1.0",
        unix_s=1_795_000_000.0,
        monotonic_s=40.0,
    )


def steps(rank: int = 0, *durations_s: float, phase: str = "measure", first_step: int = 0) -> Steps:
    """Step times of one rank."""
    return Steps(
        rank=rank,
        phase=phase,  # type: ignore[arg-type]  # spelled out by the test
        first_step=first_step,
        durations_s=durations_s,
    )


def of_own_launch(records: Iterable[Any]) -> tuple[Any, ...]:
    """The records with windows that no other launch has: they end a few nanoseconds earlier than told."""
    own_s = next(LAUNCHES) * 1e-11
    return tuple(
        replace(x, end_monotonic_s=x.end_monotonic_s - own_s) if isinstance(x, Window) else x for x in records
    )


def effective(*work: ObservedWork, rank: int = 0, missing: str | None = None) -> Effective:
    """What the kernels of one step were given."""
    return Effective(rank=rank, work=work, uncounted=(), missing=missing)


def own_compute(rank: int, step_s: float) -> OwnCompute:
    """Five bursts of ten steps that a rank took by itself, as long on average as said."""
    bursts_s = (steady_times(10, step_s),) * 5
    return OwnCompute(rank=rank, clock="device_event", bursts_s=bursts_s, missing=None)


def result(rank: int = 0) -> RankResult:
    """A good end, 12 s after the start."""
    return RankResult(rank=rank, monotonic_s=52.0, last_loss=0.5)


def failure(cause: FailureCause, *, rank: int | None = 0, unix_s: float = 100.0, **changes: Any) -> Failure:
    """A rank's failure, or the launch's (rank None)."""
    base = Failure(
        rank=rank, host="node1", phase="measure", cause=cause, message=f"told of {cause}", unix_s=unix_s
    )
    return replace(base, **changes)


@dataclass(frozen=True, kw_only=True)
class Story:
    """One launch, rank by rank; a rank is a window, a setup, and the step times of rank 0."""

    windows: Sequence[Window] = (window(),)
    setups: Sequence[Setup] = ()
    """One for each window; of the same rank where none is given."""
    times_s: Sequence[float] = field(default_factory=steady_times)
    """Of the slowest rank; the others' steps are all alike. None were kept where it is empty."""
    case: Case | None = None
    replicate: int = 0
    extra: Sequence[Any] = ()
    """Records of other kinds, at the end."""

    def records(self) -> CaseRecords:
        """All records of a launch that ended well."""
        ranks = len(self.windows)
        slowest = max(self.windows, key=lambda found: found.wall_s).rank
        work = self.case.work if self.case else None
        asked: dict[str, Any] = {"precision": work.training.precision} if isinstance(work, ModelWork) else {}
        found: list[Any] = []
        for each, built in zip(
            self.windows, self.setups or [setup(w.rank) for w in self.windows], strict=True
        ):
            found += [start(each.rank, world_size=ranks), replace(built, **asked)]
            found += [steps(each.rank, 0.5, phase="warmup")]
            mean_s = each.steps_s / max(1, each.num_steps)
            times_s = self.times_s if each.rank == slowest else (mean_s,) * each.num_steps
            found += [steps(each.rank, *times_s)] if self.times_s else []
            found += [each, result(each.rank)]
        return CaseRecords(
            case=self.case
            or case(
                replicate=self.replicate, nproc=ranks, window={"log_step_times": bool(len(self.times_s))}
            ),
            records=of_own_launch((*found, *self.extra)),
        )

    def launch(self) -> Launch:
        """The launch's figures."""
        launch = summarize_launch(self.records())
        assert launch is not None
        return launch


def one_rank(*, times_s: Sequence[float] | None = None, replicate: int = 0, **changes: Any) -> Story:
    """A launch of one rank whose window takes the changes; its sums follow the step times."""
    if times_s is not None:
        total_s = sum(times_s)
        items = len(times_s) * ITEMS_PER_STEP
        derived = {"num_steps": len(times_s), "items": items, "wall_s": total_s, "steps_s": total_s}
        changes = {**derived, **changes}
        return Story(windows=[window(**changes)], times_s=times_s, replicate=replicate)
    return Story(windows=[window(**changes)], replicate=replicate)


def description(run_id: str = "by-hand", **sections: Mapping[str, Any]) -> dict[str, Any]:
    """run.json of a run of the recipe that `case` is made from; sections of its config may be replaced."""
    config = RunConfig.model_validate(
        {
            "data": {
                "name": "digits",
                "batch_size": ITEMS_PER_STEP,
                "image_size": 64,
                "samples_per_epoch": 400,
            },
            "model": {"name": "resnet18", "num_classes": 10},
            **sections,
        }
    )
    return {
        "gpuproof_version": "0.1.0",
        "run_id": run_id,
        "created": "2026-11-20T12:00:00+00:00",
        "source": "recipe quick",
        "commit_hash": None,
        "config": config.model_dump(mode="json"),
        "origins": {"model.channels_last": "quick.yaml:9"},
    }


def coherent(launch: CaseRecords) -> CaseRecords:
    """The launch with hosts and times of each rank's records as of its window, or of its host's facts."""
    windows, facts = {w.rank: w for w in launch.windows}, launch.of(Environment)
    one_host = facts[0].host if len({one.host for one in facts}) == 1 else None

    def mended(record: Any) -> Any:
        measured = windows.get(getattr(record, "rank", -1))
        if isinstance(record, (Start, Window)) and measured is not None:
            record = replace(record, host=one_host or measured.host)
        if (
            isinstance(record, Window)
            and abs(record.end_monotonic_s - record.begin_monotonic_s - record.wall_s) > 1e-6
        ):
            record = lasting(record, record.wall_s)
        if isinstance(record, Start) and measured is not None:
            return replace(record, monotonic_s=min(record.monotonic_s, measured.begin_monotonic_s))
        if isinstance(record, RankResult) and measured is not None:
            return replace(record, monotonic_s=max(record.monotonic_s, measured.end_monotonic_s))
        return record

    return replace(launch, records=tuple(map(mended, launch.records)))


def write_run(
    save_dir: Path,
    launches: Sequence[CaseRecords],
    *,
    run_id: str = "by-hand",
    as_told: bool = False,
    **sections: Any,
) -> RunDirectory:
    """Write a run as a campaign would have left it, before it was concluded; coherent, unless as told."""
    launches = launches if as_told else [*map(coherent, launches)]
    run = RunDirectory.create(save_dir, "examples", run_id)
    run.write_description(description(run_id, **sections))
    for launch in launches:
        folder = run.case_folder(launch.case)
        folder.mkdir(parents=True)
        (folder / "spec.json").write_text(json.dumps(to_json(launch.case)))
        ranks = {start.host: start.rank for start in reversed(launch.of(Start))}
        for record in launch.records:
            of_host = ranks.get(record.host, 0) if isinstance(record, Environment) else 0
            rank = getattr(record, "rank", of_host)
            name = "launcher.jsonl" if rank is None else f"rank-{rank}.jsonl"
            with (folder / name).open("a") as journal:
                journal.write(encode(record) + "\n")
    return run


def environment() -> Environment:
    """A host's facts."""
    return Environment(host="node1", facts={"torch": "2.6.0", "os": "Linux"})


CHANNELS_LAST = NotApplied(key="model.channels_last", reason="the layout is for CUDA; this run is on the CPU")

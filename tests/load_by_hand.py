"""The load suite written down by hand: twelve launches, and the readings of one GPU beside them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import recordings as r
from gpuproof.records.case import Case
from gpuproof.records.collected import CaseRecords
from gpuproof.records.run import Environment, FailureCause, RankResult, Start
from gpuproof.records.work.window import MonitorSpec
from gpuproof.store.run import RunDirectory
from gpuproof.suites.base import HostPlace
from gpuproof.suites.cases import place_case
from gpuproof.suites.load.plan import TESTS, LoadTest
from records_by_hand import CPU, H200, Story, case, failure, setup, start, steady_times, window, write_run

HOST = "node7"
NUM_BATCHES, NUM_EPOCHS = 40, 2
STEP_S = 0.0256
ENVIRONMENT = Environment(
    host=HOST,
    facts={
        "torch": "2.6.0",
        "torch_cuda": "12.4",
        "cpu": {"logical_cpus": 16},
        "memory_total_bytes": 128 * r.GIB,
        "devices": [{"name": "NVIDIA H200"}],
    },
)
SECTIONS: Mapping[str, Any] = {
    "kind": "load",
    "data": {},
    "model": {},
    "training": {"precision": "fp32", "optimizer": "Adam", "learning_rate": 1e-3},
    "load": {"num_epochs": NUM_EPOCHS, "num_batches": NUM_BATCHES},
}


def num_steps(test: LoadTest) -> int:
    """Steps that the suite asks of a test."""
    return NUM_BATCHES * (NUM_EPOCHS if test.test_type == "training" else 1)


def case_of_test(test: LoadTest, *, monitored: bool) -> Case:
    """The launch of a test."""
    made = case(
        kind=test.test_type,
        model={"name": test.model},
        data={"name": "synthetic", "batch_size": test.batch_size, "file": None, "image_size": None},
    )
    return replace(made, case_id=test.name, monitor=MonitorSpec(interval_s=0.1) if monitored else None)


def done(
    test: LoadTest,
    *,
    on_gpu: bool = True,
    monitored: bool = True,
    step_s: float = STEP_S,
    gpu: str = H200.name,
) -> CaseRecords:
    """A test that took 25.6 ms a step; on a GPU its allocator held 300 MiB at most."""
    steps = num_steps(test)
    wall_s = steps * step_s
    taken: dict[str, Any] = {"num_steps": steps, "items": steps * test.batch_size, "wall_s": wall_s}
    begin_s = r.MONOTONIC_S + 1
    device = replace(H200, uuid="GPU-0000", name=gpu) if on_gpu else CPU
    story = Story(
        windows=[
            window(
                **taken,
                steps_s=wall_s,
                host=HOST,
                begin_monotonic_s=begin_s,
                end_monotonic_s=begin_s + wall_s,
                clock="device_event" if on_gpu else "host",
                peak_allocated_bytes=300 * 2**20 if on_gpu else None,
                peak_with_warmup_bytes=420 * 2**20 if on_gpu else None,
            )
        ],
        setups=[setup(device=device, items_per_step=test.batch_size, data="synthetic")],
        times_s=steady_times(steps, step_s),
        case=case_of_test(test, monitored=monitored),
    )
    records = story.records()
    return replace(
        records,
        records=tuple(
            replace(x, start="fork", host=HOST, monotonic_s=begin_s - 6)
            if isinstance(x, Start)
            else replace(x, monotonic_s=begin_s + 6)
            if isinstance(x, RankResult)
            else x
            for x in records.records
        ),
    )


def failed(test: LoadTest, cause: FailureCause = "exception", message: str = "") -> CaseRecords:
    """A test that broke 3 s after its begin."""
    told = failure(cause, unix_s=start().unix_s + 3, host=HOST, message=message or f"told of {cause}")
    return CaseRecords(case=case_of_test(test, monitored=True), records=(start(host=HOST), told))


def readings(*, power_w: float | None = None) -> list[object]:
    """Ten readings a second from a second before the window on; the GPU is idle outside of it.

    Within it the GPU is 80 and 90 % busy by turns, and 2 GiB of its memory are in use; all the while it draws
    `power_w`.
    """
    records: list[object] = [r.header([r.identity(0), r.identity(1)], fast_interval_s=0.1)]
    for tick in range(60):
        at_s = tick / 10 + 0.05
        busy = 0.0 if at_s < 1 else (80.0, 90.0)[tick % 2]
        used = {"util_gpu_percent": busy, "mem_used_bytes": 2.0 * r.GIB}
        used |= {} if power_w is None else {"power_w": power_w}
        other = {"util_gpu_percent": 100.0, "mem_used_bytes": 9.0 * r.GIB}
        host = {"cpu_percent": 20.0 + tick % 2, "mem_used_bytes": 4.0 * r.GIB}
        records.append(r.sample(at_s, {0: used, 1: other}, reasons={0: (), 1: ()}, host=host))
    return [*records, r.end(6.0, samples=60)]


def write_load_run(save_dir: Path, launches: Sequence[CaseRecords], **sections: Any) -> RunDirectory:
    """Write a run of the suite as a campaign would have left it; the first launch describes the host."""
    launches = [_described(launches[0]), *launches[1:]] if launches else []
    run = write_run(save_dir, launches, **{**SECTIONS, **sections})
    for records in launches:
        if records.status == "done" and records.case.monitor is not None:
            r.write(run.case_folder(records.case) / f"monitor-{HOST}.jsonl", readings())
    return run


def named(name: str) -> LoadTest:
    """Return a test of the registry."""
    return next(test for test in TESTS if test.name == name)


def on_fleet(
    save_dir: Path,
    hosts: Mapping[str, Sequence[CaseRecords]],
    *,
    facts: Mapping[str, Any] | None = None,
    power_w: float | None = None,
    **sections: Any,
) -> RunDirectory:
    """Write a run of the suite on hosts as a campaign would have left it; `facts` are of every host."""
    told = {
        host: [
            replace(records, case=place_case(records.case, HostPlace(name=host)))
            for records in (_described(launches[0]), *launches[1:])
        ]
        if launches
        else []
        for host, launches in hosts.items()
    }
    run = write_run(
        save_dir, [records for launches in told.values() for records in launches], **{**SECTIONS, **sections}
    )
    for records in (records for launches in told.values() for records in launches):
        if records.status == "done" and records.case.monitor is not None:
            path = run.case_folder(records.case) / f"monitor-{HOST}.jsonl"
            r.write(path, readings(power_w=power_w))
    listed = [{"name": host, "gpus": None, **(facts or {})} for host in hosts]
    run.write_description({**run.description(), "fleet": {"hosts": listed, "currency": "USD"}})
    return run


def _described(first: CaseRecords) -> CaseRecords:
    return replace(first, records=(ENVIRONMENT, *first.records)) if first.status == "done" else first

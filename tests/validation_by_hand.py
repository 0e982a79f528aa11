"""Validations by hand: a recipe of two stages, and launches of healthy GPUs for whatever it asks."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from collectives_by_hand import collective_records
from gpuproof.config.models import RunConfig
from gpuproof.records.case import Case
from gpuproof.records.collected import CaseRecords
from gpuproof.records.run import Device, Environment
from gpuproof.store.run import RunDirectory
from gpuproof.suites.base import HostPlace
from gpuproof.suites.validate import SUITE
from planning import HERE
from records_by_hand import H200, STEP_OPTIONS, Story, setup, steady_times, window, write_run

STEP_S = 0.010
FLOOR: Mapping[str, Any] = {
    "name": "training is fast",
    "each": "whole",
    "measure": {"name": "throughput", "labels": {"case": "training"}},
    "expect": {"at_least": 1000, "unit": "samples/s"},
    "contract": True,
}
"""Met by `done`: two devices do 8 samples each in 10 ms."""
TRAINING: Mapping[str, Any] = {
    "aspect": "training",
    "each": "whole",
    "title": "training",
    "measure": "throughput",
    "labels": {"case": "training"},
}
"""All that READY needs of these."""
Places = Sequence[HostPlace]


def recipe(**options: Any) -> RunConfig:
    """Two devices of a host: collectives, then training, once each."""
    validate = {
        "stages": ["collective", "training"],
        "rules": [FLOOR],
        "aspects": [TRAINING],
        **options.pop("validate", {}),
    }
    sections: dict[str, Any] = {
        "suite": "validate",
        "model": {"name": "medium"},
        "data": {"name": "synthetic", "batch_size": 8},
        "training": {"precision": "fp32"},
        "distributed": {"nproc": 2},
        "validate": validate,
    }
    return RunConfig.model_validate({**sections, **options})


PRODUCT_FLOPS = {"fp32": 5e11, "bf16": 7e12, "amp": 7e12, "tf32": 3.5e12, "fp8": 1.4e13}
"""Of a step of matrix products by precision: in 10 ms what a healthy H200 does."""


def device(index: int, host: str = "node1") -> Device:
    """A GPU of its own for each rank."""
    return replace(H200, index=index, uuid=f"GPU-{index}" if host == "node1" else f"{host}-{index}")


def host_facts(num_gpus: int, *, host: str = "node1", **other: Any) -> dict[str, Any]:
    """What a host tells of GPUs that torch and its driver see alike."""
    seen = [{"index": i, "uuid": device(i, host).uuid, "name": H200.name} for i in range(num_gpus)]
    listed = [{**gpu, "physical_index": gpu["index"], "framework_index": gpu["index"]} for gpu in seen]
    return {"devices": seen, "accelerators": {"devices": listed}, **other}


def done(case: Case, *, step_s: float = STEP_S, times_s: Sequence[float] | None = None) -> CaseRecords:
    """A launch that ended well, on GPUs that differ in nothing; its host tells of two, or of all ranks'."""
    host = case.placement.host or "node1"
    ranks = range(case.placement.num_ranks)
    each, hosts = max(1, case.placement.ranks_per_host), case.placement.hosts or ("node1",)
    told = Environment(host=host, facts=host_facts(max(2, case.placement.ranks_per_host), host=host))
    if case.kind == "collective":
        found = collective_records(case)
        setups = iter(range(len(found.setups)))
        records = [told if isinstance(x, Environment) else x for x in found.records]
        placed = (device(rank % each, hosts[rank // each]) for rank in setups)
        records = [replace(x, device=next(placed)) if x in found.setups else x for x in records]
        return replace(found, records=tuple(records))
    times = tuple(times_s or steady_times(100, step_s))
    batch = case.model_work.data.batch_size
    indices = case.placement.devices or tuple(range(each))
    is_products = case.model_work.model.name == "gemm"
    precision = case.model_work.training.precision if is_products else "fp32"
    flops = PRODUCT_FLOPS[precision] if is_products else 1e9
    taken = {"wall_s": sum(times), "steps_s": sum(times), "items": 100 * batch, "clock": "device_event"}
    story = Story(
        case=case,
        windows=[window(rank, host=host, **taken) for rank in ranks],
        setups=[
            setup(
                rank,
                device=device(indices[rank % each], hosts[rank // each]),
                items_per_step=batch,
                options=STEP_OPTIONS,
                flops_per_step=flops,
                precision=precision,
            )
            for rank in ranks
        ],
        times_s=times,
        extra=[told],
    )
    return story.records()


def walk(
    config: RunConfig, places: Places = HERE, end: Callable[[Case], CaseRecords] = done
) -> list[CaseRecords]:
    """Launch all that the suite asks for, one after the other."""
    state, launches = SUITE.begin(config, places), []
    while (case := next(SUITE.next(state, {}, None), None)) is not None:
        launches.append(end(case))
        state = SUITE.settle(state, launches[-1])
        assert len(launches) < 100
    return launches


def written(folder: Path, launches: Sequence[CaseRecords], config: RunConfig) -> RunDirectory:
    """Write a run of a validation as a campaign leaves it."""
    run = write_run(folder, launches)
    described = {key: value for key, value in run.description().items() if key != "schema_version"}
    run.write_description({**described, "config": config.model_dump(mode="json"), "places": [{"name": ""}]})
    return run

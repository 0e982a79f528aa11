"""Trains tiny models on one global batch, as ranks of whatever started it; rank 0 saves what they learnt.

`python train_in_parallel.py OUT SCENARIO…`, a scenario being JSON: model, options and changes of the case.
Each is prepared, stepped and released by the worker's own code, all in one process.
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.distributed_c10d import PrefixStore, Store

from gpuproof.records.case import Case
from gpuproof.worker.parallel.distributed import open_store
from gpuproof.worker.parallel.model import local_part
from gpuproof.worker.rank.identity import RankIdentity, identity_from
from gpuproof.worker.step.memory import MemoryWatch
from gpuproof.worker.step.preparation import Prepared, prepare, release
from gpuproof.worker.step.training import TrainingStep
from gpuproof.workloads.info.base import resolve
from gpuproof.workloads.torch.encoder import SelfAttention
from records_by_hand import case

GLOBAL_BATCH, STEPS, SEED = 8, 3, 7


def case_of(scenario: dict[str, Any], *, data_parallel_size: int) -> Case:
    """Make the case; the batch of a rank is its share of the global batch."""
    changes = {name: dict(scenario.get(name, {})) for name in ("training", "parallel")}
    base = {"learning_rate": 0.1, "cudnn_benchmark": False}
    return case(
        model={"name": scenario["model"], "options": scenario["options"], "num_classes": None},
        data={
            "name": "synthetic",
            "file": None,
            "batch_size": GLOBAL_BATCH // data_parallel_size,
            "image_size": scenario.get("image_size"),
        },
        training={**base, **changes["training"]},
        placement={"device": "cpu"},
        parallel={"threads_per_rank": 1, **changes["parallel"]},
    )


def share_out(prepared: Prepared) -> None:
    """Give this rank its part of each global batch, the same in any arrangement."""
    size = prepared.arrangement.data_parallel_size
    rank = prepared.arrangement.data_rank(prepared.identity.rank)
    generator = torch.Generator().manual_seed(SEED)
    num_classes = prepared.workload.shape.num_targets
    for own in prepared.pool.held:
        shape = (own.shape[0] * size, *own.shape[1:])
        if own.is_floating_point():
            everything = torch.randn(shape, generator=generator)
        else:
            everything = torch.randint(num_classes, shape, generator=generator)
        batches = everything.unflatten(0, (-1, size, prepared.pool.batch_size))
        own.copy_(batches[:, rank].flatten(0, 1))


def learn(scenario: dict[str, Any], identity: RankIdentity, store: Store | None) -> dict[str, Any]:
    """Train for a few steps; return losses, whole weights and what is held."""
    size = scenario.get("data_parallel_size", identity.world_size)
    asked = case_of(scenario, data_parallel_size=size)
    prepared = prepare(asked, identity=identity, run_folder=Path(), store=store)
    assert prepared.arrangement.data_parallel_size == size
    assert isinstance(prepared.step, TrainingStep)
    for part in prepared.workload.module.modules():
        if isinstance(part, nn.Dropout):
            part.p = 0.0
        if isinstance(part, SelfAttention):
            part.dropout = 0.0
    share_out(prepared)
    losses = []
    watch = MemoryWatch(prepared)
    for _ in range(STEPS):
        watch()
        assert prepared.step.last_loss is not None
        loss = local_part(prepared.step.last_loss.detach()).float()
        if identity.world_size > 1:
            dist.all_reduce(loss)
            loss /= identity.world_size
        losses.append(float(loss))
    if (size_of_group := scenario.get("in_order_of")) is not None:
        plan = prepared.workload.info.tensor_parallel
        assert plan is not None
        resolve(plan.plan)(prepared.workload.module, size_of_group)
    weights = {
        name: getattr(weight, "full_tensor", lambda w=weight: w)().detach().clone()
        for name, weight in prepared.workload.module.state_dict().items()
    }
    found = {"parallelism": prepared.parallelism, "memory": watch.record(device_used_bytes=None)}
    release(prepared)
    return {"losses": losses, "weights": weights, **found}


def main(out: Path, scenarios: list[str]) -> None:
    """Run every scenario; rank 0 saves the results."""
    identity = identity_from(os.environ)
    store = open_store(60.0) if identity.world_size > 1 else None
    results = []
    for number, scenario in enumerate(scenarios):
        own = PrefixStore(str(number), store) if store is not None else None
        results.append(learn(json.loads(scenario), identity, own))
    if identity.rank == 0:
        torch.save(results, out)
    sys.stdout.flush()
    os._exit(0)


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2:])

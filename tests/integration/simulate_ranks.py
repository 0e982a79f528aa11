"""Program of test_simulator_ranks: one rank of several on simulated devices; rank 0 prints what all found."""

from __future__ import annotations

import gc
import json
import os
import sys
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.nn.functional import cross_entropy
from torch.nn.parallel import DistributedDataParallel

from gpuproof_simgpu import activate

DEVICE = activate()
SIM = torch.get_device_module("simgpu")
RANK, WORLD = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
HERE = torch.device("simgpu", RANK)
STEPS = 5
TRIALS = 20
"""Of what a host that was held up would make longer: it is not held up in all of them."""
AHEAD = 30
"""Products that keep a device busy for a second, so that hosts are ahead of it when a window begins."""


def collectives() -> dict[str, Any]:
    """Try each collective on small tensors."""
    total = torch.full((4,), float(RANK), device=HERE)
    dist.all_reduce(total)
    mean = torch.full((4,), float(RANK), device=HERE)
    dist.all_reduce(mean, op=dist.ReduceOp.AVG, async_op=True).wait()
    gathered = [torch.empty(1, device=HERE) for _ in range(WORLD)]
    dist.all_gather(gathered, torch.full((1,), float(RANK), device=HERE))
    root = torch.full((1,), float(RANK), device=HERE)
    dist.broadcast(root, 1)
    parts = [torch.full((1,), float(place), device=HERE) for place in range(WORLD)]
    scattered = torch.empty(1, device=HERE)
    dist.reduce_scatter(scattered, parts)
    passed = torch.full((1,), float(RANK), device=HERE)
    if RANK == 0:
        dist.send(passed, 1)
    elif RANK == 1:
        dist.recv(passed, 0)
    dist.barrier()
    return {
        "sum": total[0].item(),
        "mean": mean[0].item(),
        "gathered": [one.item() for one in gathered],
        "broadcast": root.item(),
        "scattered": scattered.item(),
        "passed": passed.item(),
    }


def aligned_ms() -> list[float]:
    """Time an all-reduce of a million bytes, entered by rank 0 after a long kernel and by others at once."""
    values = torch.ones(250_000, device=HERE)
    matrix = torch.ones(256, 256, device=HERE)
    dist.barrier()
    begin, middle, end = (SIM.Event(enable_timing=True) for _ in range(3))
    begin.record()
    if RANK == 0:
        matrix @ matrix
    middle.record()
    dist.all_reduce(values)
    end.record()
    end.synchronize()
    return [begin.elapsed_time(middle), middle.elapsed_time(end)]


def trained(*, average: bool) -> dict[str, float]:
    """Train by steps of known work, with gradients averaged or not; return times of a window and the loss."""
    torch.manual_seed(0)
    model: nn.Module = nn.Sequential(*(nn.Linear(256, 256, bias=False) for _ in range(4))).to(HERE)
    if average:
        model = DistributedDataParallel(model, device_ids=[RANK])
    inputs, targets = torch.randn(64, 256, device=HERE), torch.randint(0, 256, (64,), device=HERE)
    begin, end = SIM.Event(enable_timing=True), SIM.Event(enable_timing=True)
    ahead, before_ns = torch.ones(256, 256, device=HERE), 0
    for _ in range(AHEAD if average else 0):
        ahead @ ahead
    for step in range(STEPS + 1):
        if step == 1:
            if not average:
                SIM.synchronize()
                before_ns = DEVICE.busy_ns(RANK, DEVICE.now_ns())
            begin.record()
        loss = cross_entropy(model(inputs), targets)
        loss.backward()
        model.zero_grad()
    end.record()
    end.synchronize()
    busy_ms = (DEVICE.busy_ns(RANK, DEVICE.now_ns()) - before_ns) / 1e6
    return {"window_ms": begin.elapsed_time(end), "busy_ms": busy_ms, "loss": loss.item()}


def sharded_loss() -> float:
    """Train a sharded model for three steps."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(32, 32), nn.ReLU(), nn.Linear(32, 8)).to(HERE)
    mesh = init_device_mesh("simgpu", (WORLD,))
    for layer in (*model, model):
        fully_shard(layer, mesh=mesh)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    inputs, targets = torch.randn(16, 32, device=HERE), torch.randint(0, 8, (16,), device=HERE)
    for _ in range(3):
        optimizer.zero_grad()
        loss = cross_entropy(model(inputs), targets)
        loss.backward()
        optimizer.step()
    return float(loss.item())


def main() -> None:
    """Try everything, gather what each rank found, and print it."""
    SIM.set_device(RANK)
    dist.init_process_group("cpu:gloo,simgpu:simccl")
    found = {
        "collectives": collectives(),
        "aligned_ms": [aligned_ms() for _ in range(TRIALS)],
        "alone": trained(average=False),
        "together": trained(average=True),
        "sharded_loss": sharded_loss(),
    }
    everyone: list[Any] = [None] * WORLD
    dist.all_gather_object(everyone, found)
    if RANK == 0:
        sys.stdout.write(json.dumps(everyone))
    gc.collect()
    dist.destroy_process_group()
    sys.stdout.flush()
    os._exit(0)


if __name__ == "__main__":
    main()

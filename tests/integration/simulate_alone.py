"""Program of test_simulator: tries one thing after another on simulated devices, prints all as JSON.

Where a time counts, the queue is kept full by a long kernel first, so that every event lies on the device's
own time and no hiccup of the host can show.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable
from typing import Any

import torch
from torch import nn
from torch.nn.functional import cross_entropy

from gpuproof_simgpu import activate

DEVICE = activate()
SIM = torch.get_device_module("simgpu")
BUSY_SIZE = 256  # a product of 256³ takes 0.34 s at 10⁸ FLOP/s
PRODUCT_SIZE = 64


def busy(device: str = "simgpu:0") -> None:
    """Keep the device busy for a while."""
    matrix = torch.ones(BUSY_SIZE, BUSY_SIZE, device=device)
    matrix @ matrix


def timed_ms(run: Callable[[], object], device: str = "simgpu:0") -> float:
    """Return the time of the device between before and after."""
    with SIM.device(device):
        SIM.synchronize()
        begin, end = SIM.Event(enable_timing=True), SIM.Event(enable_timing=True)
        busy(device)
        begin.record()
        run()
        end.record()
        end.synchronize()
        return float(begin.elapsed_time(end))


def product(device: str) -> Callable[[], torch.Tensor]:
    """Return a product of 64 by 64 matrices, 524,288 FLOP."""
    matrix = torch.ones(PRODUCT_SIZE, PRODUCT_SIZE, device=device)
    return lambda: matrix @ matrix


def copies_ms() -> dict[str, float]:
    """Time copies of a million bytes, on the device and over the host link."""
    ours, other = (torch.ones(250_000, device="simgpu:0") for _ in range(2))
    pinned = torch.empty(250_000, pin_memory=True)
    return {
        "within": timed_ms(lambda: other.copy_(ours)),
        "to_device": timed_ms(lambda: ours.copy_(pinned, non_blocking=True)),
        "to_host": timed_ms(lambda: pinned.copy_(ours, non_blocking=True)),
    }


def queue() -> dict[str, Any]:
    """Launch more than the queue holds, and look how full it is."""
    SIM.synchronize()
    run = product("simgpu:0")
    events = [SIM.Event() for _ in range(12)]
    lengths = []
    busy()
    for event in events:
        run()
        event.record()
        lengths.append(DEVICE.num_in_queue(0))
    first_done = events[3].query()
    SIM.synchronize()
    return {"most": max(lengths), "first_done": first_done, "left": DEVICE.num_in_queue(0)}


def idle() -> dict[str, float]:
    """Let the device wait for the host between two kernels."""
    run = product("simgpu:0")
    SIM.synchronize()
    before_ns, began_ns = DEVICE.busy_ns(0, DEVICE.now_ns()), DEVICE.now_ns()
    for _ in range(2):
        run()
        SIM.synchronize()
        time.sleep(0.05)
    ended_ns = DEVICE.now_ns()
    return {
        "busy_ms": (DEVICE.busy_ns(0, ended_ns) - before_ns) / 1e6,
        "wall_ms": (ended_ns - began_ns) / 1e6,
    }


def graph() -> dict[str, Any]:
    """Capture three kernels; replay them."""
    values = torch.zeros(250_000, device="simgpu:0")

    def three() -> None:
        for _ in range(3):
            values.add_(1.0)

    captured = torch.accelerator.Graph()
    with SIM.stream(SIM.Stream()), captured:
        three()
    untouched = values[0].item()
    captured.replay()
    once = values[0].item()
    eager_ms, replay_ms = timed_ms(three), timed_ms(captured.replay)
    refused = ""
    try:
        with SIM.stream(SIM.Stream()), torch.accelerator.Graph():
            values.sum().item()
    except RuntimeError as error:
        refused = str(error)
    return {"values": [untouched, once], "eager_ms": eager_ms, "replay_ms": replay_ms, "refused": refused}


def poison() -> dict[str, Any]:
    """Copy to the host without waiting, and look too early."""
    source = torch.full((4,), 7.0, device="simgpu:0")
    whole = torch.full((4,), 7, device="simgpu:0")
    host, counts = torch.empty(4, pin_memory=True), torch.empty(4, dtype=torch.int64)
    busy()
    host.copy_(source, non_blocking=True)
    counts.copy_(whole, non_blocking=True)
    early = [host[0].isnan().item(), counts[0].item()]
    SIM.synchronize()
    after = [host[0].item(), counts[0].item()]
    busy()
    waited = source.cpu()[0].item()
    busy()
    host.zero_()
    host.copy_(source, non_blocking=True)
    while host[0].isnan():  # nobody asks: it comes when the device's time has
        time.sleep(0.01)
    return {"early": early, "after": after, "waited": waited, "arrived": host[0].item()}


def unfinished() -> str:
    """Ask for a time that has not passed."""
    begin, end = SIM.Event(enable_timing=True), SIM.Event(enable_timing=True)
    begin.record()
    busy()
    end.record()
    try:
        begin.elapsed_time(end)
    except RuntimeError as error:
        return str(error)
    return ""


def memory() -> dict[str, Any]:
    """Take more than there is; the device with the fault has 1 MiB."""
    SIM.synchronize()
    before = SIM.memory_allocated("simgpu:4")
    held = torch.empty(1024, dtype=torch.uint8, device="simgpu:4")
    within = SIM.memory_allocated("simgpu:4") - before
    refused = ""
    try:
        torch.empty(2**20, dtype=torch.uint8, device="simgpu:4")
    except torch.OutOfMemoryError as error:
        refused = str(error)
    del held
    return {
        "allocated": within,
        "peak": SIM.max_memory_allocated("simgpu:4"),
        "refused": refused,
        "after": SIM.memory_allocated("simgpu:4"),
        "total": SIM.mem_get_info("simgpu:4")[1],
    }


def wrong_products() -> list[bool]:
    """Say which of four products on the device with the fault is right in all elements."""
    left = torch.arange(16.0).reshape(4, 4)
    right = left @ left
    return [torch.equal((left.to("simgpu:3") @ left.to("simgpu:3")).cpu(), right) for _ in range(4)]


def throttled_ms() -> list[float]:
    """Time a product on the device that is throttled after three seconds: before, and after."""
    run = product("simgpu:2")
    before_ms = timed_ms(run, "simgpu:2")
    time.sleep(3)
    return [before_ms, timed_ms(run, "simgpu:2")]


def hang() -> list[bool]:
    """Launch kernels on the device whose third hangs, and say which have ended after a while."""
    values = torch.empty(8, device="simgpu:5")
    with SIM.device("simgpu:5"):
        events = [SIM.Event() for _ in range(4)]
        for event in events:
            values.add_(1.0)
            event.record()
        time.sleep(0.3)
        return [event.query() for event in events]


def losses(kind: str, device: str) -> list[float]:
    """Train a small model of this kind for four steps; return the loss of each."""
    torch.manual_seed(0)
    made = {"perceptron": _perceptron, "convolution": _convolution, "attention": _attention}[kind]()
    model, inputs, targets = made[0].to(device), made[1].to(device), made[2].to(device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    found = []
    for _ in range(4):
        optimizer.zero_grad()
        with torch.nn.attention.sdpa_kernel(torch.nn.attention.SDPBackend.MATH):
            loss = cross_entropy(model(inputs), targets)
        loss.backward()
        optimizer.step()
        found.append(loss.item())
    return found


def _perceptron() -> tuple[nn.Module, torch.Tensor, torch.Tensor]:
    model = nn.Sequential(nn.Linear(32, 64), nn.LayerNorm(64), nn.GELU(), nn.Linear(64, 10))
    return model, torch.randn(16, 32), torch.randint(0, 10, (16,))


def _convolution() -> tuple[nn.Module, torch.Tensor, torch.Tensor]:
    first = (nn.Conv2d(3, 8, 3, padding=1), nn.BatchNorm2d(8), nn.ReLU(), nn.MaxPool2d(2))
    last = (nn.Conv2d(8, 8, 3, stride=2), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(8, 10))
    return nn.Sequential(*first, *last), torch.randn(4, 3, 16, 16), torch.randint(0, 10, (4,))


def _attention() -> tuple[nn.Module, torch.Tensor, torch.Tensor]:
    layer = nn.TransformerEncoderLayer(32, 4, 64, dropout=0.0, batch_first=True)
    model = nn.Sequential(nn.Embedding(50, 32), layer, nn.Flatten(), nn.Linear(12 * 32, 10))
    return model, torch.randint(0, 50, (4, 12)), torch.randint(0, 10, (4,))


def half_precision() -> dict[str, float]:
    """Time a product inside autocast, casts aside: 16 bits have four times the FLOP/s."""
    matrix = torch.ones(PRODUCT_SIZE, PRODUCT_SIZE, device="simgpu:0", dtype=torch.bfloat16)
    with torch.autocast("simgpu", dtype=torch.bfloat16):
        made = nn.Linear(PRODUCT_SIZE, PRODUCT_SIZE, device="simgpu:0")(matrix.float())
    return {
        "product_ms": timed_ms(lambda: matrix @ matrix),
        "autocast_is_16bit": made.dtype == torch.bfloat16,
    }


def random_numbers() -> list[bool]:
    """Draw twice with one seed, and with another."""
    torch.manual_seed(1)
    first = torch.rand(8, device="simgpu:1").cpu()
    torch.manual_seed(1)
    again = torch.rand(8, device="simgpu:1").cpu()
    other = torch.rand(8, device="simgpu:1", generator=torch.Generator("simgpu:1").manual_seed(2)).cpu()
    return [torch.equal(first, again), torch.equal(first, other)]


def mixed() -> str:
    """Add a tensor of the host to one of the device."""
    try:
        torch.ones(3, device="simgpu:0").add_(torch.ones(3))
    except RuntimeError as error:
        return str(error)
    return ""


def main() -> None:
    """Try everything, and print it."""
    kinds = ("perceptron", "convolution", "attention")
    found = {
        "name": str(torch.accelerator.current_accelerator()),
        "count": torch.accelerator.device_count(),
        "uuid": SIM.get_device_properties("simgpu:1").uuid,
        "product_ms": [timed_ms(product(f"simgpu:{index}"), f"simgpu:{index}") for index in (0, 1)],
        "copies_ms": copies_ms(),
        "queue": queue(),
        "idle": idle(),
        "graph": graph(),
        "poison": poison(),
        "unfinished": unfinished(),
        "memory": memory(),
        "wrong_products": wrong_products(),
        "throttled_ms": throttled_ms(),
        "hang": hang(),
        "half": half_precision(),
        "random": random_numbers(),
        "mixed": mixed(),
        "losses": {kind: [losses(kind, "cpu"), losses(kind, "simgpu:0")] for kind in kinds},
    }
    sys.stdout.write(json.dumps(found))


if __name__ == "__main__":
    main()

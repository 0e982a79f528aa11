"""Is this machine quiet enough for steady steps? Interleaved bare loops, judged by the steadiness rule.

The loops run no gpuproof code: they run products of small matrices, which fit in a core's own cache, and
training steps of two models, with one thread each, in preallocated memory. If a loop is not steady by itself,
no tool can report a VALID run of it. Each line shows in how many windows the steps were steady, how often all
launches of a quick recipe can then be steady (95 % limit, assuming independent windows), how far the windows'
levels differed, and how much their rates scatter. Asserts nothing.

    python benchmarks/bare_steps.py                  10 windows of 4 s each, about 2 minutes
    python benchmarks/bare_steps.py --seconds 12     the recipe with a longer window
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from statistics import fmean, median, pstdev
from time import perf_counter

import torch
from torch import nn

from gpuproof.base.units import share
from gpuproof.statistics.series import judge_steadiness
from gpuproof.worker.host.heap import keep_freed_memory
from gpuproof.workloads.info.base import InputShape
from gpuproof.workloads.info.catalogue.cnn import SimpleCnnOptions
from gpuproof.workloads.info.catalogue.resnet import RESNET18
from gpuproof.workloads.torch.cnn import build_resnet18, build_simple_cnn
from pairing import machine_line
from quick_verdicts import clopper_pearson

LAUNCHES = 5
"""Number of launches, as in the quick recipe."""
BATCH, PIXELS, CLASSES = 32, 32, 10
"""Batch size, image size and number of classes, as in the quick recipe."""
SHAPE = InputShape(kind="image", shape=(3, PIXELS, PIXELS), num_targets=CLASSES)
PRODUCTS, WIDTH = 50, 256


def main() -> None:
    """Run all loops, interleaved, and print a line for each."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--windows", type=int, default=10)
    parser.add_argument("--seconds", type=float, default=4.0, help="of a window")
    parser.add_argument("--quick", action="store_true", help="2 windows")
    options = parser.parse_args()
    print(machine_line())
    torch.set_num_threads(1)
    torch.manual_seed(1337)
    keep_freed_memory()
    loops = {
        f"{PRODUCTS} products of {WIDTH}² matrices": products(),
        f"simple_cnn, batch {BATCH}": training(build_simple_cnn(SimpleCnnOptions(), SHAPE)),
        f"resnet18, batch {BATCH}": training(build_resnet18(RESNET18.options_type(), SHAPE)),
    }
    windows: dict[str, list[list[float]]] = {name: [] for name in loops}
    for _ in range(2 if options.quick else options.windows):
        for name, step in loops.items():
            windows[name].append(window(step, seconds=options.seconds))
    for name, times_s in windows.items():
        print(line(name, times_s))


def products() -> Callable[[], None]:
    """Return a step of matrix products that needs only one core and its cache."""
    matrix = torch.randn(WIDTH, WIDTH)

    def step() -> None:
        for _ in range(PRODUCTS):
            matrix @ matrix

    return step


def training(model: nn.Module) -> Callable[[], None]:
    """Return a training step of the model, always with the same batch."""
    inputs, targets = torch.randn(BATCH, *SHAPE.shape), torch.randint(0, CLASSES, (BATCH,))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)

    def step() -> None:
        optimizer.zero_grad(set_to_none=True)
        nn.functional.cross_entropy(model(inputs), targets).backward()
        optimizer.step()

    return step


def window(step: Callable[[], None], *, seconds: float) -> list[float]:
    """Return the times of the steps that start within this many seconds, after three untimed steps."""
    for _ in range(3):
        step()
    times_s = []
    until_s = perf_counter() + seconds
    while (begin_s := perf_counter()) < until_s:
        step()
        times_s.append(perf_counter() - begin_s)
    return times_s


def line(name: str, windows: list[list[float]]) -> str:
    """Summarise a loop's windows."""
    judged = [found for times_s in windows if (found := judge_steadiness(times_s)) is not None]
    if not judged:
        return f"{name}: too few steps in a window to judge"
    rates = [len(times_s) / sum(times_s) for times_s in windows]
    steady = sum(found.verdict == "steady" for found in judged)
    most = clopper_pearson(steady, len(judged))[1]
    spreads = [found.level_spread for found in judged]
    return (
        f"{name}: {1e3 / fmean(rates):.1f} ms per step; steady in {steady} of {len(judged)} "
        f"windows, {LAUNCHES} in a row in at most {share(most**LAUNCHES)}; levels differ by "
        f"{share(median(spreads))} (median) to {share(max(spreads))}, rates by "
        f"{share(pstdev(rates) / fmean(rates))}"
    )


if __name__ == "__main__":
    main()

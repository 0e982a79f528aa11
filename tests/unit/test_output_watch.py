"""What steps put out is looked at between chunks, and the first look that finds no numbers is told."""

from __future__ import annotations

import itertools
from collections.abc import Sequence

import pytest
import torch
from torch import nn

from gpuproof.worker.engine import host_clock, loop
from gpuproof.worker.engine.host_clock import HostClock
from gpuproof.worker.engine.loop import run_window
from gpuproof.worker.step.inference import OutputWatch

NAN = torch.tensor([1.0, torch.nan])
GOOD = torch.tensor([1.0, 2.0])


class ThreeAtOnce:
    """A plan of 30 steps in chunks of three; of the first, whose pace nobody knows, two."""

    stop_reason = "30 steps"

    def next_steps(self, *, done: int, elapsed_s: float, capacity: int) -> int:
        return min(3, 30 - done, capacity)


class Step:
    """A step whose outputs are no numbers in some of its calls, counted from 1."""

    module = nn.Identity()
    last_loss = None

    def __init__(self, bad: Sequence[int]) -> None:
        self.outputs: object = None
        self._bad = bad
        self.num_calls = 0

    def __call__(self) -> None:
        self.num_calls += 1
        self.outputs = NAN if self.num_calls in self._bad else GOOD


@pytest.mark.parametrize(
    ("bad", "told"),
    [
        (range(19, 31), (17, 20)),  # at the end of the seventh chunk
        (range(1, 31), (0, 2)),
        ([30], (29, 30)),  # the last step is always looked at
        ([8], (5, 8)),
        ([], None),
    ],
)
def test_the_first_look_at_what_is_no_number_is_told(
    bad: Sequence[int], told: tuple[int, int] | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    ticks = itertools.count()
    for module in (loop, host_clock):  # steps of one pace: chunks are of what they would be by the plan
        monkeypatch.setattr(module, "perf_counter", lambda: 1e-4 * next(ticks))
    step, times = Step(bad), list[float]()
    watch = OutputWatch(step, times.extend)
    run_window(step, HostClock(), ThreeAtOnce(), watch)
    assert len(times) == 30
    assert watch.not_finite_after() == told


WIDE = torch.ones(300, 700)
WIDE[-1] = torch.inf


@pytest.mark.parametrize(
    ("outputs", "is_bad"),
    [
        (NAN, True),
        ((torch.tensor([3]), {"scores": NAN}), True),
        ([GOOD, NAN], False),  # what is made of the first: scores come first
        (WIDE, True),
        (WIDE.T, True),
        (NAN.to(torch.float8_e4m3fn), True),
        (GOOD.to(torch.float8_e4m3fn), False),
        (torch.tensor([1e300, 1.0], dtype=torch.float64), False),
        (torch.empty(0), False),
        (torch.tensor([7]), False),
        ("a text", False),
        (None, False),
    ],
)
def test_whatever_a_model_returns_is_looked_at(outputs: object, is_bad: bool) -> None:
    step = Step([])
    step.outputs = outputs
    watch = OutputWatch(step, list[float]().extend)
    watch([0.1])
    assert watch.not_finite_after() == ((0, 1) if is_bad else None)

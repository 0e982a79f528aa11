"""What torch.compile did, from its own counters; the compiler's front end alone, which needs no C++."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import pytest
import torch

from gpuproof.worker.step.cuda_graph import CompilerCounts, compilation_record, read_counts
from records_by_hand import TRAINING

NOTHING = CompilerCounts(graphs=0, breaks={}, eager_frames=0, cuda_graph_skips=0)


@pytest.fixture(autouse=True)
def _fresh_compiler() -> Iterator[None]:
    from torch._dynamo.utils import counters

    torch._dynamo.reset()
    counters.clear()
    yield
    torch._dynamo.reset()
    counters.clear()


def test_one_graph_without_a_break() -> None:
    torch.compile(lambda x: x * 2 + 1, backend="eager")(torch.ones(3))
    assert read_counts() == replace(NOTHING, graphs=1)


def test_a_break_has_its_reason_in_one_line() -> None:
    def broken(x: torch.Tensor) -> torch.Tensor:
        y = x + 1
        torch._dynamo.graph_break()
        return y * 2

    torch.compile(broken, backend="eager")(torch.ones(3))
    record = compilation_record(TRAINING, rank=2, before=read_counts(), after=read_counts())
    assert (record.rank, record.mode, record.num_graphs) == (2, "default", 2)
    assert [(b.reason, b.times) for b in record.graph_breaks] == [
        ("Call to `torch._dynamo.graph_break()`", 1)
    ]
    assert record.compiled_in_window == 0


def test_another_shape_in_the_window_is_a_compilation_in_the_window() -> None:
    compiled = torch.compile(lambda x: x * 2, backend="eager", dynamic=False)
    compiled(torch.ones(3))
    before = read_counts()
    compiled(torch.ones(3))
    assert compilation_record(TRAINING, rank=0, before=before, after=read_counts()).compiled_in_window == 0
    compiled(torch.ones(4))
    record = compilation_record(TRAINING, rank=0, before=before, after=read_counts())
    assert (record.num_graphs, record.compiled_in_window) == (2, 1)


def test_what_the_compiler_gave_up_runs_uncompiled_and_counts() -> None:
    with torch._dynamo.config.patch(recompile_limit=1):
        compiled = torch.compile(lambda x: x * 2, backend="eager", dynamic=False)
        compiled(torch.ones(3))
        before = read_counts()
        compiled(torch.ones(4))
    record = compilation_record(TRAINING, rank=0, before=before, after=read_counts())
    assert (record.num_graphs, record.eager_frames, record.compiled_in_window) == (1, 1, 1)

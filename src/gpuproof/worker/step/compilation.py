"""What torch.compile really did: graphs, breaks with their reasons, what stayed uncompiled, and when.

torch counts these itself, for the whole process; a window's share is the difference of two readings.
"""

from __future__ import annotations

from dataclasses import dataclass

from gpuproof.records.what_ran import Compilation, GraphBreak
from gpuproof.records.work.training import TrainingSpec

REASON_LENGTH = 200


@dataclass(frozen=True, slots=True, kw_only=True)
class CompilerCounts:
    """torch's counters since the process began."""

    graphs: int
    breaks: dict[str, int]
    eager_frames: int
    cuda_graph_skips: int


def read_counts() -> CompilerCounts:
    """Read torch's counters."""
    from torch._dynamo.utils import counters

    frames = counters["frames"]
    return CompilerCounts(
        graphs=counters["stats"]["unique_graphs"],
        breaks=dict(counters["graph_break"]),
        eager_frames=frames["total"] - frames["ok"],
        cuda_graph_skips=counters["inductor"]["cudagraph_skips"],
    )


def compilation_record(
    compute: TrainingSpec, *, rank: int, before: CompilerCounts, after: CompilerCounts
) -> Compilation:
    """Describe what was compiled; `before` and `after` are the readings around the window."""
    return Compilation(
        rank=rank,
        mode=compute.compile.mode,
        num_graphs=after.graphs,
        graph_breaks=tuple(
            GraphBreak(reason=_first_line(reason), times=times) for reason, times in after.breaks.items()
        ),
        eager_frames=after.eager_frames,
        cuda_graph_skips=after.cuda_graph_skips,
        compiled_in_window=after.graphs + after.eager_frames - before.graphs - before.eager_frames,
    )


def _first_line(reason: str) -> str:
    """Torch's reasons go on with explanations and links; the first line is the reason."""
    lines = reason.strip().splitlines()
    return lines[0][:REASON_LENGTH] if lines else "no reason given"

"""Launches of probes by hand: figures of two devices of one host."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from collectives_by_hand import window_of_repeats
from gpuproof.records.case import Case
from gpuproof.records.collected import CaseRecords
from gpuproof.records.run import Device
from gpuproof.records.work.probe import ProbeReading
from records_by_hand import H200, of_own_launch, result, setup, start

COPY_BYTES = 2**20
COPY_S = 0.001


def device(number: int) -> Device:
    return replace(H200, index=number, uuid=f"GPU-{number}")


def copies(rank: int = 0, number: int = 0, **changes: Any) -> ProbeReading:
    """Twenty copies of 1 MiB to a device, in 1 ms each."""
    whole = ProbeReading(
        rank=rank,
        quantity="link bandwidth",
        unit="B/s",
        labels={"kind": "h2d", "direction": "one_way", "size_bytes": COPY_BYTES, "host_memory": "pinned"},
        amount=float(COPY_BYTES),
        durations_s=tuple(COPY_S * (1 + (0.001 if i % 2 else -0.001)) for i in range(20)),
        target=device(number),
    )
    return replace(whole, **changes)


def digest(rank: int, given: str, *, round_number: int = 0, stack: str = "torch 2.13") -> ProbeReading:
    """What one rank gave for a product in fp32."""
    labels = {"digest": given, "round": round_number, "workload": "gemm", "dtype": "fp32", "stack": stack}
    return ProbeReading(rank=rank, quantity="fingerprint", unit="1", labels=labels)


def probe_records(case: Case, figures: Sequence[ProbeReading] = (), *, num_steps: int = 20) -> CaseRecords:
    """A launch that ended well, of as many ranks as the figures name: of copies, unless they are given."""
    told = figures or [copies()]
    ranks = range(max(figure.rank for figure in told) + 1)
    return CaseRecords(
        case=case,
        records=of_own_launch(
            (
                *(start(rank, world_size=len(ranks)) for rank in ranks),
                *(setup(rank, device=device(rank), item="repeats", precision="link") for rank in ranks),
                *told,
                *(window_of_repeats(rank, told, num_untimed=num_steps) for rank in ranks),
                *(result(rank) for rank in ranks),
            )
        ),
    )

"""What do FLOPs and bytes say of a launch: do they agree with each other, and with what a device can do?

In come a launch, with the ceilings that were measured beside it, and its device's peak; out go findings. A
rate over the data sheet's arithmetic peak is impossible, and found by `validity`; the doubts here have
several explanations, and the reader must find out which.
"""

from __future__ import annotations

from collections.abc import Iterator

from gpuproof.analysis.launch import Launch
from gpuproof.analysis.roofline import Roofline
from gpuproof.analysis.validity import Finding
from gpuproof.hardware import MemoryPeak
from gpuproof.units import bandwidth, flops, share

COUNTS_AGREE = 0.01
"""Closed form and torch's counter leave the same things out, so that they agree to the last operation."""


def work_findings(launch: Launch, memory_peak: MemoryPeak | None) -> Iterator[Finding]:
    """Yield every doubt about a launch's FLOPs and bytes."""
    yield from _counts(launch)
    yield from _over_data_sheet(launch, memory_peak)
    if launch.roofline is not None:
        yield from _over_measured(launch, launch.roofline)


def _suspect(code: str, reason: str, remedy: str) -> Finding:
    return Finding(validity="SUSPECT", code=code, reason=reason, remedy=remedy)


def _counts(launch: Launch) -> Iterator[Finding]:
    closed, counted = launch.setup.flops_per_step, launch.setup.flops_per_step_counted
    if closed is None or counted is None or abs(counted - closed) <= COUNTS_AGREE * closed:
        return
    yield _suspect(
        "flops-disagree",
        f"a step has {closed:,.0f} FLOPs by the closed form and {counted:,.0f} by torch's counter "
        f"({share(abs(counted - closed) / closed) if closed else 'from none'} apart)",
        "Do not quote FLOP/s or utilisation: the model does other work than its closed form says",
    )


def _over_data_sheet(launch: Launch, peak: MemoryPeak | None) -> Iterator[Finding]:
    reached = launch.bytes_per_s_per_device
    if peak is not None and reached is not None and reached > peak.bytes_per_s:
        yield _suspect(
            "over-memory-peak",
            f"{bandwidth(reached)} is over the {bandwidth(peak.bytes_per_s)} of {launch.setup.device.name}'s "
            f"memory ({peak.provenance})",
            "Part of the data stays in the cache: do not quote it as memory bandwidth; use larger ones",
        )


def _over_measured(launch: Launch, roofline: Roofline) -> Iterator[Finding]:
    for ceiling, reached, text, work in (
        (roofline.compute, launch.flops_per_s_per_device, flops, "products"),
        (roofline.memory, launch.bytes_per_s_per_device, bandwidth, "passes over memory"),
    ):
        if ceiling is not None and reached is not None and reached > ceiling.highest_per_s:
            yield _suspect(
                f"over-measured-{'compute' if work == 'products' else 'memory'}",
                f"{text(reached)} is over the {text(ceiling.value_per_s)} (+{share(ceiling.relative_spread)} "
                f"spread) that plain {work} reached here after the window",
                "Find out which is wrong: clocks or neighbours that changed in between, data that stays in a "
                "cache, or a count of work that is too high",
            )

"""What the report says of the data: how long steps waited for it, and what it was."""

from __future__ import annotations

from gpuproof import units
from gpuproof.analysis.data_wait import data_wait_share
from gpuproof.analysis.launch import Launch
from gpuproof.analysis.run_summary import RunSummary
from gpuproof.report.measure import Measure


def data_measures(summary: RunSummary) -> list[Measure]:
    """Return the share of the windows that was waited for data; nothing where no loader ran."""
    waited = data_wait_share(summary.launches)
    if waited is None:
        return []
    return [
        Measure(
            name="waited for data",
            value=waited,
            unit="share",
            text=units.share(waited),
            detail="of the window, by the rank that waited longest; within the steps",
        )
    ]


def data_notes(launch: Launch) -> list[str]:
    """Say which samples were used, where they are of a data set."""
    used = launch.setup.data_used
    if used is None or used.num_samples is None:
        return []
    part = f", {used.split} part" if used.split else ""
    place = f" from {used.source}" if used.source else ""
    checksum = f", SHA-256 {used.sha256[:12]}… of {used.sha256_of}" if used.sha256 else ""
    return [f"data: {launch.setup.data}{part}{place}, {units.count(used.num_samples)} samples{checksum}"]

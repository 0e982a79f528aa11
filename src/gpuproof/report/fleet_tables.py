"""What the tables of a fleet's reports have in common."""

from __future__ import annotations

from collections.abc import Sequence

from rich.console import RenderableType
from rich.table import Table

from gpuproof import units

Section = tuple[str, list[RenderableType]]
"""Title and body."""


def table_of(left: Sequence[str], right: Sequence[str] = ()) -> Table:
    """Make a table: columns of words, then columns of figures."""
    table = Table(box=None, padding=(0, 2, 0, 0), header_style="dim")
    for name in left:
        table.add_column(name, overflow="fold")
    for name in right:
        table.add_column(name, justify="right")
    return table


def devices(num_devices: int | None, gpu_type: str | None) -> str:
    """Write how many GPUs of which type a host has."""
    if gpu_type is None:
        return units.MISSING
    return f"{num_devices} × {gpu_type}" if num_devices else gpu_type


def number(value: float | None) -> str:
    """Write a figure, or that there is none."""
    return units.MISSING if value is None else units.significant(value)

"""Thresholds shipped with other tools, read from their files, and the errors found in them."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from gpuproof.verdict.foreign.faults import find_faults
from gpuproof.verdict.foreign.thresholds import Threshold, read_aznhc, read_dcgm, read_superbench, read_table

READERS: Mapping[str, Callable[..., list[Threshold]]] = {
    "dcgm": read_dcgm,
    "aznhc": read_aznhc,
    "superbench": read_superbench,
    "table": read_table,
}

__all__ = ["READERS", "Threshold", "find_faults", "read_thresholds"]


def read_thresholds(text: str, form: str, *, source: str) -> list[Threshold]:
    """Read the thresholds from a file in this format; messages use `source` as its name.

    Raises:
        UsageError: the file is not in that format, or contains no threshold.
    """
    return READERS[form](text, source=source)

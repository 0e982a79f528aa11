"""Thresholds that other tools ship, read from their files, and what is wrong with them."""

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
    """Read the thresholds of a file of this form; `source` is what messages call it.

    Raises:
        UsageError: it is not of that form, or holds no threshold.
    """
    return READERS[form](text, source=source)

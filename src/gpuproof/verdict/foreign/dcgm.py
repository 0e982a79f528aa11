"""DCGM's diagnostic thresholds (`diag-skus.yaml`): a list of boards, with a floor for each test.

Bandwidths are in about MB/s, arithmetic in GFLOP/s, power in W; the line above a number often says what was
measured, and what share of it the number is.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from gpuproof.config.yaml import Document, Place, read_document
from gpuproof.verdict.foreign.thresholds import Threshold, needing_some

TESTS = {
    "memory_bandwidth": ("minimum_bandwidth", "device memory", 1e6, "B/s"),
    "sm_stress": ("target_stress", "sm stress", 1e9, "FLOP/s"),
    "targeted_power": ("target_power", "power under load", 1.0, "W"),
}
"""Test → its key, the quantity, and the unit that the file has it in."""


def read_dcgm(text: str, *, source: str) -> list[Threshold]:
    """Read the floors of memory bandwidth, arithmetic and power of every board.

    Raises:
        UsageError: it is no YAML, or has no boards.
    """
    document, lines = read_document(text, source=source), text.splitlines()
    data = document.data
    boards = data.get("skus") if isinstance(data, dict) else None
    thresholds = [
        threshold
        for number, board in enumerate(boards if isinstance(boards, list) else ())
        if isinstance(board, dict)
        for threshold in _of_board(document, lines, number, board)
    ]
    return needing_some(thresholds, source=source, form="DCGM")


def _of_board(
    document: Document, lines: list[str], number: int, board: Mapping[str, Any]
) -> Iterator[Threshold]:
    name = f"{board.get('name')} ({board.get('id')})"
    for test, (key, quantity, scale, unit) in TESTS.items():
        options = board.get(test)
        if not isinstance(options, dict) or key not in options or options.get("is_allowed") is False:
            continue
        place: Place = ("skus", number, test, key)
        line, value = document.line(place), options[key]
        above = lines[line - 2].strip()
        yield Threshold(
            place=f"{document.source}:{line}",
            name=f"{name} {test}.{key}",
            quantity=quantity,
            value=value * scale if isinstance(value, (int, float)) else None,
            unit=unit,
            conditions={"board": name, "as_written": value},
            comment=above.removeprefix("#").strip() if above.startswith("#") else "",
        )

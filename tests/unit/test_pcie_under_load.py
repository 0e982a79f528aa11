"""PCIe generation and lanes under load: of what was read while a GPU worked or copied."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from gpuproof.readings.evidence import Evidence
from gpuproof.readings.pcie import pcie_under_load
from gpuproof.records.collected import CaseRecords
from gpuproof.records.work.window import MonitorSpec
from gpuproof.verdict.announced import facts_of
from recordings import GIB, header, identity, sample, write
from records_by_hand import case, of_own_launch, result, setup, start, window

NAMES = ("pcie_gen", "pcie_width", "util_gpu_percent", "pcie_rx_bytes")
Row = tuple[float, float, float, float]
AT_REST: list[Row] = [(1, 8, 0, at * 1e6) for at in range(4)]
BUSY: list[Row] = [(1, 8, 0, 0), *[(5, 16, 90, 0)] * 3, (1, 8, 0, 0)]
COPIES: list[Row] = [(1, 8, 0, 0), *[(5, 16, 2, at * GIB) for at in range(1, 4)], (1, 8, 0, 3 * GIB)]
FULL = {"GPU-0000": {"pcie_gen": 5.0, "pcie_width": 16.0}}


def evidence_of(folder: Path, *launches: Sequence[Row]) -> Evidence:
    """Launches on a host of two GPUs, of which the first is read, and what the second does is not known."""
    paths = [
        write(
            folder / f"{number}.jsonl",
            [
                header([identity(0), identity(1)]),
                *(sample(at, {0: dict(zip(NAMES, row, strict=True)), 1: {}}) for at, row in enumerate(rows)),
            ],
        )
        for number, rows in enumerate(launches)
    ]
    rest = [setup(), window(host="node7"), result()]
    records = [
        CaseRecords(
            case=replace(case(replicate=number), monitor=MonitorSpec(interval_s=1.0)),
            records=of_own_launch([replace(start(), host="node7", pid=100 + number), *rest]),
        )
        for number in range(len(launches))
    ]
    return Evidence(
        description={},
        config=None,
        launches=tuple(records),
        hosts=(),
        recording_at=lambda launched, _: paths[launched.replicate],
        folder_of=lambda _: Path(),
    )


@pytest.mark.parametrize(
    ("launches", "expected"),
    [
        ([AT_REST], {}),
        ([BUSY], FULL),
        ([COPIES], FULL),
        ([BUSY[:3]], {}),  # too few to tell
        ([BUSY[:3], COPIES[:3]], FULL),  # of all launches together
        ([[(4, 16, 90, 0)] * 4, AT_REST], {"GPU-0000": {"pcie_gen": 4.0, "pcie_width": 16.0}}),
    ],
)
def test_readings_count_while_a_gpu_works_or_copies(
    launches: Sequence[Sequence[Row]], expected: dict[str, dict[str, float]], tmp_path: Path
) -> None:
    evidence = evidence_of(tmp_path, *launches)
    assert pcie_under_load(evidence) == expected
    assert facts_of(evidence, []).pcie_under_load == expected


def test_without_a_recording_nothing_was_read(tmp_path: Path) -> None:
    evidence = replace(evidence_of(tmp_path, BUSY), recording_at=lambda *_: None)
    assert pcie_under_load(evidence) == {}

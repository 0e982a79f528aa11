"""Faults of the selftest that a device reports: a recorder reads planted values, all faults at a time."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from gpuproof.selftest.judging import Turned
from gpuproof.selftest.run import FAULTS, Fault, named

OF_DEVICES = [fault for fault in FAULTS if fault.layer == "device"]


def test_each_fault_that_a_device_reports_turns_the_verdict_and_is_named(tmp_path: Path) -> None:
    def judged(fault: Fault) -> Turned:
        folder = tmp_path / fault.name.replace(" ", "-")
        folder.mkdir()
        return fault.judge(folder, 0)

    with ThreadPoolExecutor(len(OF_DEVICES)) as pool:
        told = dict(zip((fault.name for fault in OF_DEVICES), pool.map(judged, OF_DEVICES), strict=True))
    assert len(told) >= 6
    assert {fault.name for fault in OF_DEVICES if named(fault, told[fault.name]) is None} == set(), told

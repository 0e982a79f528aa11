"""Faults of the selftest that ranks compute: what they wrote turns the verdict, and their healthy twins pass.

`selftest/` holds what real ranks wrote on simulated devices, for each such fault and each twin, as `gpuproof
selftest` left it on 24 November 2026. It is concluded and judged anew by each test; nothing of the verdict
that was given then is kept.
"""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from gpuproof.campaign.conclude import conclude
from gpuproof.selftest.judging import Turned
from gpuproof.selftest.run import FAULTS, SIMULATED, Fault, named
from gpuproof.selftest.worker import fingerprints_verdict, validation_verdict
from gpuproof.store.run import RunDirectory

RECORDED = Path(__file__).parent / "selftest"
OF_RANKS = [fault for fault in FAULTS if fault.layer == "worker"]


def told(name: str, twin: str, folder: Path) -> Turned:
    shutil.copytree(RECORDED / name, folder / name)
    conclude(RunDirectory.open(folder / name))
    result: dict[str, Any] = json.loads((folder / name / "result.json").read_text())
    return fingerprints_verdict(result) if twin == "fingerprints" else validation_verdict(result)


@pytest.mark.parametrize("fault", OF_RANKS, ids=lambda fault: fault.name)
def test_what_ranks_with_a_fault_wrote_turns_the_verdict_and_names_it(fault: Fault, tmp_path: Path) -> None:
    found = told(fault.name.replace(" ", "-"), fault.twin, tmp_path)
    assert named(fault, found) is not None, found


@pytest.mark.parametrize("twin", SIMULATED)
def test_what_healthy_ranks_wrote_is_ready_and_no_fault_is_named(twin: str, tmp_path: Path) -> None:
    found = told(f"healthy-{twin}", twin, tmp_path)
    assert found.word == "READY", found
    faults = [fault for fault in OF_RANKS if fault.twin == twin]
    assert faults
    lines = [line for fault in faults for line in found.against if all(part in line for part in fault.names)]
    assert lines == []

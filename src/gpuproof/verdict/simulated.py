"""Simulated devices say nothing about real hardware: reports say so, and no simulated run passes.

The quality of the measurement is still assessed: a benchmark of a simulated device can be VALID.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from gpuproof.base.errors import ExitCode
from gpuproof.records.collected import CaseRecords
from gpuproof.records.page import Page, Text
from gpuproof.records.result import NOTHING_MEASURED, Result
from gpuproof.records.run import Setup

WORD = "SIMULATED"
MEANING = "this ran on a simulated device, so no result here applies to any hardware"
INCONCLUSIVE = "INCONCLUSIVE (simulated)"
CONDITION = "simulated"


def is_simulated(launches: Sequence[CaseRecords]) -> bool:
    """Report whether any rank of any launch computed on a simulated device."""
    return any(setup.device.simulated for launch in launches for setup in launch.of(Setup))


def as_simulated(result: Result) -> Result:
    """Return the result of a simulated run, with a note in its conditions and its verdict capped.

    A benchmark's verdict says how well it was measured, so it keeps its exit code. A verdict on whether
    hardware is good enough is INCONCLUSIVE at best.
    """
    is_judgement = result.verdict not in (result.validity, NOTHING_MEASURED)
    code = at_most(ExitCode(result.exit_code), simulated=is_judgement)
    return replace(
        result,
        conditions={**result.conditions, CONDITION: True},
        verdict=f"{WORD} {result.verdict}" if code == result.exit_code else INCONCLUSIVE,
        exit_code=code,
    )


def at_most(code: ExitCode, *, simulated: bool) -> ExitCode:
    """Return the exit code, except that a simulated run can never pass."""
    return ExitCode.INCONCLUSIVE if simulated and code == ExitCode.DONE else code


def marked(page: Page) -> Page:
    """Return the page with a first line that says the run is simulated."""
    if page.verdict is None:
        note = Text(title="", lines=(f"{WORD}: {MEANING}",))
        return replace(page, sections=(note, *page.sections))
    reason = "; ".join(filter(None, (MEANING, page.verdict.reason)))
    return replace(page, verdict=replace(page.verdict, reason=reason))

"""What ran on a simulated device says nothing of any hardware: each report of it says so, and none passes.

How well it was measured stays as it is: a benchmark of a simulated device can be VALID.
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
MEANING = "a simulated device ran this, and no figure here is of any hardware"
INCONCLUSIVE = "INCONCLUSIVE (simulated)"
CONDITION = "simulated"


def is_simulated(launches: Sequence[CaseRecords]) -> bool:
    """Say whether any rank of any launch computed on a simulated device."""
    return any(setup.device.simulated for launch in launches for setup in launch.of(Setup))


def as_simulated(result: Result) -> Result:
    """Return the result of a run on simulated devices: its conditions name it, its verdict is capped.

    A benchmark's verdict is how well it was measured, and keeps its exit code; one that says whether
    hardware will do is inconclusive at best.
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
    """Return the exit code of a judgement: what was simulated never passes."""
    return ExitCode.INCONCLUSIVE if simulated and code == ExitCode.DONE else code


def marked(page: Page) -> Page:
    """Return the page with a first line that says what it is of."""
    if page.verdict is None:
        note = Text(title="", lines=(f"{WORD}: {MEANING}",))
        return replace(page, sections=(note, *page.sections))
    reason = "; ".join(filter(None, (MEANING, page.verdict.reason)))
    return replace(page, verdict=replace(page.verdict, reason=reason))

"""Running checks over the records of a run: what a check may not say is an ERROR, never a PASS.

In: registered checks by name, and the records. Out: an outcome each, whatever the plug-in does.
"""

from __future__ import annotations

from collections.abc import Sequence

from gpuproof import registry
from gpuproof.errors import UsageError
from gpuproof.records.collected import CaseRecords
from gpuproof.verdict.check import Check, Judged, Outcome


def load_check(name: str) -> Check:
    """Import a registered check.

    Raises:
        UsageError: there is none of that name, it cannot be loaded, or is not what a check must be.
    """
    check = registry.load(registry.CHECKS, name)
    if not isinstance(check, Check) or not callable(check.judge):
        raise UsageError(
            f"{name!r} from {registry.owner_of(registry.CHECKS, name)} is registered as a check and is a "
            f"{type(check).__name__} without name, summary and judge",
            next_step="See gpuproof.verdict.check.Check, or uninstall it",
        )
    return check


def judge(name: str, check: Check, launches: Sequence[CaseRecords]) -> Judged:
    """Ask a check; its own faults, and a PASS over nothing, are errors."""
    return Judged(name=name, outcome=_outcome(name, check, launches))


def _outcome(name: str, check: Check, launches: Sequence[CaseRecords]) -> Outcome:
    owner = registry.owner_of(registry.CHECKS, name)
    try:
        outcome = check.judge(launches)
    except Exception as error:  # noqa: BLE001  # a plug-in's own fault ends its check, and no other
        return Outcome(
            status="ERROR",
            reason=f"the check itself failed: {type(error).__name__}: {error}",
            next_step=f"Report it to the makers of {owner}",
        )
    if not isinstance(outcome, Outcome):
        return Outcome(
            status="ERROR",
            reason=f"the check returned a {type(outcome).__name__}, not an Outcome",
            next_step=f"Report it to the makers of {owner}",
        )
    if outcome.status == "PASS" and not any(launch.status == "done" for launch in launches):
        return Outcome(
            status="ERROR",
            reason="the check passed a run of which no launch was finished",
            next_step="Finish the run with --resume, then ask again",
        )
    return outcome

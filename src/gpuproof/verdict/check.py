"""The contract of a check, a pure question to the records of a finished run, and how it is asked.

A plug-in registers an object with `name`, `summary` and `judge` under the entry-point group
`gpuproof.checks`. `judge` takes the records of every launch and returns an `Outcome`; it reads no clock,
file or device, so that it says the same on any machine and at any time. What a check may not say is an
ERROR, never a PASS.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol, runtime_checkable

from gpuproof import registry
from gpuproof.errors import UsageError
from gpuproof.records.collected import CaseRecords
from gpuproof.records.outcome import Judged, Outcome


@runtime_checkable
class Check(Protocol):
    """A check as the registry knows it."""

    name: str
    summary: str
    """What a PASS says, in one line."""

    def judge(self, launches: Sequence[CaseRecords]) -> Outcome:
        """Judge the records of all launches, failed ones too; pure."""


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

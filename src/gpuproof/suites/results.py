"""How a benchmark's result is put together: the same fields and the same exit code for every suite."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from gpuproof.base.errors import ExitCode
from gpuproof.launches.limits import limits_together
from gpuproof.readings.evidence import Evidence
from gpuproof.readings.limits import LaunchLimits
from gpuproof.records.result import INCONCLUSIVE, NOTHING_MEASURED, Doubt, Measure, Result, Validity, worst
from gpuproof.records.run import Failure
from gpuproof.suites.sections import headline
from gpuproof.verdict.doubts.base import WRONG
from gpuproof.verdict.doubts.lost import CODE as LOST
from gpuproof.verdict.doubts.lost import lost_readings
from gpuproof.verdict.doubts.rules import invalid_first


def benchmark_result(
    suite: str,
    evidence: Evidence,
    *,
    measures: Sequence[Measure],
    doubts: Sequence[Doubt],
    failures: Sequence[Failure],
    num_launches: int,
    num_planned: int,
    conditions: Mapping[str, Any],
    detail: Mapping[str, Any],
    headline_text: str | None = None,
    is_of_points: bool = False,
    limits: Sequence[LaunchLimits] = (),
) -> Result:
    """Return the result of a benchmark, which is as valid as its worst doubt leaves it.

    `is_of_points`: what one point lacked others had, so that a failure is theirs and not the machine's.
    """
    doubts = _with_lost(doubts, evidence)
    limited = limits_together(limits, measures, "points" if is_of_points else "hosts")
    validity, verdict = _judged(doubts, num_launches, measures[:1] if headline_text is None else ())
    has_points = is_of_points and num_launches > 0
    code = exit_code_for(failures, validity, is_complete=num_launches >= num_planned, has_points=has_points)
    return Result(
        suite=suite,
        run_id=str(evidence.description["run_id"]),
        gpuproof_version=str(evidence.description["gpuproof_version"]),
        validity=validity,
        verdict=verdict,
        headline=headline(measures) if headline_text is None else headline_text,
        exit_code=ExitCode.FAILED if _is_wrong(doubts) else code,
        num_launches=num_launches,
        num_planned=num_planned,
        conditions=conditions,
        doubts=tuple(doubts),
        failures=tuple(failures),
        measures=(*measures, *limited),
        detail=detail,
    )


def _is_wrong(doubts: Sequence[Doubt]) -> bool:
    """Say whether wrong results were measured: there is no doubt about them."""
    return any(doubt.code == WRONG for doubt in doubts)


def _judged(
    doubts: Sequence[Doubt], num_launches: int, headlines: Sequence[Measure]
) -> tuple[Validity | None, str]:
    """Return validity and verdict: there is none of what was not measured, whatever else was."""
    if not num_launches:
        return None, NOTHING_MEASURED
    validity = worst(doubts)
    lacks_headline = any(measure.value is None for measure in headlines)
    return (None, INCONCLUSIVE) if lacks_headline and validity != "INVALID" else (validity, validity)


def _with_lost(doubts: Sequence[Doubt], evidence: Evidence) -> Sequence[Doubt]:
    """Return the doubts with what the monitor lost; those of a sweep have it of its points."""
    has_lost = any(doubt.code == LOST for doubt in doubts)
    return doubts if has_lost else invalid_first([*doubts, *lost_readings(evidence)])


def shared_conditions(results: Sequence[Result]) -> dict[str, Any]:
    """Return the conditions of several results; None where those that measured something differ."""
    measured = [result.conditions for result in results if result.num_launches] or [
        result.conditions for result in results
    ]
    return {
        key: value if all(other.get(key) == value for other in measured) else None
        for conditions in measured[:1]
        for key, value in conditions.items()
    }


def exit_code_for(
    failures: Sequence[Failure], validity: Validity | None, *, is_complete: bool, has_points: bool
) -> ExitCode:
    """Return 0 for a run that measured what it was asked to, whatever its doubts short of INVALID.

    Launches that are missing without a failure (somebody killed the campaign) are INCONCLUSIVE.
    """
    causes: set[str] = {failure.cause for failure in failures}
    if has_points and causes - {"interrupted", "disk_full"}:
        return ExitCode.FAILED
    if causes & {"environment", "disk_full"}:
        return ExitCode.UNFIT_ENVIRONMENT
    return exit_code_without_lack(causes, validity, is_complete=is_complete)


def exit_code_without_lack(causes: set[str], validity: Validity | None, *, is_complete: bool) -> ExitCode:
    """Return the exit code where no machine lacked anything."""
    for cause, code in (("timeout", ExitCode.TIMEOUT), ("interrupted", ExitCode.INTERRUPTED)):
        if causes == {cause}:
            return code
    if causes:
        return ExitCode.FAILED
    return ExitCode.DONE if is_complete and validity in ("VALID", "SUSPECT") else ExitCode.INCONCLUSIVE

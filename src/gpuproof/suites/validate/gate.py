"""A gate before a job: a verdict, a line and an exit code, from a short validation's result.

The gate fails (exit code 3) only if something was measured and is wrong. Anything that could not be checked
is an error with another code, so that a node is never removed because a result is missing.
"""

from __future__ import annotations

from collections.abc import Iterator

from gpuproof.base.errors import ExitCode
from gpuproof.records.codec import from_json
from gpuproof.records.result import Result
from gpuproof.suites.validate.conclude import ValidateDetail
from gpuproof.suites.validate.nodes import one_line, problem_of


def gate_line(result: Result) -> str:
    """Return one line: the verdict, the subject with the problem, and the first reason."""
    detail = from_json(ValidateDetail, result.detail, place="result.json: detail")
    return one_line(f"{result.verdict}: {_reason(result, detail)}")


def gate_code(result: Result) -> ExitCode:
    """Return 3 if something was measured and is wrong, else the result's own exit code.

    If a launch was cut off because the gate's time ran out, this is a time-out, unless other launches show a
    failure.
    """
    readiness = from_json(ValidateDetail, result.detail, place="result.json: detail").readiness
    if readiness.word == "NOT-READY" or readiness.excluded:
        return ExitCode.FAILED
    code = ExitCode(result.exit_code)
    if code is ExitCode.INTERRUPTED:
        return ExitCode.TIMEOUT
    return ExitCode.INCONCLUSIVE if code is ExitCode.FAILED else code


def _reason(result: Result, detail: ValidateDetail) -> str:
    if detail.drain:
        return detail.drain[0].reason.replace("gpuproof: ", "", 1)
    reasons = (*_cut_off(result), *detail.readiness.reasons)
    failed = [item for item in result.outcomes if item.is_required and item.outcome.status == "FAIL"]
    if failed:
        return f"[{problem_of(failed)}] {detail.readiness.reasons[0]}"
    return reasons[0] if reasons else result.headline


def _cut_off(result: Result) -> Iterator[str]:
    """Yield the external causes that ended a launch, starting with the launcher's own message."""
    for failure in sorted(result.failures, key=lambda failure: failure.rank is not None):
        yield f"{failure.phase}: {failure.message}"

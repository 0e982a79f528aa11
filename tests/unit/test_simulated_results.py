"""What ran on a simulated device says so, and passes no judgement; how well it was measured stays."""

from __future__ import annotations

from dataclasses import replace

import pytest

from gpuproof.base.errors import ExitCode
from gpuproof.records.page import Page, Text, Verdict
from gpuproof.records.result import NOTHING_MEASURED, Result, Validity
from gpuproof.verdict.simulated import as_simulated, at_most, marked


def result(verdict: str, code: ExitCode, validity: Validity | None = None) -> Result:
    return Result(
        suite="s",
        run_id="r",
        gpuproof_version="0",
        headline="",
        validity=validity,
        verdict=verdict,
        exit_code=code,
        num_launches=1,
        num_planned=1,
        conditions={"device": "d"},
        doubts=(),
        failures=(),
        measures=(),
    )


@pytest.mark.parametrize(
    ("validity", "verdict", "code"),
    [
        ("VALID", "VALID", ExitCode.DONE),
        ("SUSPECT", "SUSPECT", ExitCode.DONE),
        ("INVALID", "INVALID", ExitCode.INCONCLUSIVE),
        (None, NOTHING_MEASURED, ExitCode.FAILED),
    ],
)
def test_a_benchmark_keeps_its_validity_and_its_exit_code(
    validity: Validity | None, verdict: str, code: ExitCode
) -> None:
    before = result(verdict, code, validity)
    said = as_simulated(before)
    assert said == replace(
        before, verdict=f"SIMULATED {verdict}", conditions={"device": "d", "simulated": True}
    )


def test_a_judgement_that_would_pass_is_inconclusive() -> None:
    said = as_simulated(result("READY", ExitCode.DONE, "VALID"))
    assert (said.verdict, said.exit_code) == ("INCONCLUSIVE (simulated)", ExitCode.INCONCLUSIVE)
    assert said.validity == "VALID"


def test_a_judgement_that_fails_still_fails() -> None:
    said = as_simulated(result("NOT-READY", ExitCode.FAILED))
    assert (said.verdict, said.exit_code) == ("SIMULATED NOT-READY", ExitCode.FAILED)


def test_only_what_is_simulated_is_capped() -> None:
    assert at_most(ExitCode.DONE, simulated=False) == ExitCode.DONE
    assert at_most(ExitCode.DONE, simulated=True) == ExitCode.INCONCLUSIVE
    assert at_most(ExitCode.FAILED, simulated=True) == ExitCode.FAILED


def test_a_page_says_it_first() -> None:
    verdict = Verdict(
        headline="1", uncertainty="", word="SIMULATED VALID", tone="good", reason="well measured"
    )
    page = Page(title="t", verdict=verdict, sections=())
    said = marked(page).verdict
    assert said is not None
    assert said.reason.startswith("this ran on a simulated device, so")
    assert said.reason.endswith("; well measured")
    (first,) = marked(replace(page, verdict=None)).sections
    assert isinstance(first, Text)
    assert first.lines[0].startswith("SIMULATED: ")

"""JUnit XML: error is no failure, what was not measured has no time, and every text is well-formed."""

from __future__ import annotations

from dataclasses import replace
from xml.etree.ElementTree import Element, fromstring

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gpuproof.base.errors import ExitCode
from gpuproof.records.outcome import Judged, Outcome, Status
from gpuproof.records.result import Doubt, Result, Validity
from gpuproof.report.junit import junit

RESULT = Result(
    suite="validate",
    run_id="r",
    gpuproof_version="0",
    validity="VALID",
    verdict="NOT-READY",
    headline="1 of 6",
    exit_code=ExitCode.FAILED,
    num_launches=1,
    num_planned=1,
    conditions={},
    doubts=(),
    failures=(),
    measures=(),
)
ORDER = ("testsuites", "testsuite", "properties", "property", "testcase", "failure", "error", "skipped")


def judged(status: Status, *, name: str = "check", is_required: bool = True, said: str = "x") -> Judged:
    outcome = Outcome(status=status, measured=said, expected=said, source=said, reason=said, next_step=said)
    return Judged(name=name, outcome=outcome, is_required=is_required)


def cases(*items: Judged, code: ExitCode = ExitCode.FAILED) -> dict[str, Element]:
    root = fromstring(junit(replace(RESULT, outcomes=items, exit_code=code)))
    return {case.get("name", ""): case for case in root.iter("testcase")}


def tags(case: Element) -> list[str]:
    return [child.tag for child in case]


def test_a_message_names_a_device_by_index_and_identity_and_its_case_by_identity_alone() -> None:
    item = judged("FAIL")
    of_gpu = replace(item, outcome=replace(item.outcome, subject="host/a/gpu/GPU-2"))
    result = replace(RESULT, outcomes=(of_gpu,), device_indices={"host/a/gpu/GPU-2": 5})
    (case,) = (case for case in fromstring(junit(result)).iter("testcase") if case.get("name") == "check")
    assert case.get("classname") == "gpuproof.validate.host/a/gpu/GPU-2"
    assert case[0].get("message") == "GPU 5 (GPU-2) on a: x"


def test_each_state_has_its_element() -> None:
    states: dict[Status, list[str]] = {
        "PASS": [],
        "FAIL": ["failure"],
        "ERROR": ["error"],
        "WARN": ["error"],
        "SKIP": ["skipped"],
        "NOT-APPLICABLE": ["skipped"],
    }
    found = cases(*(judged(status, name=status) for status in states))
    assert {status: tags(found[status]) for status in states} == states
    root = fromstring(junit(replace(RESULT, outcomes=tuple(judged(status) for status in states))))
    (suite,) = root
    counts = {key: suite.get(key) for key in ("tests", "failures", "errors", "skipped")}
    assert counts == {"tests": "7", "failures": "2", "errors": "2", "skipped": "2"}  # with the verdict's own


def test_the_verdict_is_a_case_that_passes_with_exit_code_0_alone() -> None:
    assert tags(cases(code=ExitCode.DONE)["verdict"]) == []
    assert tags(cases(code=ExitCode.FAILED)["verdict"]) == ["failure"]
    assert tags(cases(code=ExitCode.INTERRUPTED)["verdict"]) == ["error"]


@pytest.mark.parametrize(
    ("validity", "code", "tag"),
    [
        ("SUSPECT", ExitCode.DONE, "skipped"),
        ("SUSPECT", ExitCode.INCONCLUSIVE, "skipped"),
        ("VALID", ExitCode.INCONCLUSIVE, "skipped"),
        ("SUSPECT", ExitCode.FAILED, "failure"),
        ("INVALID", ExitCode.INCONCLUSIVE, "error"),
        (None, ExitCode.INCONCLUSIVE, "error"),
    ],
)
def test_what_cannot_be_told_is_no_green_pass(validity: Validity | None, code: ExitCode, tag: str) -> None:
    doubt = Doubt(validity="SUSPECT", code="host_bound", reason="the device waited", remedy="More")
    result = replace(RESULT, verdict="SUSPECT", validity=validity, exit_code=code, doubts=(doubt,))
    for is_strict in (False, True):
        (message,) = fromstring(junit(result, is_strict=is_strict)).findall(".//testcase/*")
        assert message.tag == ("error" if is_strict and tag == "skipped" else tag)
        assert message.get("message") == "SUSPECT: 1 of 6"
        assert message.text == "the device waited"
        assert message.get("type") == (None if message.tag == "skipped" else "SUSPECT")


def test_what_is_advisory_fails_nothing() -> None:
    (advisory,) = (cases(judged("FAIL", is_required=False))["check"],)
    assert tags(advisory) == ["system-out"]


def test_nothing_has_a_time_of_its_own() -> None:
    assert all("time" not in case.attrib for case in cases(judged("PASS"), judged("SKIP")).values())


@settings(max_examples=30)
@given(st.text(max_size=20))
def test_any_text_is_well_formed(said: str) -> None:
    root = fromstring(junit(replace(RESULT, outcomes=(judged("FAIL", name="n" + said, said="s" + said),))))
    assert {element.tag for element in root.iter()} <= {*ORDER, "system-out"}
    assert len(list(root.iter("testcase"))) == 2

"""Format a result as JUnit XML for test systems: one case per check, or one case without checks.

A failure is a measurement that does not meet the expectation; an error means that something could not be
measured. SKIP and NOT-APPLICABLE count as skipped, each with its reason. A required check with WARN is
unconfirmed, so it counts as an error. A run that is SUSPECT or INCONCLUSIVE neither passed nor failed: its
verdict counts as skipped, or as an error on request. Checks are not timed separately, so no times are
reported.
"""

from __future__ import annotations

from collections.abc import Sequence
from xml.etree.ElementTree import Element, SubElement, indent, tostring

from gpuproof.base.errors import ExitCode
from gpuproof.base.outside import plain
from gpuproof.records.outcome import Judged, Outcome
from gpuproof.records.result import Result, weakening
from gpuproof.records.run import Failure
from gpuproof.records.subject_names import named

TAGS = {"FAIL": "failure", "ERROR": "error", "SKIP": "skipped", "NOT-APPLICABLE": "skipped"}


def junit(result: Result, *, is_strict: bool = False) -> str:
    """Return a result as JUnit XML (the structure that the Jenkins and Ant schemas share).

    `is_strict` turns a SUSPECT or INCONCLUSIVE verdict into an error.
    """
    suite = Element("testsuite", name=f"gpuproof.{result.suite}")
    properties = SubElement(suite, "properties")
    for name, value in (
        ("run_id", result.run_id),
        ("verdict", result.verdict),
        ("headline", result.headline),
    ):
        SubElement(properties, "property", name=name, value=plain(value))
    for name, element in _cases(result, is_strict=is_strict):
        element.set("name", plain(name))
        suite.append(element)
    for tag, plural in (("failure", "failures"), ("error", "errors"), ("skipped", "skipped")):
        suite.set(plural, str(len(suite.findall(f"./testcase/{tag}"))))
    suite.set("tests", str(len(suite.findall("./testcase"))))
    root = Element("testsuites", {key: suite.get(key, "0") for key in ("tests", "failures", "errors")})
    root.append(suite)
    indent(root)
    return '<?xml version="1.0" encoding="UTF-8"?>\n' + tostring(root, encoding="unicode") + "\n"


def _cases(result: Result, *, is_strict: bool) -> Sequence[tuple[str, Element]]:
    """Return a case for the overall verdict, which is not itself a check, then one case per check."""
    checks = [(item.name, _checked(item, result)) for item in result.outcomes]
    return [("verdict", _whole(result, is_strict=is_strict)), *checks]


def _checked(item: Judged, result: Result) -> Element:
    element = Element("testcase", classname=plain(f"gpuproof.{result.suite}.{item.outcome.subject}"))
    tag = TAGS.get(item.outcome.status)
    if item.outcome.status == "WARN" and item.is_required:
        tag = "error"
    if not item.is_required and tag in ("failure", "error"):
        tag = None  # advisory: shown, but does not affect the verdict
    if tag is not None:
        message = SubElement(element, tag, message=plain(_message_of(item.outcome, result)))
        if tag != "skipped":
            message.set("type", item.outcome.status)
        message.text = plain(_explained(item.outcome))
    elif item.outcome.status != "PASS":
        SubElement(element, "system-out").text = plain(f"{item.outcome.status}: {_explained(item.outcome)}")
    return element


def _message_of(outcome: Outcome, result: Result) -> str:
    """Return a subject's description; for a device or its link, include both index and identity."""
    summary = named(outcome.summary, result.device_indices, with_identity=True)
    who = named(outcome.subject, result.device_indices, with_identity=True)
    return f"{who}: {summary}" if "/gpu/" in outcome.subject else summary


def _whole(result: Result, *, is_strict: bool) -> Element:
    """Return the verdict as a test case: passed only if the run exited with 0 and has no warnings."""
    element = Element("testcase", classname=f"gpuproof.{result.suite}")
    tag = _tag_of_verdict(result)
    if tag is None:
        return element
    message = SubElement(
        element,
        "error" if is_strict and tag == "skipped" else tag,
        message=plain(f"{result.verdict}: {result.headline}"),
    )
    if message.tag != "skipped":
        message.set("type", result.verdict)
    message.text = plain(
        "\n".join([*map(_message, result.failures), *(doubt.reason for doubt in weakening(result.doubts))])
    )
    return element


def _tag_of_verdict(result: Result) -> str | None:
    if result.exit_code == ExitCode.FAILED:
        return "failure"
    if result.exit_code == ExitCode.DONE and result.validity != "SUSPECT":
        return None
    is_open = result.exit_code in (ExitCode.DONE, ExitCode.INCONCLUSIVE)
    return "skipped" if is_open and result.validity in ("VALID", "SUSPECT") else "error"


def _message(failure: Failure) -> str:
    return f"{failure.cause} on {failure.host}: {failure.message}"


def _explained(outcome: Outcome) -> str:
    parts = {
        "measured": outcome.measured,
        "reason": outcome.reason,
        "expected": outcome.expected,
        "source": outcome.source,
        "next step": outcome.next_step,
        "who": outcome.responsible,
        "records": ", ".join(outcome.records) or None,
    }
    return "\n".join(f"{name}: {value}" for name, value in parts.items() if value is not None)

"""Wrong values and unlike results, of the device that gave them: what probes and checked products say.

A probe judges itself; here its outcomes get the name of their stage. Fingerprints of all hosts are compared
together, whatever each host by itself would say.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

from gpuproof import units
from gpuproof.analysis.probes.figures import WRONG_VALUES, summarize_probe
from gpuproof.records.outcome import Judged, Outcome
from gpuproof.records.result import Measure
from gpuproof.suites.probe.fingerprints import conclude_fingerprints
from gpuproof.suites.validate.measured import StageResult
from gpuproof.verdict.checks.answers import pass_or_fail

FINGERPRINTS = ("fingerprint", "fingerprint_hot")


def wrong_outcomes(found: Sequence[StageResult]) -> Iterator[Judged]:
    """Judge every device whose values were compared."""
    for each in found:
        is_of_parts = each.stage.name not in FINGERPRINTS and why_nothing(each) is None
        if each.result is not None and is_of_parts:
            own = each.result.outcomes if each.config.kind == "probe" else _of_products(each)
            yield from (_named(item, each) for item in own)
    for name in FINGERPRINTS:
        stage = [each for each in found if each.stage.name == name]
        launches = [probe for each in stage for one in each.launches if (probe := summarize_probe(one))]
        compared = conclude_fingerprints(launches)
        yield from (_named(item, stage[0]) for item in compared.outcomes)


def names_wrong(found: StageResult) -> bool:
    """Say whether the devices whose values are wrong are judged by themselves."""
    compared = () if found.result is None else found.result.measures
    done = all(launch.status == "done" for launch in found.launches)
    is_named = found.stage.name in FINGERPRINTS or any(x.name == WRONG_VALUES and x.value for x in compared)
    return done and is_named


def why_nothing(found: StageResult) -> str | None:
    """Say why a probe had nothing to measure at all; None where it measured something."""
    result = found.result
    if result is None or found.config.kind != "probe" or any(m.value is not None for m in result.measures):
        return None
    reasons = [x.outcome.reason for x in result.outcomes if x.outcome.status == "NOT-APPLICABLE"]
    return "; ".join(dict.fromkeys(filter(None, reasons))) or None


def _named(item: Judged, of: StageResult) -> Judged:
    """Name an outcome after its case, and say what it is of, as rows of aspects name it."""
    name = item.name if of.case.name.startswith(item.name) else f"{of.case.name}, {item.name}"
    labels = {**item.labels, "stage": of.stage.name, "case": of.case.name}
    return replace(item, name=name, is_required=of.stage.is_required, measure=WRONG_VALUES, labels=labels)


def _of_products(found: StageResult) -> Iterator[Judged]:
    for measure in () if found.result is None else found.result.measures:
        if measure.name == WRONG_VALUES and measure.value is not None:
            outcome = _outcome(measure, measure.value)
            yield Judged(name=WRONG_VALUES, outcome=outcome, labels={"dtype": measure.labels["dtype"]})


def _outcome(measure: Measure, value: float) -> Outcome:
    return pass_or_fail(
        measure.subject,
        not value,
        f"{units.count(int(value))} wrong elements: {measure.detail}",
        expected="none",
        source="the same product in 8-byte numbers on the host",
        next_step="Take the device out of service and send these records to its vendor",
        responsible="vendor",
        measured_value=value,
        expected_value=0.0,
        unit="1",
    )

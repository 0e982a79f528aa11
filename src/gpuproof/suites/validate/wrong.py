"""Wrong values and unlike results, of the device that gave them: what probes and checked products say.

A probe judges itself; here its outcomes get the name of their stage. Fingerprints of all hosts are compared
together, whatever each host by itself would say.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

from gpuproof.base import units
from gpuproof.launches.probes import WRONG_VALUES, summarize_probe
from gpuproof.records.outcome import Judged, Outcome, pass_or_fail
from gpuproof.records.result import Measure
from gpuproof.suites.probe.fingerprints import conclude_fingerprints
from gpuproof.suites.validate.measured import StageResult

FINGERPRINTS = ("fingerprint", "fingerprint_hot")


def wrong_outcomes(results: Sequence[StageResult]) -> Iterator[Judged]:
    """Judge every device whose values were compared."""
    for result in results:
        if result.result is not None and reason_for_nothing(result) is None:
            outcomes = result.result.outcomes if result.config.kind == "probe" else _product_outcomes(result)
            of_parts = (
                x for x in outcomes if result.stage.name not in FINGERPRINTS or x.name == WRONG_VALUES
            )
            yield from (_name(item, result) for item in of_parts)
    for name in FINGERPRINTS:
        stage = [x for x in results if x.stage.name == name]
        launches = [probe for x in stage for one in x.launches if (probe := summarize_probe(one))]
        compared = conclude_fingerprints(launches)
        yield from (_name(item, stage[0]) for item in compared.outcomes)


def are_devices_judged(concluded: StageResult) -> bool:
    """Say whether the devices whose values are wrong are judged by themselves."""
    compared = () if concluded.result is None else concluded.result.measures
    done = all(launch.status == "done" for launch in concluded.launches)
    is_named = concluded.stage.name in FINGERPRINTS or any(
        x.name == WRONG_VALUES and x.value for x in compared
    )
    return done and is_named


def reason_for_nothing(concluded: StageResult) -> str | None:
    """Say why a probe had nothing to measure at all; None where it measured something."""
    whole = concluded.result
    if whole is None or concluded.config.kind != "probe" or any(m.value is not None for m in whole.measures):
        return None
    reasons = [x.outcome.reason for x in whole.outcomes if x.outcome.status == "NOT-APPLICABLE"]
    return "; ".join(dict.fromkeys(filter(None, reasons))) or None


def _name(item: Judged, of: StageResult) -> Judged:
    """Name an outcome after its case, and say what it is of, as rows of aspects name it."""
    name = item.name if of.case.name.startswith(item.name) else f"{of.case.name}, {item.name}"
    labels = {**item.labels, "stage": of.stage.name, "case": of.case.name}
    return replace(item, name=name, is_required=of.stage.is_required, measure=WRONG_VALUES, labels=labels)


def _product_outcomes(concluded: StageResult) -> Iterator[Judged]:
    for measure in () if concluded.result is None else concluded.result.measures:
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

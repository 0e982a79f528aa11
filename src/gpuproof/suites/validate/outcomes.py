"""Was everything measured, and are the values correct? Outcomes of hosts, devices and launches.

These outcomes are not about speed: something that ran is not necessarily fast. Skipped cases are SKIP, cases
that could not be measured are ERROR, and cases with nothing to measure are NOT-APPLICABLE, with the evidence.
Wrong values are attributed to the device that produced them, by probes and checked matmuls. A probe evaluates
its own results; here, its outcomes are named after their stage. Fingerprints of all hosts are compared
together, regardless of each host's own result.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import replace

from gpuproof.base import units
from gpuproof.hardware.boards import PEAK_TYPE_OF_PRECISION
from gpuproof.launches.probes import WRONG_VALUES, summarize_probe
from gpuproof.records.collected import CaseRecords
from gpuproof.records.outcome import Judged, Outcome, not_applicable, not_judged, pass_or_fail, skipped
from gpuproof.records.result import WHOLE, Doubt, Measure
from gpuproof.records.run import TRANSIENT_CAUSES, Failure, RankResult, Start
from gpuproof.suites.probe.fingerprints import conclude_fingerprints
from gpuproof.suites.validate.counted import count_outcomes
from gpuproof.suites.validate.measured import StageResult, measures_of
from gpuproof.suites.validate.options import ValidateOptions
from gpuproof.suites.validate.placing import begun_on, devices_by_host, lost_of
from gpuproof.suites.validate.plan import StageOrder
from gpuproof.verdict.doubts.base import WRONG
from gpuproof.verdict.facts import FleetFacts

IMPLAUSIBLE = ("over-peak", "over-memory-peak")
NOT_SEEN = ("not-checked", "not-measured", "gpus-not-used", "other-precision")
"""Warnings that defeat the purpose of a launch: none of its results can pass."""
PLAN = "the plan of this recipe"
RESUMED = "Finish the run with --resume"
LAUNCHES = "launches"
"""The subject of launch outcomes, as named in the aspect rows."""
FINGERPRINTS = ("fingerprint", "fingerprint_hot")


def stage_outcomes(
    order: StageOrder, results: Sequence[StageResult], left_out: Mapping[str, Outcome]
) -> list[Judged]:
    """Evaluate every case of every stage; `left_out` says why cases were not launched."""
    judged = [item for result in results for item in _case_outcomes(result, left_out)]
    launched = {result.stage.name for result in results}
    return judged + [
        Judged(
            name=stage.name, outcome=_without_cases(stage.name, order, results), is_required=stage.is_required
        )
        for stage in order.stages
        if stage.name not in launched
    ]


def _case_outcomes(concluded: StageResult, left_out: Mapping[str, Outcome]) -> Iterator[Judged]:
    outcome = _outcome(concluded, left_out.get(concluded.case.case_id))
    if outcome.status == "FAIL" and are_devices_judged(concluded):
        return  # the devices are evaluated separately
    labels = {"stage": concluded.stage.name, "case": concluded.case.name, **_dtype(concluded)}
    is_required = concluded.stage.is_required
    yield Judged(
        name=_name(concluded), outcome=outcome, is_required=is_required, measure=LAUNCHES, labels=labels
    )
    suspected = (
        [] if concluded.result is None else [d for d in concluded.result.doubts if d.validity == "SUSPECT"]
    )
    if outcome.status == "PASS" and suspected:
        more = f" (and {len(suspected) - 1} more)" if len(suspected) > 1 else ""
        doubted = pass_or_fail(
            concluded.subject,
            False,
            f"SUSPECT: {suspected[0].reason}{more}",
            expected="results without warnings",
            source="docs/how-we-measure.md",
            next_step=suspected[0].remedy,
            responsible="user",
            warns=True,
        )
        yield Judged(name=f"{_name(concluded)}, doubts", outcome=doubted, is_required=False)


def _dtype(concluded: StageResult) -> dict[str, str]:
    """Label matmul launches with their data type, under the name used in aspect rows."""
    is_product = concluded.stage.name == "gemm"
    return {"dtype": PEAK_TYPE_OF_PRECISION[concluded.config.training.precision]} if is_product else {}


def _name(concluded: StageResult) -> str:
    return f"{concluded.case.name} was measured"


def _outcome(concluded: StageResult, left_out: Outcome | None) -> Outcome:
    done = [launch for launch in concluded.launches if launch.status == "done"]
    failure = next((f for x in concluded.launches if x.status != "done" and (f := x.primary_failure)), None)
    if failure is not None:
        return _failure_outcome(concluded, failure)
    if len(done) < max(concluded.case.repeats, len(concluded.launches)):
        notes = (note for x in concluded.launches for note in (*x.torn, x.contradiction) if note is not None)
        torn = "".join(f"; {note}" for note in notes)
        measured = f"{len(done)} of {concluded.case.repeats} launches succeeded{torn}"
        return left_out or skipped(measured, RESUMED, concluded.subject)
    ruinous = _ruinous(concluded)
    if ruinous is not None:
        return _doubt_outcome(concluded, ruinous)
    nothing = reason_for_nothing(concluded)
    if nothing is not None:
        return not_applicable(nothing, concluded.subject)
    without = _without_loss(concluded, done) or _without_record(concluded)
    if without is not None:
        return without
    return pass_or_fail(
        concluded.subject,
        True,
        f"{len(done)} of {concluded.case.repeats} launches succeeded",
        expected="all of them",
        source=PLAN,
        next_step=None,
        records=tuple(f"{launch.case.case_id}/{launch.case.replicate}" for launch in done),
    )


def _without_loss(concluded: StageResult, done: Sequence[CaseRecords]) -> Outcome | None:
    """Find training that ended with a non-finite loss: its result is meaningless, whatever its speed."""
    ranks = [
        f"rank {start.rank} on {launch.host_of(start)}"
        for launch in done
        if concluded.case.of_model
        for lost in [{end.rank for end in launch.of(RankResult) if end.last_loss is None}]
        for start in launch.of(Start)
        if start.rank in lost
    ]
    if not ranks:
        return None
    return pass_or_fail(
        concluded.subject,
        False,
        f"the last loss of {', '.join(ranks)} is not a finite number",
        expected="a finite loss on every rank",
        source=PLAN,
        next_step="Lower training.learning_rate; if other machines train well with it, check the "
        "device: gpuproof run probe --probe.name=fingerprint",
        responsible="user",
    )


def _without_record(concluded: StageResult) -> Outcome | None:
    """Find launches that succeeded but left no result: it is unknown what they measured."""
    if any(measure.value is not None for measure in measures_of(concluded)):
        return None
    step = "Run it again; check the launch's rank-N.jsonl: it was truncated or modified"
    return not_judged(concluded.subject, "it ended without a record of what it measured", step)


def _failure_outcome(concluded: StageResult, failure: Failure) -> Outcome:
    """Return the outcome of a failed launch: no verdict if the cause is outside the case."""
    message = (failure.message.strip().splitlines() or ["no message"])[0]
    who = f"rank {failure.rank} on {failure.host}" if failure.rank is not None else failure.host
    if failure.is_unsupported and concluded.stage.name == "gemm":
        return not_applicable(message.removeprefix("training.precision: "), concluded.subject)
    text = f"{failure.cause.replace('_', ' ')} ({who}, phase {failure.phase}): {message}"
    next_step = failure.next_step or "Check the launch's stderr and launcher-output.txt"
    if failure.cause in TRANSIENT_CAUSES:
        return not_judged(concluded.subject, text, next_step, "administrator")
    expected = "a launch without a failure"
    return pass_or_fail(concluded.subject, False, text, expected=expected, source=PLAN, next_step=next_step)


def _ruinous(concluded: StageResult) -> Doubt | None:
    doubts = () if concluded.result is None else concluded.result.doubts
    return next((x for x in doubts if x.validity == "INVALID" or x.code in (*IMPLAUSIBLE, *NOT_SEEN)), None)


def _doubt_outcome(concluded: StageResult, doubt: Doubt) -> Outcome:
    """Return the outcome of results with warnings: only wrong results make the machine fail."""
    if doubt.code != WRONG:
        return not_judged(concluded.subject, doubt.reason, doubt.remedy)
    return pass_or_fail(
        concluded.subject,
        False,
        doubt.reason,
        expected="every element correct",
        source="what was sent",
        next_step=doubt.remedy,
        responsible="vendor",
    )


def _without_cases(name: str, order: StageOrder, results: Sequence[StageResult]) -> Outcome:
    """Return why a stage has no launch, e.g. it needs two devices, NCCL, or a disk that is missing."""
    if name == "switched_off" and order.config.distributed.device == "cpu":
        return not_applicable("ranks on CPUs do not communicate over NCCL")
    if name == "storage":
        return skipped(
            "no folder was given, and a disk is only written to on request",
            "Give one: --validate.storage_dir=/scratch",
        )
    visible = devices_by_host([launch for result in results for launch in result.launches])
    if visible and sum(visible.values()) == 1:
        host = next(iter(visible))
        alone = f"{host} reports only one device"
        return not_applicable(f"{alone}: there is nothing to compare it with or to communicate with")
    if not visible:
        return skipped(
            f"{name} was not planned or launched: no host reported which devices it has",
            "Bring the hosts back, and run it again; on a single device, --mode nccl has nothing to measure",
        )
    seen = ", ".join(f"{host}: {count}" for host, count in visible.items())
    return skipped(
        f"{name} has nothing to launch on a single device; devices that hosts see: {seen}",
        "Test all devices: --nproc",
    )


def host_outcomes(facts: FleetFacts, options: ValidateOptions) -> Iterator[Judged]:
    """Check whether each host responded, and whether all of its devices were tested."""
    answered, lost = begun_on(facts.launches), lost_of(facts.launches)
    for name in facts.hosts_there:
        yield Judged(name="host answers", outcome=_answer(name, name in answered, lost.get(name)))
    if options.expected_hosts:
        yield Judged(name="expected hosts", outcome=_presence(options.expected_hosts, answered, lost))
    yield from count_outcomes(facts)


def _answer(name: str, has_answered: bool, lost: CaseRecords | None) -> Outcome:
    subject, failure = f"host/{name}", None if lost is None else lost.primary_failure
    if failure is None and not has_answered:
        return skipped("nothing was launched there", RESUMED, subject)
    return pass_or_fail(
        subject,
        failure is None,
        "ranks began" if failure is None else failure.message,
        expected="it responds, and ranks start there",
        source="the hosts that were given",
        next_step="Bring the host back, or remove it from the list",
    )


def _presence(expected: Collection[str], answered: Collection[str], lost: Collection[str]) -> Outcome:
    missing = [name for name in expected if name not in answered or name in lost]
    there = f"{len(expected) - len(missing)} of {len(expected)} responded"
    return pass_or_fail(
        WHOLE,
        not missing,
        there + (f"; missing: {', '.join(missing)}" if missing else ""),
        expected=", ".join(expected),
        source="--expected-hosts",
        next_step="Bring them back; for a smaller cluster, shorten the list",
    )


def wrong_outcomes(results: Sequence[StageResult]) -> Iterator[Judged]:
    """Evaluate every device whose values were compared."""
    for result in results:
        if result.result is not None and reason_for_nothing(result) is None:
            outcomes = result.result.outcomes if result.config.kind == "probe" else _product_outcomes(result)
            of_parts = (
                x for x in outcomes if result.stage.name not in FINGERPRINTS or x.name == WRONG_VALUES
            )
            yield from (_name_of_wrong(item, result) for item in of_parts)
    for name in FINGERPRINTS:
        stage = [x for x in results if x.stage.name == name]
        launches = [probe for x in stage for one in x.launches if (probe := summarize_probe(one))]
        compared = conclude_fingerprints(launches)
        yield from (_name_of_wrong(item, stage[0]) for item in compared.outcomes)


def are_devices_judged(concluded: StageResult) -> bool:
    """Report whether the devices with wrong values are evaluated separately."""
    compared = () if concluded.result is None else concluded.result.measures
    done = all(launch.status == "done" for launch in concluded.launches)
    is_named = concluded.stage.name in FINGERPRINTS or any(
        x.name == WRONG_VALUES and x.value for x in compared
    )
    return done and is_named


def reason_for_nothing(concluded: StageResult) -> str | None:
    """Report why a probe had nothing at all to measure; None if it measured something."""
    whole = concluded.result
    if whole is None or concluded.config.kind != "probe" or any(m.value is not None for m in whole.measures):
        return None
    reasons = [x.outcome.reason for x in whole.outcomes if x.outcome.status == "NOT-APPLICABLE"]
    return "; ".join(dict.fromkeys(filter(None, reasons))) or None


def _name_of_wrong(item: Judged, of: StageResult) -> Judged:
    """Name an outcome after its case, and set the measure and labels that aspect rows use."""
    name = item.name if of.case.name.startswith(item.name) else f"{of.case.name}, {item.name}"
    labels = {**item.labels, "stage": of.stage.name, "case": of.case.name}
    return replace(item, name=name, is_required=of.stage.is_required, measure=WRONG_VALUES, labels=labels)


def _product_outcomes(concluded: StageResult) -> Iterator[Judged]:
    for measure in () if concluded.result is None else concluded.result.measures:
        if measure.name == WRONG_VALUES and measure.value is not None:
            outcome = _outcome_of_wrong(measure, measure.value)
            yield Judged(name=WRONG_VALUES, outcome=outcome, labels={"dtype": measure.labels["dtype"]})


def _outcome_of_wrong(measure: Measure, value: float) -> Outcome:
    return pass_or_fail(
        measure.subject,
        not value,
        f"{units.count(int(value))} wrong elements: {measure.detail}",
        expected="none",
        source="the same product computed in 8-byte numbers on the host",
        next_step="Take the device out of service and send these records to its vendor",
        responsible="vendor",
        measured_value=value,
        expected_value=0.0,
        unit="1",
    )

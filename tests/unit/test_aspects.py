"""Cells of a verdict: what closes one, what leaves it open, and what no later rule can take away."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from gpuproof.records.outcome import JUDGED, Judged, Outcome, Status
from gpuproof.records.result import Doubt, Measure
from gpuproof.verdict.aspects import AspectCell, RequiredAspect, agreements, cells_of

GPU, OTHER = "host/a/gpu/0", "host/a/gpu/1"
ROW = RequiredAspect(
    aspect="compute", title="a GPU", measure="throughput", labels={"stage": "gemm", "dtype": "bf16"}
)
SUBJECTS = {"gpu": [GPU], "host": ["host/a"]}
MEASURED = Measure(
    name="throughput", value=1.0, unit="FLOP/s", text="1 FLOP/s", subject=GPU, case="gemm", labels=ROW.labels
)


def outcome(status: Status, subject: str = GPU, loss: float | None = 0.05) -> Outcome:
    ground: dict[str, Any] = (
        {"measured": "1", "expected": "≥ 1", "source": "test"}
        if status in JUDGED
        else {"reason": "no figure"}
    )
    return Outcome(
        status=status,
        subject=subject,
        next_step="look",
        minimum_detectable=loss,
        records=("gemm/0",),
        **ground,
    )


def rule(status: Status = "PASS", loss: float | None = 0.05, **of: Any) -> Judged:
    defaults: dict[str, Any] = {
        "name": "floor",
        "measure": "throughput",
        "labels": {"stage": "gemm", "dtype": "bf16", "m": 4096},
        "basis": "absolute",
    }
    return Judged(outcome=outcome(status, of.pop("subject", GPU), loss), **{**defaults, **of})


def cell(
    *judged: Judged, row: RequiredAspect = ROW, measures: tuple[Measure, ...] = (MEASURED,)
) -> AspectCell:
    (only,) = cells_of([row], SUBJECTS, judged=judged, measures=measures, detects=0.1).cells
    return only


def test_the_sharpest_rule_decides_and_lends_its_launches() -> None:
    found = cell(rule(loss=0.3, name="published"), rule(loss=0.06, name="baseline", basis="baseline"))
    assert (found.standing, found.resolution, found.decided_by) == ("passed", 0.06, ("baseline",))
    assert found.records == ("gemm/0",)


@pytest.mark.parametrize(
    ("judged", "reason"),
    [
        ((), "measured, but there is no required rule to judge it"),
        ((rule(basis="peers"),), "it was only compared with peers, and all of them may be slow"),
        ((rule(loss=0.39),), "floor detects no loss under 39 %, and 10 % must be detected"),
        ((rule(loss=15.81),), "floor cannot detect any loss, and 10 % must be detected"),
        ((rule(loss=None),), "its rule passed, but the smallest loss it would have detected is unknown"),
        ((rule("ERROR"),), "floor ERROR: no figure"),
        ((rule(subject=OTHER),), "measured, but there is no required rule to judge it"),
        (
            (rule(labels={"stage": "gemm", "dtype": "fp32"}),),
            "measured, but there is no required rule to judge",
        ),
        ((rule(is_required=False),), "measured, but there is no required rule to judge it"),
        ((rule(basis="none"),), "measured, but there is no required rule to judge it"),
    ],
)
def test_what_does_not_close_a_rate_leaves_it_open(judged: tuple[Judged, ...], reason: str) -> None:
    found = cell(*judged)
    assert found.standing == "undecided"
    assert found.reason is not None
    assert found.reason.startswith(reason)
    assert found.next_step


def test_what_was_not_measured_is_said_so() -> None:
    reason = "it was not measured (throughput of stage gemm)"
    assert cell(measures=()).reason == reason
    invalid = cell(measures=(replace(MEASURED, validity="INVALID"),))
    assert invalid.reason == "it was measured, but the measurement is INVALID"
    other_work = replace(MEASURED, labels={"stage": "training", "dtype": "bf16"})
    assert cell(measures=(other_work,)).reason == reason


def test_what_was_not_measured_says_why_its_own_launches_did_not_go_through() -> None:
    def launches(subject: str, stage: str = "gemm") -> Judged:
        return Judged(
            name="x", outcome=outcome("ERROR", subject), measure="launches", labels={"stage": stage}
        )

    elsewhere = cell(launches("host/b"), launches("host/a", "memory"), measures=())
    assert (elsewhere.reason or "").endswith("(throughput of stage gemm)")
    here = cell(launches("host/a"), measures=())
    assert (here.reason, here.next_step) == (f"{elsewhere.reason}: no figure", "look")


def test_no_rule_closes_a_rate_that_had_not_settled_and_one_that_it_missed_fails() -> None:
    doubt = Doubt(validity="SUSPECT", code="short", reason="too short", remedy="Set validate.window_s=20")
    closing = rule(is_contract=True)

    def judge(item: Judged) -> AspectCell:
        table = cells_of(
            [ROW], SUBJECTS, judged=[item], measures=[MEASURED], detects=0.1, unsettled={"gemm": doubt}
        )
        return table.cells[0]

    assert (judge(closing).standing, judge(closing).reason) == ("undecided", "too short")
    assert judge(closing).next_step == "Set validate.window_s=20"
    assert judge(rule("FAIL")).standing == "failed"


def test_a_contract_closes_a_cell_as_at_least_and_says_no_share() -> None:
    found = cell(rule(loss=0.39, is_contract=True))
    assert (found.standing, found.resolution, found.contract) == ("passed", None, "floor ≥ 1")
    assert agreements([found, replace(found, measured="3", measured_value=3.0)]) == {"floor ≥ 1": "1 to 3"}
    assert agreements([found, found]) == {"floor ≥ 1": "1"}


def test_a_failure_fails_the_cell_whatever_passed_more_finely() -> None:
    found = cell(rule(loss=0.01), rule("FAIL", name="alike", basis="peers"))
    assert (found.standing, found.reason) == ("failed", "alike FAIL: 1, expected ≥ 1")


def test_a_row_may_ask_for_more_than_its_recipe() -> None:
    assert cell(rule(loss=0.06), row=replace(ROW, detects=0.05)).standing == "undecided"


def check(status: Status, subject: str, name: str = "ecc") -> Judged:
    return Judged(name=name, outcome=outcome(status, subject))


STATE = RequiredAspect(aspect="state", title="the state of a GPU", checks=("ecc", "xid"))


def test_checks_decide_of_the_subject_or_of_what_it_is_part_of() -> None:
    whole = check("NOT-APPLICABLE", "whole", "xid")
    assert cell(check("PASS", GPU), whole, row=STATE).standing == "passed"
    assert cell(check("PASS", "host/a"), whole, row=STATE).standing == "passed"
    mute = cell(check("PASS", OTHER), whole, row=STATE)
    assert (mute.standing, mute.reason) == ("undecided", "ecc: nothing was judged")
    assert cell(check("ERROR", GPU), whole, row=STATE).standing == "undecided"
    assert cell(check("FAIL", GPU), check("ERROR", GPU, "xid"), row=STATE).standing == "failed"


def test_all_results_of_a_subject_have_to_be_right() -> None:
    row = RequiredAspect(aspect="right results", title="right products", measure="wrong values")
    right = Judged(name="products", outcome=outcome("PASS"), measure="wrong values")
    unsure = Judged(name="copies", outcome=outcome("ERROR"), measure="wrong values")
    assert cell(right, row=row).standing == "passed"
    assert cell(right, unsure, row=row).standing == "undecided"


def test_what_takes_several_devices_or_hosts_is_asked_only_of_those() -> None:
    rows = [
        RequiredAspect(aspect="collectives", each="host", needs="devices", title="x", measure="y"),
        RequiredAspect(aspect="collectives", each="whole", needs="hosts", title="x", measure="y"),
    ]
    subjects = {"gpu": [GPU, "host/b/gpu/0", "host/b/gpu/1"], "host": ["host/a", "host/b"]}
    cells = cells_of(rows, subjects, judged=[], measures=[], detects=0.1).cells
    assert [cell.subject for cell in cells] == ["host/b", "whole"]
    assert cells_of(rows, SUBJECTS, judged=[], measures=[], detects=0.1).cells == ()


def test_one_subject_is_enough_where_any_is_asked_for() -> None:
    row = replace(ROW, each="any", labels={"stage": "gemm"})
    (found,) = cells_of(
        [row], {"gpu": [GPU, OTHER]}, judged=[rule(subject=OTHER)], measures=(), detects=0.1
    ).cells
    assert found.standing == "passed"
    assert cell(rule(subject=OTHER), row=row).standing == "undecided"  # it should not be there


def lacking(dtype: str, subject: str = "host/a", status: Status = "NOT-APPLICABLE") -> Judged:
    """What is said of a launch of products whose arithmetic its device has not got."""
    labels = {"stage": "gemm", "case": f"gemm-{dtype}", "dtype": dtype}
    return Judged(
        name=f"gemm-{dtype} was measured",
        outcome=outcome(status, subject, None),
        measure="launches",
        labels=labels,
    )


def test_arithmetic_that_a_device_has_not_got_closes_its_own_cell_where_another_was_measured() -> None:
    fp8 = replace(ROW, labels={"stage": "gemm", "dtype": "fp8"})
    found = cell(lacking("fp8"), row=fp8)
    assert (found.standing, found.resolution, found.reason) == (
        "passed",
        None,
        "nothing to measure: no figure",
    )
    assert cell(lacking("fp8")).standing == "undecided", "bf16 was measured, but nothing judged it"


@pytest.mark.parametrize(
    ("judged", "measures"),
    [
        ([lacking("fp8")], ()),  # nothing of the device was measured
        ([lacking("fp8"), lacking("fp8", status="SKIP")], (MEASURED,)),  # another device's launch was lost
        ([lacking("tf32")], (MEASURED,)),
        ([lacking("fp8", "host/b")], (MEASURED,)),
        ([lacking("fp8"), rule("ERROR", labels={"stage": "gemm", "dtype": "fp8"})], (MEASURED,)),
    ],
)
def test_it_closes_nothing_else(judged: list[Judged], measures: tuple[Measure, ...]) -> None:
    fp8 = replace(ROW, labels={"stage": "gemm", "dtype": "fp8"})
    assert cell(*judged, row=fp8, measures=measures).standing == "undecided"

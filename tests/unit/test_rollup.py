"""The verdict of a validation: what outcomes roll up to, and what no set of outcomes may come to."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, get_args

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from gpuproof.base.errors import ExitCode
from gpuproof.records.outcome import JUDGED, Basis, Judged, Outcome, Status, parent_of
from gpuproof.verdict.aspects import OF_STATUS, RequiredAspect, cells_of
from gpuproof.verdict.rollup import NOTHING_REQUIRED, WORDS, Readiness, exit_code_of, roll_up

A0, A1, B0 = "host/a/gpu/0", "host/a/gpu/1", "host/b/gpu/0"
COMPUTE = RequiredAspect(aspect="compute", title="a GPU", measure="gemm")
WHOLE_TRAINING = RequiredAspect(aspect="training", each="whole", title="training", measure="training")


def judged(
    name: str = "gemm",
    status: Status = "PASS",
    subject: str = "whole",
    *,
    basis: Basis = "absolute",
    minimum_detectable: float | None = 0.05,
    records: tuple[str, ...] = (),
    **said: Any,
) -> Judged:
    if name in ("gemm", "training"):
        said.setdefault("measure", name)
    ground: dict[str, Any] = {"measured": "1", "expected": "1", "source": "test"} if status in JUDGED else {}
    outcome = Outcome(
        status=status,
        subject=subject,
        reason=None if ground else "no reading",
        next_step="look",
        minimum_detectable=minimum_detectable,
        records=records,
        **ground,
    )
    return Judged(name=name, outcome=outcome, basis=basis, **said)


READY = [judged(subject=subject) for subject in (A0, A1, B0)]


def rolled(items: Sequence[Judged], rows: Sequence[RequiredAspect] = (COMPUTE,), **how: Any) -> Readiness:
    """Roll up where the products of three GPUs have to be judged, to 10 %."""
    subjects = {"gpu": [A0, A1, B0], "host": ["host/a", "host/b"]}
    return roll_up(items, table=cells_of(rows, subjects, judged=items, measures=[], detects=0.1), **how)


def test_every_required_cell_was_judged_and_passed() -> None:
    found = rolled(READY, subjects=("host/a", "host/b", A0))
    assert (found.word, found.reasons, found.excluded) == ("READY", (), ())
    assert [branch.subject for branch in found.tree.branches] == ["host/a", "host/b"]
    assert exit_code_of(found, allow_exclusions=False) == ExitCode.DONE


@pytest.mark.parametrize(
    "status", [status for status in get_args(Status) if OF_STATUS[status] == "undecided"]
)
def test_what_was_not_shown_is_inconclusive(status: Status) -> None:
    found = rolled([*READY, judged("drift", status, "host/b")])
    assert found.word == "INCONCLUSIVE"
    assert found.reasons[0].startswith(f"host/b: drift {status}: ")
    assert exit_code_of(found, allow_exclusions=True) == ExitCode.INCONCLUSIVE


def test_what_does_not_apply_needs_its_evidence_and_stands_in_no_way() -> None:
    assert rolled([*READY, judged("links", "NOT-APPLICABLE", "host/a")]).word == "READY"
    with pytest.raises(ValueError, match="needs a reason"):
        Outcome(status="NOT-APPLICABLE")


def test_an_advisory_check_decides_nothing() -> None:
    assert rolled([*READY, judged("noise", "FAIL", "whole", is_required=False)]).word == "READY"


def test_a_device_that_failed_is_excluded_by_name() -> None:
    found = rolled([*READY, judged("memory", "FAIL", A1)])
    assert (found.word, found.excluded) == ("READY-WITH-EXCLUSIONS", (A1,))
    assert exit_code_of(found, allow_exclusions=False) == ExitCode.FAILED
    assert exit_code_of(found, allow_exclusions=True) == ExitCode.DONE


def test_a_host_whose_devices_all_failed_is_excluded_whole() -> None:
    found = rolled([*READY, judged("memory", "FAIL", B0)])
    assert (found.word, found.excluded) == ("READY-WITH-EXCLUSIONS", ("host/b",))


def test_a_link_that_failed_takes_the_host_of_both_its_ends_out() -> None:
    found = rolled([*READY, judged("all_reduce", "FAIL", "link/host/a/gpu/0>host/a/gpu/1")])
    assert (found.word, found.excluded) == ("READY-WITH-EXCLUSIONS", ("host/a",))


@pytest.mark.parametrize("subject", ["whole", "link/a>b"])
def test_what_no_part_can_be_blamed_for_is_not_ready(subject: str) -> None:
    assert rolled([*READY, judged("all_reduce", "FAIL", subject)]).word == "NOT-READY"


def test_nothing_is_excluded_while_something_is_open() -> None:
    found = rolled([*READY, judged("memory", "FAIL", A1), judged("soak", "SKIP")])
    assert (found.word, found.excluded) == ("NOT-READY", ())


def test_what_is_open_within_an_excluded_part_keeps_nobody_else_from_being_ready() -> None:
    found = rolled([*READY, judged("answers", "FAIL", "host/b"), judged("memory", "SKIP", B0)])
    assert (found.word, found.excluded) == ("READY-WITH-EXCLUSIONS", ("host/b",))


def test_nothing_left_is_not_ready() -> None:
    assert rolled([judged("memory", "FAIL", A0)]).word == "NOT-READY"


def test_nothing_required_is_nothing_shown() -> None:
    found = roll_up(READY)
    assert found.word == "INCONCLUSIVE"
    assert found.reasons == (NOTHING_REQUIRED,)


def test_an_open_cell_is_named_with_how_to_judge_it() -> None:
    coarse = [judged(subject=A0, minimum_detectable=0.39), *READY[1:]]
    found = rolled(coarse)
    assert found.word == "INCONCLUSIVE"
    (reason,) = found.reasons
    assert reason.startswith(
        f"open: a GPU ({A0}): gemm detects no loss under 39 %, and 10 % must be detected. Measure"
    )


def test_what_peers_or_a_coarser_rule_could_not_tell_holds_nothing_back() -> None:
    unsure = [
        judged("alike", "ERROR", A0, basis="peers", measure="gemm"),
        judged("floor", "ERROR", A0, measure="gemm"),
    ]
    assert rolled([*READY, *unsure]).word == "READY"
    assert rolled([*READY, judged("floor", "ERROR", A0, measure="memory")]).word == "INCONCLUSIVE"


def test_a_failure_of_any_rule_fails_what_a_sharper_one_passed() -> None:
    assert rolled([*READY, judged("alike", "FAIL", A0, basis="peers")]).word == "READY-WITH-EXCLUSIONS"


def test_what_was_measured_with_those_excluded_is_measured_again() -> None:
    rows = (COMPUTE, WHOLE_TRAINING)
    items = [*READY, judged("training", records=("training/0",)), judged("memory", "FAIL", B0)]
    assert rolled([*READY, items[3]], rows).word == "READY"
    found = rolled(items, rows, members={"training/0": {"host/a", "host/b", A0, B0}})
    assert found.word == "NOT-READY"
    assert "training was measured with host/b: repeat it without" in found.reasons
    without = rolled(items, rows, members={"training/0": {"host/a", A0}})
    assert (without.word, without.excluded) == ("READY-WITH-EXCLUSIONS", ("host/b",))


def test_every_known_subject_is_judged() -> None:
    found = rolled(READY, subjects=("host/a", "host/c"))
    assert (found.word, found.reasons) == ("INCONCLUSIVE", ("host/c: no required check judged it",))


def test_a_cap_is_said_and_hides_no_failure() -> None:
    found = rolled(READY, capped="a processor")
    assert (found.word, found.uncapped, found.reasons) == ("INCONCLUSIVE", "READY", ("a processor",))
    assert rolled([*READY, judged("x", "FAIL")], capped="a processor").word == "NOT-READY"
    excluding = rolled([*READY, judged("memory", "FAIL", A1)], capped="a processor")
    assert (excluding.word, excluding.uncapped) == ("INCONCLUSIVE", "READY-WITH-EXCLUSIONS")


SUBJECTS = ("whole", "host/a", "host/b", A0, A1, B0, "link/host/a/gpu/0>host/a/gpu/1", "link/a>b")
ITEMS = st.builds(
    judged,
    st.sampled_from(["gemm", "memory", "ran"]),
    st.sampled_from(get_args(Status)),
    st.sampled_from(SUBJECTS),
    basis=st.sampled_from(get_args(Basis)),
    is_required=st.booleans(),
)
CAPS = st.sampled_from([None, "a processor"])
KNOWN = st.lists(st.sampled_from([name for name in SUBJECTS if name.startswith("host/")]), unique=True)


@given(st.lists(ITEMS, max_size=12), KNOWN, CAPS)
def test_nothing_that_did_not_pass_is_ready(items: list[Judged], known: list[str], cap: str | None) -> None:
    found = rolled(items, subjects=known, capped=cap)
    statuses = {item.outcome.status for item in items if item.is_required}
    if found.word == "READY":
        assert "PASS" in statuses
        assert statuses <= {"PASS", "NOT-APPLICABLE"}
        assert all(any(_closes(item, gpu) for item in items) for gpu in (A0, A1, B0))
    else:
        assert found.reasons
    if cap is not None or not statuses:
        assert found.word in ("INCONCLUSIVE", "NOT-READY")
    assert bool(found.excluded) == (found.uncapped == "READY-WITH-EXCLUSIONS")


def _closes(item: Judged, gpu: str) -> bool:
    is_absolute = item.basis in ("absolute", "baseline")
    return item.is_required and is_absolute and item.measure == "gemm" and item.outcome.subject == gpu


def _host(subject: str) -> str:
    above = parent_of(subject)
    return subject if above == "whole" else above


def _is_open(host: str, known: Sequence[str], items: Sequence[Judged]) -> bool:
    """Say whether a host, or a part of it, was not judged, or without an answer."""
    found = {item.outcome.subject for item in items if item.is_required}
    unjudged = {name for name in known if not any(subject.startswith(name) for subject in found)}
    undecided = {item.outcome.subject for item in items if OF_STATUS[item.outcome.status] == "undecided"}
    return any(_host(subject) == host for subject in unjudged | undecided)


@given(st.lists(ITEMS, max_size=10), KNOWN, CAPS, st.sampled_from(SUBJECTS), st.integers(0, 10))
def test_a_failure_more_improves_nothing(
    items: list[Judged], known: list[str], cap: str | None, subject: str, place: int
) -> None:
    assume(not _is_open(_host(subject), known, items))  # what was open is known to be bad now, and left out
    more = [*items[:place], judged("planted", "FAIL", subject), *items[place:]]
    before, after = (WORDS.index(rolled(x, subjects=known, capped=cap).word) for x in (items, more))
    assert after >= before


@given(st.permutations([*READY, judged("memory", "FAIL", A1), judged("soak", "WARN", is_required=False)]))
def test_the_order_of_outcomes_decides_nothing(items: list[Judged]) -> None:
    assert rolled(items).word == "READY-WITH-EXCLUSIONS"


def test_a_reason_that_many_share_is_told_once() -> None:
    hosts = [f"host/{number}" for number in range(20)]
    found = rolled([judged(status="SKIP", subject=host) for host in hosts])
    assert len(found.reasons) == 2
    assert found.reasons[0].startswith("host/0, host/1, ")
    assert "host/7 and 12 more: gemm SKIP: no reading" in found.reasons[0]


def test_a_reason_that_many_checks_share_is_told_once_and_after_what_was_looked_at_before() -> None:
    names = [f"check {number}" for number in range(12)]
    found = rolled([judged("ranks", "ERROR", A0), *(judged(name, "SKIP") for name in names)])
    told = ", ".join(names[:8])
    assert found.reasons[:2] == (f"{A0}: ranks ERROR: no reading", f"{told} and 4 more SKIP: no reading")


def test_checks_that_fail_are_told_one_by_one() -> None:
    found = rolled([judged(name, "FAIL", A0) for name in ("copy", "triad")])
    told = [f"{A0}: {name} FAIL: 1, expected 1" for name in ("copy", "triad")]
    assert list(found.reasons[:2]) == told

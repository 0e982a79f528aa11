"""The verdict of a validation: what outcomes roll up to, and what no set of outcomes may come to."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any, get_args

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from gpuproof.errors import ExitCode
from gpuproof.records.outcome import JUDGED, Basis, Judged, Outcome, Status
from gpuproof.verdict.rollup import OF_STATUS, WORDS, exit_code_of, parent_of, roll_up

A0, A1, B0 = "host/a/gpu/0", "host/a/gpu/1", "host/b/gpu/0"


def judged(
    name: str = "gemm",
    status: Status = "PASS",
    subject: str = "whole",
    *,
    basis: Basis = "absolute",
    minimum_detectable: float | None = None,
    **said: Any,
) -> Judged:
    ground: dict[str, Any] = {"measured": "1", "expected": "1", "source": "test"} if status in JUDGED else {}
    outcome = Outcome(
        status=status,
        subject=subject,
        reason=None if ground else "no reading",
        next_step="look",
        minimum_detectable=minimum_detectable,
        **ground,
    )
    return Judged(name=name, outcome=outcome, basis=basis, **said)


READY = [judged(subject=subject) for subject in (A0, A1, B0)]


def test_every_required_check_passed() -> None:
    found = roll_up(READY, subjects=("host/a", "host/b", A0))
    assert (found.word, found.reasons, found.excluded) == ("READY", (), ())
    assert [branch.subject for branch in found.tree.branches] == ["host/a", "host/b"]
    assert exit_code_of(found, allow_exclusions=False) == ExitCode.DONE


@pytest.mark.parametrize(
    "status", [status for status in get_args(Status) if OF_STATUS[status] == "undecided"]
)
def test_what_was_not_shown_is_inconclusive(status: Status) -> None:
    found = roll_up([*READY, judged("drift", status, "host/b")])
    assert found.word == "INCONCLUSIVE"
    assert found.reasons[0].startswith(f"host/b: drift {status}: ")
    assert exit_code_of(found, allow_exclusions=True) == ExitCode.INCONCLUSIVE


def test_what_does_not_apply_needs_its_evidence_and_stands_in_no_way() -> None:
    assert roll_up([*READY, judged("links", "NOT-APPLICABLE", "host/a")]).word == "READY"
    with pytest.raises(ValueError, match="needs a reason"):
        Outcome(status="NOT-APPLICABLE")


def test_an_advisory_check_decides_nothing() -> None:
    assert roll_up([*READY, judged("noise", "FAIL", "whole", is_required=False)]).word == "READY"


def test_a_device_that_failed_is_excluded_by_name() -> None:
    found = roll_up([*READY, judged("memory", "FAIL", A1)])
    assert (found.word, found.excluded) == ("READY-WITH-EXCLUSIONS", (A1,))
    assert exit_code_of(found, allow_exclusions=False) == ExitCode.FAILED
    assert exit_code_of(found, allow_exclusions=True) == ExitCode.DONE


def test_a_host_whose_devices_all_failed_is_excluded_whole() -> None:
    found = roll_up([*READY, judged("memory", "FAIL", B0)])
    assert (found.word, found.excluded) == ("READY-WITH-EXCLUSIONS", ("host/b",))


def test_a_link_that_failed_takes_the_host_of_both_its_ends_out() -> None:
    found = roll_up([*READY, judged("all_reduce", "FAIL", "link/host/a/gpu/0>host/a/gpu/1")])
    assert (found.word, found.excluded) == ("READY-WITH-EXCLUSIONS", ("host/a",))


@pytest.mark.parametrize("subject", ["whole", "link/a>b"])
def test_what_no_part_can_be_blamed_for_is_not_ready(subject: str) -> None:
    assert roll_up([*READY, judged("all_reduce", "FAIL", subject)]).word == "NOT-READY"


def test_nothing_is_excluded_while_something_is_open() -> None:
    found = roll_up([*READY, judged("memory", "FAIL", A1), judged("soak", "SKIP")])
    assert (found.word, found.excluded) == ("NOT-READY", ())


def test_what_is_open_within_an_excluded_part_keeps_nobody_else_from_being_ready() -> None:
    found = roll_up([*READY, judged("answers", "FAIL", "host/b"), judged("memory", "SKIP", B0)])
    assert (found.word, found.excluded) == ("READY-WITH-EXCLUSIONS", ("host/b",))


def test_nothing_left_is_not_ready() -> None:
    assert roll_up([judged("memory", "FAIL", A0)]).word == "NOT-READY"


def test_peers_alone_cannot_make_a_fleet_ready() -> None:
    alike = [replace(item, basis="peers") for item in READY]
    found = roll_up(alike)
    assert found.word == "INCONCLUSIVE"
    assert "no figure was compared with an absolute expectation" in found.reasons[0]
    other = [*alike, judged("memory", subject="host/a")]
    assert "gemm was compared with peers alone" in roll_up(other).reasons[0]
    with_floor = [*(replace(item, name="gemm peers", metric="gemm") for item in alike), judged(subject=A0)]
    assert roll_up(with_floor).word == "READY"


def test_that_it_ran_is_no_figure() -> None:
    assert roll_up([replace(item, basis="none") for item in READY]).word == "INCONCLUSIVE"


def test_every_known_subject_is_judged() -> None:
    found = roll_up(READY, subjects=("host/a", "host/c"))
    assert (found.word, found.reasons) == ("INCONCLUSIVE", ("host/c: no required check judged it",))


def test_a_cap_is_said_and_hides_no_failure() -> None:
    found = roll_up(READY, capped="a processor")
    assert (found.word, found.uncapped, found.reasons) == ("INCONCLUSIVE", "READY", ("a processor",))
    assert roll_up([*READY, judged("x", "FAIL")], capped="a processor").word == "NOT-READY"
    excluding = roll_up([*READY, judged("memory", "FAIL", A1)], capped="a processor")
    assert (excluding.word, excluding.uncapped) == ("INCONCLUSIVE", "READY-WITH-EXCLUSIONS")


def test_the_smallest_slowdown_is_that_of_the_check_that_sees_least() -> None:
    found = roll_up(
        [
            judged("gemm", subject=A0, minimum_detectable=0.01),
            judged("training", minimum_detectable=0.04),
            judged("memory", subject=A0),
            judged("ran", subject=A0, basis="none"),
        ]
    )
    assert (found.minimum_detectable, found.not_detectable) == (0.04, ("memory",))


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
    found = roll_up(items, subjects=known, capped=cap)
    statuses = {item.outcome.status for item in items if item.is_required}
    if found.word == "READY":
        assert "PASS" in statuses
        assert statuses <= {"PASS", "NOT-APPLICABLE"}
        assert any(item.basis in ("absolute", "baseline") for item in items if item.is_required)
    else:
        assert found.reasons
    if cap is not None or not statuses:
        assert found.word in ("INCONCLUSIVE", "NOT-READY")
    assert bool(found.excluded) == (found.uncapped == "READY-WITH-EXCLUSIONS")


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
    before, after = (WORDS.index(roll_up(x, subjects=known, capped=cap).word) for x in (items, more))
    assert after >= before


@given(st.permutations([*READY, judged("memory", "FAIL", A1), judged("soak", "WARN", is_required=False)]))
def test_the_order_of_outcomes_decides_nothing(items: list[Judged]) -> None:
    assert roll_up(items).word == "READY-WITH-EXCLUSIONS"


def test_a_reason_that_many_share_is_told_once() -> None:
    hosts = [f"host/{number}" for number in range(20)]
    found = roll_up([judged(status="SKIP", subject=host) for host in hosts])
    assert len(found.reasons) == 2
    assert found.reasons[0].startswith("host/0, host/1, ")
    assert "host/7 and 12 more: gemm SKIP: no reading" in found.reasons[0]


def test_a_reason_that_many_checks_share_is_told_once_and_after_what_was_looked_at_before() -> None:
    names = [f"check {number}" for number in range(12)]
    found = roll_up([judged("ranks", "ERROR", A0), *(judged(name, "SKIP") for name in names)])
    told = ", ".join(names[:8])
    assert found.reasons[:2] == (f"{A0}: ranks ERROR: no reading", f"{told} and 4 more SKIP: no reading")


def test_checks_that_fail_are_told_one_by_one() -> None:
    found = roll_up([judged(name, "FAIL", A0) for name in ("copy", "triad")])
    told = [f"{A0}: {name} FAIL: 1, expected 1" for name in ("copy", "triad")]
    assert list(found.reasons[:2]) == told

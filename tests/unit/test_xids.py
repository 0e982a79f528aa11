"""XIDs by code: which fail their GPU, which cannot be told, and which are told and decide nothing."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

import pytest

from fleet_by_hand import gpu, hosts, measured
from gpuproof.hardware.events import event_kinds
from gpuproof.verdict.check import ask
from gpuproof.verdict.checks.events import advisory_events, judge_events
from gpuproof.verdict.facts import Announced, FleetFacts, Owner

ON = gpu("a", 0)


def facts(*events: Announced) -> FleetFacts:
    return FleetFacts(measures=[], hosts=hosts("a", gpus=1), events={ON: list(events)})


def xid(code: int, *, pid: int | None = None, launch: str = "gemm/0", is_ours: bool = False) -> Announced:
    owner: Owner = "ours" if is_ours else "unknown" if pid is None else "another's"
    return Announced(title=f"xid {code}", pid=pid, launch=launch, owner=owner)


def status(*events: Announced) -> str:
    (judged,) = ask([judge_events], facts(*events))
    return judged.outcome.status


def test_every_code_of_the_catalogue_has_an_action_of_the_table() -> None:
    """48 ask to restart the application and 19 to ignore it, as NVIDIA's table was when it was mirrored."""
    xids = [kind for kind in event_kinds().values() if kind.source == "xid"]
    actions = Counter(kind.action for kind in xids)
    assert (len(xids), actions["RESTART_APP"], actions["IGNORE"]) == (109, 48, 19)


@pytest.mark.parametrize(
    ("codes", "expected"),
    [
        ((13, 31, 43, 45, 63, 92, 94, 154), "PASS"),  # of an application, or to be ignored
        ((46, 48, 54, 62, 64, 74, 79, 95, 119, 140, 144, 150), "FAIL"),
        ((78, 142, 151, 159, 162, 999), "ERROR"),
    ],
)
def test_a_code_counts_by_its_immediate_action(codes: tuple[int, ...], expected: str) -> None:
    assert {code: status(xid(code)) for code in codes} == dict.fromkeys(codes, expected)
    assert status(*map(xid, codes)) == expected


def test_the_gravest_of_several_decides_and_all_are_named() -> None:
    (judged,) = ask([judge_events], facts(xid(43), xid(999), xid(79)))
    assert judged.outcome.status == "FAIL"
    assert judged.outcome.measured == (
        "XID 79 (GPU has fallen off the bus) of an unseen process; by its code alone "
        "(RESTART_BM): restart the host; XID 999 (not in the catalogue); XID 43 (GPU stopped processing)"
    )
    assert (judged.outcome.next_step, judged.outcome.responsible) == (
        "Drain the host and restart the machine",
        "administrator",
    )


def test_what_a_program_may_have_caused_counts_where_ours_met_it_or_several_did() -> None:
    assert status(xid(31, pid=7)) == "PASS"
    assert status(xid(31, pid=7), xid(31, pid=7, launch="gemm/1")) == "PASS"  # one program, again
    assert status(xid(31, pid=7), xid(31, pid=8)) == "FAIL"
    assert status(xid(31), xid(31, launch="training/0")) == "PASS"  # nobody knows whether they are two
    assert status(xid(31, pid=7), xid(13, pid=8)) == "FAIL"  # and under different codes
    assert status(xid(31, pid=7), xid(13, pid=7)) == "PASS"
    assert status(xid(31, pid=7), xid(43, pid=8)) == "PASS"  # 43 is no word on the GPU
    assert status(xid(31, pid=7, is_ours=True)) == "FAIL"
    wrong = measured(ON, 3.0, name="wrong values", unit="1")
    (judged,) = ask([judge_events], replace(facts(xid(31)), measures=[wrong]))
    assert judged.outcome.status == "FAIL"
    assert status(xid(43, is_ours=True), xid(45, is_ours=True, launch="training/0")) == "PASS"


def test_what_decides_nothing_is_told_with_whose_it_is() -> None:
    found = advisory_events(facts(xid(43), xid(13, pid=7), xid(13, pid=7), xid(79)))
    stopped, faulted = "XID 43 (GPU stopped processing)", "XID 13 (Graphics Engine Exception)"
    assert [(x.is_required, x.outcome.status, x.outcome.measured) for x in found] == [
        (
            False,
            "WARN",
            f"{stopped} of an unseen process; by its code alone (IGNORE): cannot tell",
        ),
        (
            False,
            "WARN",
            f"{faulted} of process 7 (another's), 2 times; no test has compared results since: cannot tell",
        ),
    ]


def test_a_driver_that_did_not_answer_is_an_error_and_a_lost_device_a_failure() -> None:
    assert status(Announced(title="not_answering")) == "ERROR"
    assert status(Announced(title="lost")) == "FAIL"
    assert status(Announced(title="lost"), Announced(title="not_answering")) == "FAIL"


@pytest.mark.parametrize(
    ("reason", "expected"),
    [
        ("not recorded: No such file or directory (beside gemm/1)", "ERROR"),
        ("this user may not read it", "ERROR"),
        ("not supported: no GPU here announces events", "NOT-APPLICABLE"),
        ("not supported: Intel's drivers report resets in the kernel log only", "NOT-APPLICABLE"),
    ],
)
def test_silence_passes_only_where_somebody_could_listen(reason: str, expected: str) -> None:
    unheard = Announced(title="", launch="gemm/1", unheard=reason)
    assert status(unheard) == status(unheard, xid(31)) == expected
    assert status(unheard, xid(79)) == "FAIL"
    assert [x.outcome.measured for x in advisory_events(facts(unheard))] == []


def of_host(*events: Announced) -> FleetFacts:
    return replace(facts(), events={ON: [], "host/a": list(events)})


def test_an_error_of_a_switch_fails_its_host_and_not_its_gpus() -> None:
    found = ask([judge_events], of_host(Announced(title="sxid 20034")))
    assert {x.outcome.subject: x.outcome.status for x in found} == {ON: "PASS", "host/a": "FAIL"}
    assert {x.outcome.measured for x in found if x.outcome.status == "FAIL"} == {
        "SXid 20034 (LTSSM Fault Up); by itself: restart the host"
    }
    found = ask([judge_events], of_host(Announced(title="sxid 99999")))
    assert {x.outcome.subject: x.outcome.status for x in found} == {ON: "PASS", "host/a": "ERROR"}


def test_what_corrects_itself_is_told_and_fails_nothing() -> None:
    told = of_host(Announced(title="sxid 22013"))
    assert [x.outcome.status for x in ask([judge_events], told)] == ["PASS"]
    assert [(x.outcome.subject, x.outcome.status) for x in advisory_events(told)] == [("host/a", "WARN")]
    assert status(Announced(title="pcie_aer BadTLP")) == "PASS"
    assert status(Announced(title="pcie_aer Uncorrectable (Fatal)")) == "FAIL"


def test_silence_of_a_log_that_was_not_read_is_named() -> None:
    (judged,) = ask([judge_events], of_host(Announced(title="", unheard="/dev/kmsg: Permission denied")))
    assert judged.outcome.status == "PASS"  # the driver's library was heard
    assert judged.outcome.measured == (
        "no driver event; the kernel log was not read: /dev/kmsg: Permission denied"
    )

"""Incidents: events of one code on one device within minutes, and whose each of them is."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from fleet_by_hand import gpu, hosts, measured
from gpuproof.launches.explanations import explain_launch
from gpuproof.launches.launch import summarize_launch
from gpuproof.readings.evidence import Evidence
from gpuproof.records.collected import CaseRecords
from gpuproof.records.outcome import Judged
from gpuproof.records.readings import UNREAD, Counters, DriverEvent, RecordingEnd
from gpuproof.records.run import Device, Failure, FailureCause, RankResult
from gpuproof.records.work.window import MonitorSpec
from gpuproof.verdict.announced import announced_in
from gpuproof.verdict.check import ask
from gpuproof.verdict.checks.events import advisory_events, judge_events
from gpuproof.verdict.doubts.interference import device_faults
from gpuproof.verdict.facts import Announced, FleetFacts, Owner
from gpuproof.verdict.incidents import conclude, incidents_in
from recordings import MONOTONIC_S, UNIX_S, header, identity, sample, write
from records_by_hand import case, failure, of_own_launch, result, setup, start, window

ON = gpu("a", 0)
AT = UNIX_S
USERS = 4242


def xid(code: int, at_s: float = 0.0, *, pid: int | None = None, **changes: Any) -> Announced:
    owner: Owner = "unknown" if pid is None else "another's"
    return Announced(
        **{
            "title": f"xid {code}",
            "unix_s": AT + at_s,
            "pid": pid,
            "owner": owner,
            "launch": "gemm/0",
            **changes,
        }
    )


def facts(*events: Announced, **more: Any) -> FleetFacts:
    return FleetFacts(**{"measures": [], "hosts": hosts("a", gpus=1), "events": {ON: list(events)}, **more})


def of_hosts(names: Sequence[str], *events: Announced, extra: Sequence[Announced] = ()) -> FleetFacts:
    """Each host announced the same of its only GPU; the first something besides."""
    told = {gpu(name, 0): [*events, *(extra if name == names[0] else ())] for name in names}
    return FleetFacts(measures=[], hosts=hosts(*names, gpus=1), events=told)


def judged(facts: FleetFacts) -> dict[str, Judged]:
    return {item.outcome.subject: item for item in ask([judge_events], facts)}


def status(facts: FleetFacts) -> str:
    return judged(facts)[ON].outcome.status


def words(facts: FleetFacts, subject: str = ON) -> list[str]:
    incidents = incidents_in(facts)[subject]
    return [conclude(one, incidents, facts).word for one in incidents]


def launch(at_s: float, *, case_id: str = "fingerprint", fails: FailureCause | None = None) -> CaseRecords:
    """A launch on the GPU that began so long after the first event."""
    device = Device(kind="cuda", index=0, name="G", uuid=ON.rpartition("/")[2], memory_total_bytes=None)
    began = replace(start(host="a"), unix_s=AT + at_s)
    end: Any = result() if fails is None else failure(fails, unix_s=AT + at_s + 9, host="a")
    named = replace(case(), case_id=case_id)
    return CaseRecords(
        case=named, records=of_own_launch([began, setup(device=device), window(host="a"), end])
    )


def right(stage: str) -> Any:
    return measured(ON, 0.0, name="wrong values", unit="1", labels={"stage": stage}, case=stage)


def test_repeats_within_minutes_are_one_incident_and_later_ones_another() -> None:
    told = facts(xid(31, pid=USERS), xid(31, 60, pid=USERS), xid(31, 120, pid=USERS), xid(31, 999, pid=USERS))
    incidents = incidents_in(told)[ON]
    assert [one.num_events for one in incidents] == [3, 1]
    assert incidents[0].text == (
        "XID 31 (GPU memory page fault) of process 4242 (another's), 3 times in 2 min from "
        "2026-11-20 13:30:00 UTC"
    )
    (warning,) = advisory_events(told)
    assert str(warning.outcome.measured).endswith("; 1 more incidents of it: cannot tell")


def test_a_users_fault_with_right_results_since_is_the_applications() -> None:
    """NVSentinel #911: a node was cordoned for XID 31, whose recommended action was none."""
    tests = [launch(60), launch(90, case_id="pattern")]
    told = facts(
        xid(31, pid=USERS),
        xid(31, 20, pid=USERS),
        launches=tests,
        measures=[right("fingerprint"), right("pattern")],
    )
    assert (status(told), words(told)) == ("PASS", ["application"])
    (warning,) = advisory_events(told)
    assert str(warning.outcome.measured).endswith("; fingerprint and pattern correct since: application")
    unseen = replace(told, events={ON: [xid(31)]})
    assert (status(unseen), words(unseen)) == ("PASS", ["cannot tell"])
    uncompared = replace(told, measures=[replace(right("fingerprint"), value=None)])
    assert words(uncompared) == ["cannot tell"]
    before = replace(told, launches=[launch(-60), launch(-30, case_id="pattern")])  # that says nothing
    assert (status(before), words(before)) == ("PASS", ["cannot tell"])


@pytest.mark.parametrize("pid", [None, USERS])
def test_later_tests_of_the_device_that_fail_make_it_the_devices(pid: int | None) -> None:
    told = facts(xid(13, pid=pid))
    assert (status(told), words(told)) == ("PASS", ["cannot tell"])
    failed = replace(told, launches=[launch(60, fails="exception")])
    assert (status(failed), words(failed)) == ("FAIL", ["reset the device"])
    assert status(replace(told, launches=[launch(-60, fails="exception")])) == "PASS"  # it was before
    assert status(replace(told, launches=[launch(60, fails="out_of_memory")])) == "PASS"  # others' memory
    wrong = replace(told, measures=[replace(right("fingerprint"), value=2.0)])
    assert (status(wrong), words(wrong)) == ("FAIL", ["reset the device"])


def test_a_jobs_cleanup_is_told_once_and_the_memory_next_to_it_is_reported() -> None:
    """NVSentinel #1748: 11,760 XID 45 on one node, equally on 17 others; and memory failed."""
    names = [f"n{number:02}" for number in range(18)]
    cleanup = [xid(45, number * 1e-2) for number in range(11_760)]
    memory = xid(48, 30)
    told = of_hosts(names, *cleanup, extra=[memory])
    found = judged(told)
    assert found[gpu("n00", 0)].outcome.status == "FAIL"
    assert str(found[gpu("n00", 0)].outcome.measured).startswith("XID 48 (Double Bit ECC Error)")
    assert {item.outcome.status for subject, item in found.items() if subject != gpu("n00", 0)} == {"PASS"}
    (warning,) = advisory_events(told)
    assert warning.outcome.subject == "whole"
    assert "211,680 times on 18 hosts (n00, n01, n02, n03 and 14 more)" in str(warning.outcome.measured)


@pytest.mark.parametrize(
    ("code", "is_a_jobs"), [(31, True), (43, True), (45, True), (94, False), (63, False)]
)
def test_only_what_an_application_can_cause_belongs_to_a_job(code: int, is_a_jobs: bool) -> None:
    told = of_hosts(("a", "b", "c"), xid(code))
    subjects = [item.outcome.subject for item in advisory_events(told)]
    assert (subjects == ["whole"]) is is_a_jobs


@pytest.mark.parametrize("code", [48, 74, 79, 64, 95, 54])
def test_bus_fabric_power_and_memory_codes_are_never_a_jobs(code: int) -> None:
    found = judged(of_hosts(("a", "b", "c"), xid(code)))
    assert {item.outcome.status for item in found.values()} == {"FAIL"}


def test_that_few_other_hosts_announced_the_same_is_told_and_makes_no_job() -> None:
    names = [f"n{number}" for number in range(5)]
    events = {gpu(name, 0): [xid(31)] if name in ("n0", "n1") else [] for name in names}
    told = FleetFacts(measures=[], hosts=hosts(*names, gpus=1), events=events)
    first, second = (str(item.outcome.measured) for item in advisory_events(told))
    assert ("; also on n1 at the time; " in first, "; also on n0 at the time; " in second) == (True, True)
    apart = {
        **events,
        gpu("n1", 0): [xid(31, 61)],
        gpu("n2", 0): [xid(31, 122)],
    }  # three of five, not at once
    assert len(advisory_events(replace(told, events=apart))) == 3


def test_work_of_ours_and_a_users_are_no_one_job() -> None:
    ours = {gpu("a", 0): [xid(31, pid=7, owner="ours")], gpu("b", 0): [xid(31, pid=USERS)]}
    told = FleetFacts(measures=[], hosts=hosts("a", "b", gpus=1), events=ours)
    assert {name: item.outcome.status for name, item in judged(told).items()} == {
        gpu("a", 0): "FAIL",
        gpu("b", 0): "PASS",
    }
    assert words(told, gpu("b", 0)) == ["cannot tell"]


def test_a_hundred_thousand_events_are_a_page_and_not_so_many_rows() -> None:
    alike = [xid(31, number * 1e-3, pid=USERS) for number in range(100_000)]
    (warning,) = advisory_events(facts(*alike))
    assert "100,000 times in 100 s" in str(warning.outcome.measured)
    unlike = facts(*(xid(1000 + number) for number in range(50_000)))
    outcome = judged(unlike)[ON].outcome
    assert (outcome.status, len(str(outcome.reason)) < 600) == ("ERROR", True)
    assert str(outcome.reason).endswith("49993 more")
    assert advisory_events(unlike) == []


def test_correctable_errors_that_grow_are_a_trend_and_the_vendors_limits_fail() -> None:
    told = facts(
        Announced(title="ecc_corrected_count", growth=5, launch="gemm/0"),
        Announced(title="ecc_corrected_count", growth=7, launch="training/0"),
    )
    assert status(told) == "PASS"
    (warning,) = advisory_events(told)
    assert str(warning.outcome.measured).startswith("ecc_corrected_count grew by 12")
    failed = facts(Announced(title="remapped_rows_failed", growth=1))
    assert (status(failed), words(failed)) == ("FAIL", ["vendor"])


# From recordings

END = RecordingEnd(
    monotonic_s=MONOTONIC_S + 40,
    unix_s=UNIX_S + 40,
    samples=30,
    missed_ticks=0,
    max_jitter_s=0.0,
    own_cpu_s=0.1,
    reason="SIGTERM",
)


def evidence_of(
    folder: Path, *events: tuple[float, int, str], failures: Sequence[Failure | RankResult] = (result(),)
) -> Evidence:
    """A launch of half a minute on the GPU, and what its driver announced beside it."""
    device = Device(kind="cuda", index=0, name="Fake GPU 80", uuid="GPU-0000", memory_total_bytes=None)
    announced = [
        DriverEvent(
            monotonic_s=MONOTONIC_S + at_s,
            physical_index=None if message.startswith((UNREAD, "nvidia-nvswitch")) else 0,
            event="kernel" if is_line else "xid",
            code=None if is_line else code,
            message=message,
        )
        for at_s, code, message in events
        for is_line in [not message.startswith("XID")]
    ]
    totals = [
        Counters(monotonic_s=MONOTONIC_S, at=at, devices={"0": {"ecc_corrected_count": count}})
        for at, count in (("start", 3.0), ("end", 9.0))
    ]
    samples = [sample(float(at_s), {0: {"power_w": 100.0}}) for at_s in range(30)]
    path = write(folder / "a.jsonl", [header([identity(0)]), *samples, *announced, *totals, END])
    measured = window(host="node7", begin_monotonic_s=MONOTONIC_S + 5, end_monotonic_s=MONOTONIC_S + 25)
    records = [
        replace(start(), host="node7", pid=77),
        setup(device=device),
        measured,
        *failures,
    ]
    monitored = replace(case(), monitor=MonitorSpec(interval_s=1.0))
    launches = (CaseRecords(case=monitored, records=of_own_launch(records)),)
    return Evidence(
        description={},
        config=None,
        launches=launches,
        hosts=(),
        recording_at=lambda *_: path,
        folder_of=lambda _: Path(),
    )


def recorded(folder: Path, *events: tuple[float, int, str], **more: Any) -> FleetFacts:
    evidence = evidence_of(folder, *events, **more)
    return FleetFacts(measures=[], events=announced_in(evidence), launches=evidence.launches)


NODE7 = "host/node7/gpu/GPU-0000"


def test_lines_of_the_log_are_of_the_device_or_the_host_that_they_are_recorded_of(tmp_path: Path) -> None:
    told = recorded(
        tmp_path,
        (8.0, 0, "nvidia-nvswitch0: SXid (PCI:0000:c1:00.0): 20034, Fatal, Link 30 LTSSM Fault Up"),
        (8.5, 0, "nvidia-nvswitch0: SXid (PCI:0000:c1:00.0): 20034, Data {0x50610002, 0x10100030}"),
        *((at_s, 0, "pcieport 0000:00:03.1:    [ 6] BadTLP                ") for at_s in (9.0, 9.5)),
        (10.0, 0, "amdgpu 0000:28:00.0: ring gfx_0.0.0 timeout, signaled seq=57638, emitted seq=57641"),
        (11.0, 0, "NVRM: loading NVIDIA UNIX Open Kernel Module for x86_64  595.45.04"),
        (12.0, 0, f"{UNREAD}2 driver lines beyond 10000"),
    )
    found = incidents_in(told)
    of_gpu = {one.title: one.num_events for one in found[NODE7] if one.title != "ecc_corrected_count"}
    assert of_gpu == {"pcie_aer BadTLP": 2, "kernel amdgpu-ring-timeout": 1}
    assert [one.title for one in found["host/node7"]] == ["sxid 20034"]
    (switch,) = found["host/node7"]
    concluded = conclude(switch, [switch], told)
    assert (concluded.status, concluded.word) == ("FAIL", "restart the host")
    assert [e.unheard for e in (told.events or {})["host/node7"] if e.unheard] == [
        "2 driver lines beyond 10000"
    ]


def test_a_recording_says_whose_process_when_and_on_which_instance(tmp_path: Path) -> None:
    line = "NVRM: Xid (PCI:0000:01:00 GPU-I:05): 31, pid=4242, name=python, Ch 00000008"
    told = recorded(
        tmp_path,
        (8.0, 31, line),
        (9.0, 13, "NVRM: Xid (PCI:0000:01:00): 13, pid=77, name=python, "),
        (10.0, 43, "XID 43"),
    )
    faults = {one.title: one for one in incidents_in(told)[NODE7]}
    assert (faults["xid 31"].owner, faults["xid 31"].instance) == ("another's", "5")
    assert faults["xid 31"].first_unix_s == UNIX_S + 8
    assert (faults["xid 13"].owner, faults["xid 43"].owner) == ("ours", "unknown")
    assert faults["ecc_corrected_count"].growth == 6


def test_an_xid_of_both_library_and_log_is_one_event_and_one_reason_to_suspect_the_run(
    tmp_path: Path,
) -> None:
    line = "NVRM: Xid (PCI:0000:01:00 GPU-I:05): 31, pid=4242, name=python, Ch 00000008"
    other = "NVRM: loading NVIDIA UNIX x86_64 Kernel Module"
    both = ((8.0, 31, line), (8.2, 31, "XID 31"), (9.0, 0, other))
    (fault, _) = incidents_in(recorded(tmp_path, *both))[NODE7]
    assert (fault.title, fault.num_events, fault.pids, fault.instance) == ("xid 31", 1, (USERS,), "5")
    run = evidence_of(tmp_path, *both)
    launch = summarize_launch(run.launches[0])
    assert launch is not None
    reasons = [doubt.reason for doubt in device_faults(explain_launch(launch, run))]
    assert reasons == [f"GPU 0: xid 31: {line} (launch 1)"]


def test_an_error_of_a_divided_gpu_is_joined_with_tests_of_its_instances() -> None:
    mig = hosts("a", gpus=1)
    uuid = ON.rpartition("/")[2]
    mig["a"]["accelerators"]["devices"].append({"uuid": "MIG-7", "static": {"mig_parent_uuid": uuid}})
    wrong = replace(right("fingerprint"), value=2.0, subject="host/a/gpu/GPU-7")  # as torch names it
    told = facts(xid(31, instance="7"), hosts=mig, measures=[wrong])
    assert words(told) == ["reset the device"]
    assert words(replace(told, measures=[replace(wrong, subject="host/a/gpu/GPU-8")])) == ["cannot tell"]


def test_what_came_before_the_recording_or_from_another_boot_does_not_count(tmp_path: Path) -> None:
    told = recorded(tmp_path, (-5.0, 79, "XID 79"), (-9000.0, 79, "XID 79"), (9000.0, 79, "XID 79"))
    assert [one.title for one in incidents_in(told)[NODE7]] == ["ecc_corrected_count"]


@pytest.mark.parametrize(
    ("code", "at_s", "expected"),
    [
        (43, 19.0, ("reset the device", "FAIL")),
        (43, 21.0, ("application", "WARN")),
        (45, 21.0, ("application", "WARN")),
        (79, 21.0, ("restart the host", "FAIL")),
    ],
)
@pytest.mark.parametrize("is_told_by_rank", [True, False])
def test_what_follows_from_our_kill_is_not_the_devices(
    code: int, at_s: float, expected: tuple[str, str], is_told_by_rank: bool, tmp_path: Path
) -> None:
    """The launcher writes its record after up to 10 s that it leaves to ranks to end by themselves."""
    hang = failure("hang", unix_s=UNIX_S + 20, host="node7")
    late = failure("timeout", rank=None, unix_s=UNIX_S + 30, host="laptop")
    told = recorded(tmp_path, (at_s, code, f"XID {code}"), failures=[hang if is_told_by_rank else late])
    incidents = incidents_in(told)[NODE7]
    conclusion = conclude(incidents[0], incidents, told)
    assert (conclusion.word, conclusion.status) == expected


def test_what_stopped_anothers_process_before_a_kill_is_not_the_devices(tmp_path: Path) -> None:
    hang = failure("hang", unix_s=UNIX_S + 20, host="node7")
    told = recorded(
        tmp_path, (19.0, 43, "NVRM: Xid (PCI:0000:01:00): 43, pid=4242, name=python, "), failures=[hang]
    )
    incidents = incidents_in(told)[NODE7]
    assert conclude(incidents[0], incidents, told).status == "WARN"


def test_of_a_launch_that_failed_otherwise_nothing_follows_from_a_kill(tmp_path: Path) -> None:
    told = recorded(tmp_path, (21.0, 43, "XID 43"), failures=[failure("exception", unix_s=UNIX_S + 20)])
    (incident, _) = incidents_in(told)[NODE7]
    assert (incident.kill, incident.owner) == (None, "ours")

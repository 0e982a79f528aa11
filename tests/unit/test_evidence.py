"""What is known of a run: readings are cut out when asked for, and what is missing is said."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

import recordings as r
from gpuproof.launches.explanations import explain
from gpuproof.readings import evidence as module
from gpuproof.readings.evidence import NOT_MONITORED, Evidence, MissingReadings, WindowReadings
from gpuproof.readings.recording import RecordingData, load_recording
from gpuproof.records.case import Case, Placement
from gpuproof.records.collected import CaseRecords
from gpuproof.records.journal import encode
from gpuproof.records.readings import DriverEvent
from gpuproof.records.work.window import MonitorSpec
from records_by_hand import CASE

MONITORED = replace(CASE, monitor=MonitorSpec(interval_s=1.0))


def recorded(path: Path, *, seconds: int = 21, gap: range = range(0)) -> Path:
    """One reading a second of two GPUs, but for those in a gap; GPU 1 is capped throughout."""
    samples = [
        r.sample(t, {0: {"power_w": 300.0}, 1: {"power_w": 600.0}}, reasons={0: (), 1: ("power_cap",)})
        for t in range(seconds)
        if t not in gap
    ]
    return r.write(path, [r.header([r.identity(0), r.identity(1)]), *samples])


def evidence(*launches: Case, folder: Path, hosts: tuple[str, ...] = ()) -> Evidence:
    return Evidence(
        description={},
        config=None,
        launches=tuple(CaseRecords(case=case, records=()) for case in launches),
        hosts=tuple({"name": name} for name in hosts),
        recording_at=lambda case, host: folder / f"{case.case_id}-{host}.jsonl",
        folder_of=lambda case: folder,
    )


def read(found: Evidence, begin_s: float, end_s: float, **only: object) -> WindowReadings:
    readings = found.readings(
        MONITORED,
        "node7",
        begin_monotonic_s=r.MONOTONIC_S + begin_s,
        end_monotonic_s=r.MONOTONIC_S + end_s,
        **only,  # type: ignore[arg-type]  # uuids
    )
    assert isinstance(readings, WindowReadings), readings
    return readings


def test_a_window_is_read_of_all_devices_or_of_those_asked_for(tmp_path: Path) -> None:
    recorded(tmp_path / "main-node7.jsonl")
    found = evidence(MONITORED, folder=tmp_path)
    assert [device.physical_index for device in read(found, 5, 15).devices] == [0, 1]
    (device,) = read(found, 5, 15, uuids=["GPU-0001"]).devices
    assert (device.uuid, device.throttle_shares) == ("GPU-0001", {"power_cap": 1.0})


def test_lines_of_the_log_are_of_a_window_but_for_what_corrected_itself(tmp_path: Path) -> None:
    lines = (
        "pcieport 0000:00:03.1:    [ 6] BadTLP                ",
        "NVRM: loading NVIDIA UNIX Open Kernel Module for x86_64  595.45.04",
        "NVRM: GPU 0000:29:00.0: GPU has fallen off the bus.",
    )
    path = recorded(tmp_path / "main-node7.jsonl")
    events = [
        DriverEvent(monotonic_s=r.MONOTONIC_S + 9, physical_index=0, event="kernel", code=None, message=line)
        for line in lines
    ]
    with path.open("a") as file:
        file.writelines(f"{encode(event)}\n" for event in events)
    first, second = read(evidence(MONITORED, folder=tmp_path), 5, 15).devices
    assert first.events == (f"kernel nvidia-off-the-bus: {lines[2]}",)
    assert second.events == ()


@pytest.mark.parametrize(
    ("begin_s", "end_s", "num_samples", "share"),
    [
        (5, 15, 10, 1.0),  # the one at 15 s belongs to what comes after
        (5.25, 5.75, 0, 1.0),  # between two readings: none lies in it, and yet the time is covered
        (15, 25, 6, 0.5),  # 15 to 20 s of 15 to 25 s
        (30, 31, 0, 0.0),
    ],
)
def test_how_much_of_a_window_the_samples_cover(
    begin_s: float, end_s: float, num_samples: int, share: float, tmp_path: Path
) -> None:
    recorded(tmp_path / "main-node7.jsonl")
    coverage = read(evidence(folder=tmp_path), begin_s, end_s).coverage
    assert coverage is not None
    assert coverage.num_samples == num_samples
    assert coverage.share == pytest.approx(share)


def test_a_hole_in_the_recording_is_not_covered(tmp_path: Path) -> None:
    """Of 10 s, from 4 to 12 s nothing was read: 2 s are left."""
    recorded(tmp_path / "main-node7.jsonl", gap=range(5, 12))
    coverage = read(evidence(folder=tmp_path), 3, 13).coverage
    assert coverage is not None
    assert coverage.share == pytest.approx(0.2)


KILLED = "the sampler was killed; its last reading came"


@pytest.mark.parametrize(
    ("begin_s", "end_s", "said"),
    [
        (
            30,
            31,
            [f"there are no readings in the window: {KILLED} 10.0 s before it"],
        ),
        (5.25, 5.75, ["there are no readings in the window"]),
        (
            18,
            28,
            [f"the readings cover only 20 % of the window: {KILLED} 2.00 s after the window started"],
        ),
        (5, 15, []),
    ],
)
def test_silence_never_stands_for_a_window_that_was_not_read(
    begin_s: float, end_s: float, said: list[str], tmp_path: Path
) -> None:
    recorded(tmp_path / "main-node7.jsonl")
    readings = read(evidence(folder=tmp_path), begin_s, end_s, uuids=["GPU-0000"])
    assert [cause.sentence for cause in explain(readings)] == said


def test_what_is_missing_says_why(tmp_path: Path) -> None:
    found = evidence(CASE, MONITORED, folder=tmp_path)
    assert found.recording(CASE, "node7") == MissingReadings(reason=NOT_MONITORED)
    assert found.recording(MONITORED, "node7") == MissingReadings(reason="No such file or directory")
    (tmp_path / "main-node8.jsonl").write_text("")
    missing = found.readings(MONITORED, "node8", begin_monotonic_s=0, end_monotonic_s=1)
    assert missing == MissingReadings(reason="contains no recording line")


def test_two_questions_about_a_launch_read_its_file_once_and_few_are_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    loaded: list[str] = []

    def load(path: Path) -> RecordingData:
        loaded.append(path.name)
        return load_recording(path)

    monkeypatch.setattr(module, "load_recording", load)
    for host in ("node7", "node8", "node9"):
        recorded(tmp_path / f"main-{host}.jsonl")
    found = evidence(MONITORED, folder=tmp_path)
    for host in ("node7", "node7", "node8", "node7"):
        found.only(case_id="main").recording(MONITORED, host)
    assert loaded == ["main-node7.jsonl", "main-node8.jsonl"]
    monkeypatch.setattr(module, "KEPT_VALUES", 0)
    found.recording(MONITORED, "node9")
    assert [path.name for path in found.loaded] == ["main-node9.jsonl"]


def test_only_leaves_one_case_or_one_host(tmp_path: Path) -> None:
    cases = [
        replace(CASE, case_id=name, placement=Placement(hosts=(host,)))
        for name in ("a", "b")
        for host in ("node1", "node2")
    ]
    found = evidence(*cases, folder=tmp_path, hosts=("node1", "node2"))

    def names(part: Evidence) -> list[tuple[str, str | None]]:
        return [(records.case.case_id, records.case.placement.host) for records in part.launches]

    assert names(found.only(case_id="a")) == [("a", "node1"), ("a", "node2")]
    assert found.only(case_id="a").hosts == found.hosts

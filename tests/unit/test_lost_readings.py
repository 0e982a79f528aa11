"""What the monitor lost is a doubt of the launches that it stood beside, and of no others."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from gpuproof.readings.evidence import Evidence
from gpuproof.readings.recording import RecordingData, load_recording
from gpuproof.records.collected import CaseRecords
from gpuproof.records.journal import encode
from gpuproof.records.readings import DRIVER_EVENTS, DriverEvent, UnavailableMetrics
from gpuproof.records.run import Device
from gpuproof.records.work.window import MonitorSpec
from gpuproof.verdict.announced import announced_in, lost_readings
from recordings import MONOTONIC_S, end, header, identity, sample, write
from records_by_hand import CPU, H200, case, of_own_launch, result, setup, start, window

ANY_GPU = replace(H200, uuid=None)
"""Of which nobody knows which one it is."""


def launch(replicate: int = 0, *, device: Device = ANY_GPU, length_s: float = 20.0) -> CaseRecords:
    """A launch whose window begins 5 s after its recording."""
    begin_s = MONOTONIC_S + 5
    measured = window(host="node7", begin_monotonic_s=begin_s, end_monotonic_s=begin_s + length_s)
    records = [replace(start(), host="node7"), setup(device=device), measured, result()]
    monitored = replace(case(replicate=replicate), monitor=MonitorSpec(interval_s=1.0))
    return CaseRecords(case=monitored, records=of_own_launch(records))


def recording(
    folder: Path,
    name: str,
    *events: tuple[float, int, str],
    devices: int = 2,
    last_s: float = 30,
    **facts: Any,
) -> Path:
    """Readings of some devices up to a time, with what their drivers announced."""
    told = [
        DriverEvent(monotonic_s=MONOTONIC_S + at_s, physical_index=place, event=event, code=None, message="m")
        for at_s, place, event in events
    ]
    head = header([identity(place) for place in range(devices)], host_facts=facts)
    values = {place: {"power_w": 100.0} for place in range(devices)}
    samples = [sample(float(at_s), values) for at_s in range(int(last_s))]
    return write(folder / name, [head, *samples, *told])


def evidence_of(launches: Sequence[CaseRecords], paths: Sequence[Path | None]) -> Evidence:
    at = {x.case.replicate: path for x, path in zip(launches, paths, strict=True)}
    return Evidence(
        description={},
        config=None,
        launches=tuple(launches),
        hosts=(),
        recording_at=lambda case, _: at[case.replicate],
        folder_of=lambda _: Path(),
    )


def doubts(launches: Sequence[CaseRecords], paths: Sequence[Path | None]) -> list[str]:
    return [doubt.reason for doubt in lost_readings(evidence_of(launches, paths))]


@pytest.mark.parametrize(
    ("events", "loss"),
    [
        ((), None),
        (((8.0, 1, "lost"),), "GPU 1 lost"),
        (((1.0, 0, "not_answering"), (1.0, 1, "not_answering")), "GPU 0, 1 not answering"),
        (((1.0, 0, "not_answering"), (3.0, 0, "appeared")), None),  # it was there before the window began
        (((1.0, 0, "hung"), (9.0, 0, "recovered")), "GPU 0 hung"),
        (((28.0, 0, "lost"),), None),  # after the window
    ],
)
def test_devices_that_went_are_named(
    events: tuple[tuple[float, int, str], ...], loss: str | None, tmp_path: Path
) -> None:
    found = doubts([launch()], [recording(tmp_path, "a.jsonl", *events)])
    assert found == ([] if loss is None else [f"readings of node7 were lost during main: {loss}"])


def test_a_driver_lost_between_launches_is_told_with_why_a_vendor_is_absent(tmp_path: Path) -> None:
    first = recording(tmp_path, "a.jsonl")
    absent: Any = {"vendors_absent": {"nvidia": "the driver is gone"}}
    later = [recording(tmp_path, f"{place}.jsonl", devices=0, **absent) for place in range(2)]
    assert doubts([launch(0), launch(1), launch(2)], [first, *later]) == [
        "readings of node7 were lost during main and 1 more: 2 devices that were read before were missing "
        "(Fake GPU 80, Fake GPU 80; nvidia: the driver is gone)"
    ]
    lost = ["readings of node7 were lost during main: No such file or directory"]
    assert doubts([launch(0), launch(1)], [first, tmp_path / "none.jsonl"]) == lost
    assert doubts([launch(0), launch(1)], [tmp_path / "none.jsonl", first]) == lost  # whichever it is
    assert doubts([launch(0), launch(1)], [later[0], later[1]]) == []  # a host without a GPU lost none


@pytest.mark.parametrize(
    ("last_s", "is_whole", "is_early"),
    [
        (10, True, True),
        (22, True, False),  # its driver answered late
        (22, False, True),  # it was cut off 3 s before the end of the window
        (27, False, False),
    ],
)
def test_a_recording_that_ends_long_before_its_window_or_is_cut_off_in_it_ended_early(
    last_s: int, is_whole: bool, is_early: bool, tmp_path: Path
) -> None:
    path = recording(tmp_path, "a.jsonl", last_s=last_s)
    if is_whole:
        with path.open("a", encoding="utf-8") as file:
            file.write(encode(end(last_s, samples=last_s)) + "\n")
    found = doubts([launch()], [path])
    assert found == (
        ["readings of node7 were lost during main: the recording ended early"] if is_early else []
    )


def test_work_on_processors_loses_nothing_by_a_gpu(tmp_path: Path) -> None:
    path = recording(tmp_path, "a.jsonl", (8.0, 0, "lost"))
    assert doubts([launch(device=CPU)], [path]) == []


def test_of_a_launch_on_one_gpu_another_one_is_no_loss(tmp_path: Path) -> None:
    of_first = Device(kind="cuda", index=0, name="Fake GPU 80", uuid="GPU-0000", memory_total_bytes=None)
    path = recording(tmp_path, "a.jsonl", (8.0, 1, "lost"))
    loaded: RecordingData = load_recording(path)
    assert len(loaded.devices) == 2
    assert doubts([launch(device=of_first)], [path]) == []


def test_another_job_on_the_host_may_have_been_given_other_gpus(tmp_path: Path) -> None:
    first = recording(tmp_path, "a.jsonl")
    other = tmp_path / "b.jsonl"
    other.write_text(first.read_text().replace("GPU-000", "GPU-100"))
    assert doubts([launch(0), launch(1)], [first, other]) == []


OF_FIRST = Device(kind="cuda", index=0, name="Fake GPU 80", uuid="GPU-0000", memory_total_bytes=None)


@pytest.mark.parametrize(
    ("other", "reason"),
    [
        ("none", "not recorded: No such file or directory (during main/1)"),
        ("short", "not recorded: the recording ended early (during main/1)"),
        ("without", "not recorded: the recording does not list it (during main/1)"),
        ("deaf", "this user may not read it (during main/1)"),
        ("whole", None),
    ],
)
def test_what_nobody_could_hear_of_a_device_is_told_beside_what_was_heard(
    other: str, reason: str | None, tmp_path: Path
) -> None:
    paths = {
        "none": tmp_path / "none.jsonl",
        "short": recording(tmp_path, "short.jsonl", last_s=10),
        "without": recording(tmp_path, "without.jsonl", devices=0),
        "deaf": recording(tmp_path, "deaf.jsonl"),
        "whole": recording(tmp_path, "whole.jsonl"),
    }
    refused = {DRIVER_EVENTS: "this user may not read it"}
    deaf = UnavailableMetrics(monotonic_s=MONOTONIC_S + 1, physical_index=0, reasons=refused)
    with paths["deaf"].open("a", encoding="utf-8") as file:
        file.write(encode(deaf) + "\n")
    launches = [launch(0, device=OF_FIRST), launch(1, device=OF_FIRST)]
    announced = announced_in(evidence_of(launches, [paths["whole"], paths[other]]))
    assert announced is not None
    heard = [event.unheard for event in announced["host/node7/gpu/GPU-0000"]]
    assert heard == ([] if reason is None else [reason])

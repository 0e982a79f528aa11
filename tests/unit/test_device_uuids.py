"""One device, several spellings: a rank on a MIG instance finds its readings, and no energy but its own."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

import pytest

import recordings as r
from concluding import lines_of, table_of
from gpuproof.campaign.conclude import conclude
from gpuproof.launches.explanations import energy_per_item
from gpuproof.readings.evidence import DeviceWindow, HostWindow, WindowReadings
from gpuproof.records.readings import bare_uuid, named_among, spellings
from gpuproof.records.run import DeviceSharing
from gpuproof.records.work.window import MonitorSpec
from gpuproof.selftest.fleet import Fleet
from gpuproof.selftest.judging import CHECKS, write_fleet
from gpuproof.store.run import RunDirectory
from gpuproof.suites.validate import SUITE
from records_by_hand import H200, Story, case, setup, window, write_run

LISTED = ["GPU-0a", "GPU-0b", "MIG-1c", "MIG-GPU-0b/2/0", None]


@pytest.mark.parametrize(
    ("asked", "places"),
    [
        (["GPU-0a"], {0}),
        (["0a"], {0}),
        (["GPU-1c"], {2}),  # as this version writes whatever torch tells
        (["MIG-1c"], {2}),
        (["MIG-GPU-0b/2/0"], {3}),
        (["MIG-GPU-0a/5/0"], {0}),  # its GPU, where it is not listed itself
        (["GPU-0c"], set()),
        (["GPU-0a", "MIG-1c"], {0, 2}),
    ],
)
def test_a_device_is_found_however_it_is_spelt(asked: list[str], places: set[int]) -> None:
    assert named_among(asked, LISTED) == places


def test_a_driver_is_asked_for_every_spelling_the_given_one_first() -> None:
    assert spellings("MIG-0a") == ("MIG-0a", "GPU-0a")
    assert spellings("0a") == ("GPU-0a", "MIG-0a")
    assert spellings("MIG-GPU-0a/1/0") == ("MIG-GPU-0a/1/0",)
    assert {bare_uuid(text) for text in spellings("GPU-0a")} == {"0a"}


def test_a_rank_on_an_instance_is_read_by_the_name_that_torch_gives_it(tmp_path: Path) -> None:
    device = replace(H200, uuid="GPU-0002")
    launched = replace(case(kind="inference"), monitor=MonitorSpec(interval_s=0.1))
    begin_s = r.MONOTONIC_S
    windows = [window(begin_monotonic_s=begin_s, end_monotonic_s=begin_s + 1)]
    launch = Story(windows=windows, setups=[setup(device=device)], case=launched).records()
    run = write_run(tmp_path, [launch])
    identities = [r.identity(1), replace(r.identity(2), uuid="MIG-0002")]
    samples = [r.sample(tick / 10, {2: {"util_gpu_percent": 50.0}}) for tick in range(11)]
    records = [r.header(identities, fast_interval_s=0.1), *samples, r.end(1.0, samples=11)]
    r.write(run.case_folder(launch.case) / "monitor-node1.jsonl", records)
    (row,) = table_of(conclude(run), "Host and devices during the run")
    assert row["device"].text.startswith("GPU 2 ")
    assert row["busy"].text == "50 %"


def test_the_energy_of_a_divided_gpu_is_not_that_of_one_instance() -> None:
    device = DeviceWindow(physical_index=0, throttle_shares={}, energy_j=10.0, energy_coverage=1.0)
    told = []
    for divided in (False, True):
        devices = (replace(device, is_divided=divided),)
        host = HostWindow(
            cpu_percent=None, cpu_max_core_percent=None, cpu_iowait_percent=None, swap_growth_bytes=None
        )
        readings = WindowReadings(begin_monotonic_s=0, end_monotonic_s=1, devices=devices, host=host)
        told.append(energy_per_item(readings, items=5, item="sample"))
    assert [found.energy_j_per_item for found in told] == [2.0, None]
    assert "in MIG mode, its energy includes that of all its instances" in told[1].sentence


def test_a_display_is_a_note_and_no_doubt(tmp_path: Path) -> None:
    shown = DeviceSharing(
        other_processes=0, other_memory_bytes=0, missing=None, display_servers=("Xorg", "gnome-shell")
    )
    story = Story(windows=[window(neighbours=shown, clock="device_event")], setups=[setup(device=H200)])
    report = conclude(write_run(tmp_path, [story.records()]))
    assert report.result.validity == "VALID"
    notes = lines_of(report, "Notes")
    assert "NVIDIA H200 GPU-0a of node1 also drives a display: Xorg, gnome-shell" in notes


def test_an_older_uuid_of_mig_with_its_slashes_names_a_gpu_that_is_validated(tmp_path: Path) -> None:
    run = tmp_path / "benchmark" / "selftest"
    rules = [{"check": name} for name in CHECKS]
    expected = SUITE.conclude(write_fleet(Fleet(seed=1, is_counted=False), tmp_path, rules=rules)).result
    for path in run.rglob("*.json*"):
        path.write_text(re.sub(r"GPU-(node\d)-(\d)", r"MIG-GPU-\1/\2/0", path.read_text()))
    concluded = conclude(RunDirectory.open(run)).result
    assert concluded.detail["readiness"]["uncapped"] == expected.detail["readiness"]["uncapped"] == "READY"
    subjects = {judged.outcome.subject for judged in concluded.outcomes}
    assert "host/node1/gpu/MIG-GPU-node1/0/0" in subjects

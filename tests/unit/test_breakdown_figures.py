"""Steps taken apart, by hand: communication in three ways, phases that sum to the step, page and files."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from concluding import are_figures_measures, lines_of, table_of, text_of, unmeasured_marks
from gpuproof.accelerators.base import DeviceCommand
from gpuproof.campaign.conclude import Concluded, conclude
from gpuproof.config.models import RunConfig
from gpuproof.launches.communication import PhaseValues, communication_of, phases_of
from gpuproof.records.breakdown import (
    BucketAllReduce,
    CollectiveOverlap,
    GradientSync,
    StepPhases,
    SyncRound,
    TrainingAgreement,
)
from gpuproof.records.page import Chart
from gpuproof.records.run import Device, Environment
from gpuproof.records.what_ran import Memory, MemoryParts
from gpuproof.suites.scale.breakdown import NOTHING_LEARNT, Agreement, agreement_of
from gpuproof.worker.breakdown.communication import overlap_of
from planning import next_cases
from records_by_hand import NUM_STEPS, Story, setup, steady_times, window, write_run

SYNC = SyncRound(
    with_sync_s=(0.0130, 0.0131, 0.0129),
    without_sync_s=(0.0090,),
    alone_with_sync_s=(0.0100,),
    alone_without_sync_s=(0.0091, 0.0089, 0.0090),
)
"""13 less 9 ms, of which 1 ms is the code's own: 3 ms of communication."""
DEVICE: Any = "device_event"


def apart(rank: int) -> list[Any]:
    """One rank of several: 12 ms a step, of which the window's mean is 12.1 ms."""
    return [
        StepPhases(
            rank=rank,
            clock=DEVICE,
            is_queued=True,
            data_s=(0.0005,) * 3,
            forward_s=(0.002, 0.0021, 0.0019),
            backward_s=(0.008,) * 3,
            optimizer_s=(0.001,) * 3,
            backward_without_sync_s=(0.0045,) * 3,
            plain_step_s=(0.012,) * 5,
            marked_step_s=(0.0123,) * 5,
        ),
        CollectiveOverlap(
            rank=rank, num_steps=5, collective_s=0.020, exposed_s=0.015, kernels=("ncclX",), missing=None
        ),
        BucketAllReduce(
            rank=rank,
            clock=DEVICE,
            bucket_bytes=(1_000_000, 3_000_000),
            durations_s=((0.0011, 0.001, 0.0009), (0.003,) * 3),
            missing=None,
        ),
        GradientSync(rank=rank, clock=DEVICE, rounds=(SYNC,) * 5, missing=None),
    ]


def story(extra: list[Any], *, ranks: int = 2) -> Story:
    windows = [window(rank, wall_s=NUM_STEPS * 0.0121) for rank in range(ranks)]
    return Story(windows=windows, extra=extra)


TWO_RANKS = story([*apart(0), *apart(1)])


@pytest.mark.promise("S2.3")
def test_the_three_measures_are_apart() -> None:
    launches = [replace(TWO_RANKS, replicate=replicate).launch() for replicate in range(3)]
    found = communication_of(launches)
    assert found.sync_difference.mean_s == pytest.approx(0.003)
    assert (found.exposed.mean_s, found.overlapped.mean_s) == pytest.approx((0.003, 0.001))
    assert found.standalone.mean_s == pytest.approx(0.004)
    # 2 (n - 1) / n of 4 MB in 4 ms over two ranks: 1 GB/s
    assert found.bus_bytes_per_s == pytest.approx(1e9)
    assert found.bucket_bytes == (1_000_000, 3_000_000)
    assert found.sync_difference.interval is not None


def test_what_was_not_measured_is_missing_with_its_reason() -> None:
    alone = communication_of([story([], ranks=1).launch()])
    assert (alone.sync_difference.mean_s, alone.sync_difference.missing) == (
        None,
        "a single device does not communicate",
    )
    reasons = [
        GradientSync(rank=0, clock="host", rounds=(), missing="a step of fsdp gathers"),
        CollectiveOverlap(
            rank=0, num_steps=5, collective_s=0.0, exposed_s=0.0, kernels=(), missing="no kernels to examine"
        ),
        BucketAllReduce(
            rank=0, clock="host", bucket_bytes=(), durations_s=(), missing="fsdp sends no buckets"
        ),
    ]
    found = communication_of([story(reasons).launch()])
    assert [found.sync_difference.missing, found.exposed.missing, found.standalone.missing] == [
        "a step of fsdp gathers",
        "no kernels to examine",
        "fsdp sends no buckets",
    ]
    assert found.exposed.mean_s is None
    one = communication_of([TWO_RANKS.launch()])
    assert one.exposed.mean_s == pytest.approx(0.003)
    assert one.exposed.missing == "one launch does not show how much launches vary (needs 2)"


def phases(found: PhaseValues | str) -> PhaseValues:
    assert isinstance(found, PhaseValues), found
    return found


@pytest.mark.promise("S3.13")
def test_phases_sum_to_the_step_and_the_residual_is_what_the_window_had_more() -> None:
    found = phases(phases_of([TWO_RANKS.launch()]))
    assert found.parts_s == pytest.approx(
        {
            "data": 0.0005,
            "forward": 0.002,
            "backward": 0.0045,
            "communication": 0.0035,
            "optimizer": 0.001,
            "host gap": 0.0005,
        }
    )
    assert found.sum_s == pytest.approx(0.012)
    assert found.residual_s == pytest.approx(0.0001)
    assert found.sum_s + found.residual_s == pytest.approx(0.0121)
    assert found.mark_overhead == pytest.approx(0.025)
    assert found.remark is None


def test_phases_say_what_they_hold() -> None:
    step = apart(0)[0]
    alone = phases(phases_of([story([replace(step, backward_without_sync_s=())], ranks=1).launch()]))
    assert (alone.communication_s, alone.communication_missing) == (
        None,
        "a single device does not communicate",
    )
    assert alone.backward_s == pytest.approx(0.008)
    shared = [replace(step, rank=rank, backward_without_sync_s=(), is_queued=False) for rank in (0, 1)]
    found = phases(phases_of([story(shared).launch()]))
    assert "is part of forward and backward" in str(found.communication_missing)
    assert "phases include waiting" in str(found.remark)
    captured = StepPhases(rank=0, clock=DEVICE, is_queued=False, missing="a captured graph is one launch")
    assert phases_of([story([captured], ranks=1).launch()]) == "a captured graph is one launch"


def test_exposed_is_what_runs_beside_nothing_computed_from_the_second_collective_on() -> None:
    commands = [
        DeviceCommand(name="nccl_all_reduce", begin_s=0.0, end_s=9.0),  # in which ranks met
        DeviceCommand(name="gemm", begin_s=10.0, end_s=14.0),
        DeviceCommand(name="ncclDevKernel_AllReduce_Sum_f32_RING_LL", begin_s=12.0, end_s=17.0),
        DeviceCommand(name="Memcpy DtoD", begin_s=15.0, end_s=16.0),
        DeviceCommand(name="adam", begin_s=17.0, end_s=18.0),
    ]
    found = overlap_of(commands, rank=0, missing=None)
    assert (found.collective_s, found.exposed_s) == (5.0, 3.0)
    assert found.kernels == ("ncclDevKernel_AllReduce_Sum_f32_RING_LL",)


STUDY: dict[str, Any] = {
    "suite": "scale",
    "scale": {"batch_sizes": [32], "num_devices": [1, 2, 4, 8], "laws": ["weak"], "breakdown_runs": 2},
    "model": {"name": "large"},
    "data": {},
    "monitoring": {"enabled": False},
    "run": {"repeats": 3},
}
SLOWDOWN = {1: 1.0, 2: 1.02, 4: 1.06, 8: 1.14}
"""1 + 0.02 (N - 1)."""


def study(
    tmp_path: Path, *, hosts_of_eight: int = 1, facts: Any = None, learns: dict[str, Any] | None = None
) -> Concluded:
    """A study by hand, whose steps are 10 ms on one device, and longer by Amdahl's law on more."""
    found = []
    for case in next_cases(RunConfig.model_validate(STUDY)):
        ranks, replicate = case.placement.num_ranks, case.replicate
        step_s = 0.010 * SLOWDOWN[ranks] * (1 + 0.002 * (replicate - 1))
        assert case.model_work.profiling.breakdown == (replicate < 2)
        windows = [
            window(
                rank,
                host=f"node{rank % (hosts_of_eight if ranks == 8 else 1)}",
                items=NUM_STEPS * 32,
                wall_s=NUM_STEPS * step_s,
                steps_s=NUM_STEPS * step_s,
                peak_allocated_bytes=40_000_000,
            )
            for rank in range(ranks)
        ]
        parts = MemoryParts(
            parameters_bytes=8_085_516,
            gradients_bytes=8_085_516,
            optimizer_bytes=16_171_032,
            communication_bytes=0,
        )
        memory = Memory(
            rank=0,
            estimate=parts,
            counted=parts,
            activations_bytes=1_000_000,
            activations_missing=None,
            device_used_bytes=None,
            device_used_missing="by hand",
        )
        taken = [record for rank in range(ranks) for record in apart(rank)] if replicate < 2 else []
        if ranks == 1 and taken:
            taken = [replace(taken[0], backward_without_sync_s=())]
        device = Device(kind="cuda", index=0, name="Small", uuid=None, memory_total_bytes=48_000_000)
        setups = [
            setup(rank, items_per_step=32, num_parameters=2_021_379, device=device) for rank in range(ranks)
        ]
        times = steady_times(NUM_STEPS, step_s)
        if facts is not None:
            taken = [Environment(host="node0", facts=facts), *taken]
        if learns is not None and ranks == 2:
            taken = [*taken, alike(0), alike(1, **learns)]
        extra = [memory, *taken]
        found.append(Story(case=case, windows=windows, setups=setups, times_s=times, extra=extra).records())
    return conclude(write_run(tmp_path, found, **STUDY))


def test_the_page_shows_them_apart_and_predicts_from_the_law(tmp_path: Path) -> None:
    done = study(tmp_path)
    rows = table_of(done, "Communication of a step")
    assert [row["devices"].text for row in rows] == ["2", "4", "8"]
    assert rows[0]["added by averaging"].text.startswith("3.00 ms (")
    assert (rows[0]["exposed"].text[:7], rows[0]["all-reduces alone"].text[:7]) == ("3.00 ms", "4.00 ms")
    assert [row["sum"].text for row in table_of(done, "Phases of a step")] == ["12.0 ms"] * 4
    memory = table_of(done, "Memory of the rank that uses the most")
    # 40 MB over 33,342,064 bytes
    assert memory[0]["measured over expected"].text == "1.20 ×"
    overheads = table_of(done, "Overhead of a step: time beyond its share of one device's step")
    assert [row["overhead"].text.split(" (")[0] for row in overheads] == ["200 µs", "600 µs", "1.40 ms"]
    title = "Predicted, not measured: extrapolated beyond the host, as if its own links continued"
    predicted = table_of(done, title)
    # 1 / (1 + 0.02 · 15), 1 / (1 + 0.02 · 31), 1 / (1 + 0.02 · 63)
    assert [row["efficiency"].text for row in predicted] == ["77 %", "62 %", "44 %"]
    assert {row["rests on"].text for row in predicted} == {"Amdahl's law"}
    laws = lines_of(done, "Scaling laws")
    assert any("Amdahl's law: fraction that cannot be divided: σ 0.02 (" in line for line in laws)
    assert any(
        "Amdahl's law, without 8 devices, predicts an efficiency of 88 % there, and 88 % was measured" in x
        for x in laws
    )
    charts = {section.title: section for section in done.page.sections if isinstance(section, Chart)}
    assert list(charts) == [
        "Throughput by devices",
        "Speed-up by devices",
        "Efficiency by devices",
        "Step times, batch 32, weak",
        "Phases of a step, batch 32, weak",
    ]
    speed_up, linear = charts["Speed-up by devices"].series
    assert are_figures_measures(done)
    ideal = {(linear.name, y) for _, y in linear.points}
    one_device = {("batch 32, weak", 1.0)}
    drawn = ("Throughput by devices", "Speed-up by devices", "Efficiency by devices", *list(charts)[-1:])
    assert set(unmeasured_marks(done, *drawn)) <= ideal | one_device
    assert linear.points == ((1.0, 1.0), (2.0, 2.0), (4.0, 4.0), (8.0, 8.0))
    assert all(low <= y <= high for (_, y), (low, high) in zip(speed_up.points, speed_up.ranges, strict=True))
    assert "host gap" in text_of(done)


def test_nothing_is_fitted_or_predicted_into_a_second_host(tmp_path: Path) -> None:
    done = study(tmp_path, hosts_of_eight=2)
    laws = lines_of(done, "Scaling laws")
    assert "batch 32, weak: interrupted between 4 and 8 devices, from 1 host to 2" in laws
    assert any(
        "nothing is predicted: the curve is interrupted between 4 and 8 devices" in line for line in laws
    )
    charts = {section.title: section for section in done.page.sections if isinstance(section, Chart)}
    names = [series.name for series in charts["Efficiency by devices"].series]
    assert names == ["batch 32, weak", "batch 32, weak, from 8 on"]
    assert [len(series.points) for series in charts["Efficiency by devices"].series] == [3, 1]


def test_the_files_say_which_measure_their_one_figure_is(tmp_path: Path) -> None:
    study(tmp_path)
    root = tmp_path / "examples" / "by-hand"
    (single,) = json.loads((root / "benchmark_large_single_gpu.json").read_text())
    multi = json.loads((root / "benchmark_large_multi_gpu.json").read_text())
    assert single["mean_communication_ms"] is None
    assert single["communication_missing"] == "a single device does not communicate"
    assert [run["communication_time_ms"] for run in single["detailed_runs"]] == [None] * 3
    assert multi[0]["mean_communication_ms"] == pytest.approx(3.0)
    assert multi[0]["communication_is"].startswith("sync_difference_ms: ")
    assert multi[0]["communication"]["standalone_ms"]["mean"] == pytest.approx(4.0)
    runs = [run["communication_time_ms"] for run in multi[0]["detailed_runs"]]
    assert runs[:2] == pytest.approx([3.0, 3.0])
    assert runs[2] is None, "the third launch took no steps apart"
    phases_ms = multi[0]["phases_ms"]
    assert phases_ms["host_gap"] == pytest.approx(0.5)


def alike(rank: int, **changes: Any) -> TrainingAgreement:
    norms = (2.0, 1.5, 1.8)
    told: dict[str, Any] = {
        "loss_together": (1.0, 0.9, 0.8),
        "loss_alone": (1.0, 0.9, 0.805),
        "gradient_norm_together": norms,
        "gradient_norm_alone": norms,
        "largest_weight_difference": 2e-5,
    }
    return TrainingAgreement(rank=rank, **{**told, **changes})


@pytest.mark.parametrize(
    ("changes", "is_alike"),
    [
        ({}, True),  # losses 0.005 apart
        ({"loss_alone": (1.0, 0.9, 0.811)}, False),
        ({"largest_weight_difference": 2e-4}, False),
        ({"gradient_norm_alone": (1.5, 2.0, 1.8)}, False),  # of another order: they do not correlate
        ({"gradient_norm_alone": (2.0, 1.5, float("nan"))}, False),
        # norms that stay as they are cannot correlate: they must be equal
        ({"gradient_norm_together": (2.0,) * 3, "gradient_norm_alone": (2.0,) * 3}, True),
        ({"gradient_norm_together": (2.0,) * 3, "gradient_norm_alone": (4.0,) * 3}, False),
    ],
)
def test_devices_that_learn_otherwise_are_told(changes: dict[str, Any], is_alike: bool) -> None:
    found = agreement_of([story([alike(0), alike(1, **changes)]).launch()])
    assert isinstance(found, Agreement)
    assert found.is_alike == is_alike


def test_where_nothing_is_learnt_nothing_is_alike() -> None:
    zeros = (0.0, 0.0, 0.0)
    blank = alike(0, gradient_norm_together=zeros, gradient_norm_alone=zeros)
    assert agreement_of([story([blank]).launch()]) == NOTHING_LEARNT
    split = TrainingAgreement(rank=0, missing="under fsdp")
    assert agreement_of([story([split]).launch()]) == "under fsdp"
    assert agreement_of([story([]).launch()]) is None


PAIRS = [{"index": 0, "peer_access": [1]}, {"index": 1, "peer_access": [0]}]


@pytest.mark.parametrize(
    ("devices", "line"),
    [
        (PAIRS, "node0: 2 devices, all 1 pairs copy directly (peer access)"),
        (
            [*PAIRS, {"index": 2, "peer_access": [0]}],
            "node0: 3 devices, 2 of 3 pairs copy only through host memory: 0-2, 1-2",
        ),
        (
            [{"index": 0}, {"index": 1}],
            "node0: 2 devices; whether they copy directly is not known: the framework does not report it",
        ),
    ],
)
def test_the_page_says_which_devices_copy_directly(devices: Any, line: str, tmp_path: Path) -> None:
    lines = lines_of(study(tmp_path, facts={"devices": devices}), "Topology")
    assert lines == [line, "copy speeds: gpuproof run probe --probe.name=link"]


def test_memory_over_the_margin_is_said(tmp_path: Path) -> None:
    done = study(tmp_path)
    # 40 of 48 MB, over the margin of 80 %
    assert table_of(done, "Memory of the rank that uses the most")[0]["of the device"].text == "83 %"
    assert any("over 80 % of a device's" in line for line in lines_of(done, "Advice, from what was measured"))


def test_a_study_whose_devices_learn_otherwise_is_suspect(tmp_path: Path) -> None:
    good = study(tmp_path / "good", learns={})
    (row,) = table_of(good, "One device and several, trained alike")
    assert (row["losses apart"].text, row["weights apart"].text, row["alike"].text) == (
        "5.0e-03",
        "2.0e-05",
        "yes",
    )
    assert "learns-otherwise" not in {doubt.code for doubt in good.result.doubts}
    bad = study(tmp_path / "bad", learns={"largest_weight_difference": 0.1})
    assert table_of(bad, "One device and several, trained alike")[0]["alike"].text == "NO"
    (doubt,) = (doubt for doubt in bad.result.doubts if doubt.code == "learns-otherwise")
    assert "2 devices do not learn the same as one (bs32-n2-weak)" in doubt.reason

"""What a report says of work: every share beside what it is of, and nothing where that is not known."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from gpuproof.hardware.boards import find_peak
from gpuproof.records.result import Measure
from gpuproof.records.run import Ceilings, CeilingTrial, Evaluation
from gpuproof.records.work.training import Pruned
from gpuproof.suites.recipe.exports import profile_json, work_json
from gpuproof.suites.recipe.page import roofline_picture
from gpuproof.suites.recipe.work import work_measures
from gpuproof.verdict.summary import RunSummary, summarize
from records_by_hand import CPU, H200, Story, case, setup, window

CEILINGS = Ceilings(
    rank=0,
    clock="device_event",
    trials=(
        # 1e12 operations in 1.25 ms, at best, are 800 TFLOP/s; 3e9 bytes in 0.75 ms 4 TB/s.
        CeilingTrial(
            what="gemm", size=(8192, 8192, 8192), dtype="bfloat16", work=1e12, durations_s=(1.25e-3, 1.5e-3)
        ),
        CeilingTrial(what="triad", size=(10**9,), dtype="float32", work=3e9, durations_s=(0.75e-3, 0.75e-3)),
    ),
    missing=None,
)


def summary(*extra: Any, precision: str = "bf16", device: Any = H200, **built: Any) -> RunSummary:
    """100 steps in 1 s."""
    records = Story(
        windows=[window()],
        setups=[setup(device=device, precision=precision, **built)],
        case=case(precision=precision),
    ).records()
    return summarize(
        [replace(records, records=(*records.records, *extra))], num_planned=1, find_peak=find_peak
    )


def measures(*extra: Any, **built: Any) -> dict[str, Measure]:
    return {measure.name: measure for measure in work_measures(summary(*extra, **built))}


def test_utilisation_stands_beside_formula_peak_type_density_and_source() -> None:
    # 100 steps a second of 3.958e12 FLOPs are 395.8 TFLOP/s, two fifths of 989.5.
    found = measures(flops_per_step=3.958e12, flops_per_step_counted=3.958e12)
    assert found["model FLOP/s"].value == pytest.approx(395.8e12)
    assert (
        found["model FLOP/s"].detail
        == "per device: 3.96 TFLOP per step by closed form; torch counts the same"
    )
    mfu = found["MFU"]
    assert mfu.value == pytest.approx(0.4)
    for part in (
        "model FLOP/s over",
        "989.5 TFLOP/s",
        "the dense bf16 peak",
        "data sheet",
        "https://",
        "half the sparse value",
    ):
        assert part in mfu.detail


@pytest.mark.parametrize(
    ("precision", "share", "dtype"),
    [("tf32", 0.8, "tf32"), ("amp", 0.4, "fp16"), ("fp8", 0.2, "fp8"), ("bf16", 0.4, "bf16")],
)
def test_each_precision_is_held_against_its_own_arithmetic(precision: str, share: float, dtype: str) -> None:
    mfu = measures(precision=precision, flops_per_step=3.956e12)["MFU"]
    assert mfu.value == pytest.approx(share, rel=1e-3)
    assert f"the dense {dtype} peak" in mfu.detail


def test_a_step_over_the_peak_is_invalid_in_its_own_precision() -> None:
    # 800 TFLOP/s is far over the tf32 peak and under the bf16 one.
    assert [f.code for f in summary(precision="tf32", flops_per_step=8e12).doubts] == ["over-ceiling"]
    assert summary(precision="tf32", flops_per_step=8e12).validity == "INVALID"
    assert summary(precision="bf16", flops_per_step=8e12).validity == "VALID"


def test_an_unknown_device_has_a_rate_and_no_share() -> None:
    found = measures(device=replace(H200, name="NVIDIA H2000"), flops_per_step=1e12, bytes_per_step=1e9)
    assert set(found) == {"model FLOP/s", "memory traffic", "arithmetic intensity"}
    assert "no MFU: no known bf16 peak for NVIDIA H2000" in found["model FLOP/s"].detail
    assert "no percentage: no known memory peak for NVIDIA H2000" in found["memory traffic"].detail


def test_work_without_a_closed_form_is_taken_from_the_counter() -> None:
    found = measures(flops_per_step=None, flops_per_step_counted=9.895e11)
    assert found["MFU"].value == pytest.approx(0.1)
    assert "counted by torch" in found["model FLOP/s"].detail
    assert not measures(flops_per_step=None)


def test_sparsity_is_that_of_the_least_pruned_rank_with_what_was_asked_for() -> None:
    found = Pruned(
        rank=0,
        method="movement",
        target_sparsity=0.7,
        end_step=75,
        num_updates=103,
        num_weights=1000,
        num_zero=700,
        num_masked=700,
        masks_sha256="0a",
        buffers_bytes=9000,
    )
    told = measures(found, replace(found, rank=1, num_zero=699))
    assert told["sparsity"].value == 0.699
    assert told["sparsity"].detail == (
        "movement pruning, target 70 % at update 75: 699 of 1,000 weights are zero after update 103"
    )
    assert (told["pruning memory"].value, told["pruning memory"].unit) == (9000, "bytes")
    assert "sparsity" not in measures()


def test_why_nothing_was_counted_is_said() -> None:
    text = measures(flops_per_step=1e12, flops_not_counted="no counter")["model FLOP/s"].detail
    assert text.endswith("by closed form (not counted: no counter)")
    text = measures(flops_per_step=1e12, flops_per_step_counted=1.2e12)["model FLOP/s"].detail
    assert text.endswith("torch counts 1.20 TFLOP")


def test_traffic_and_intensity_where_bytes_are_known() -> None:
    # 100 steps a second of 24e9 bytes are 2.4 of the 4.8 TB/s; 96e9 FLOPs over them are 4 a byte.
    found = measures(flops_per_step=96e9, bytes_per_step=24e9)
    assert found["memory bandwidth use"].value == pytest.approx(0.5)
    assert "4.80 TB/s" in found["memory bandwidth use"].detail
    assert found["arithmetic intensity"].value == pytest.approx(4.0)
    assert "memory bandwidth use" not in measures(flops_per_step=96e9)


def test_shares_of_measured_ceilings_stand_apart_from_those_of_the_data_sheet() -> None:
    found = measures(CEILINGS, flops_per_step=2e12, bytes_per_step=24e9)
    # 200 of 800 TFLOP/s and 2.4 of 4 TB/s; 83 FLOP/byte is under the ridge of 200. The median of 1.25 and
    # 1.5 ms is 1.375, a rate of 10/11 of the best.
    assert found["of GEMM ceiling"].value == pytest.approx(0.25)
    assert found["of memory ceiling"].value == pytest.approx(0.6)
    assert found["MFU"].value == pytest.approx(200 / 989.5)
    assert "product of 8,192 × 8,192 × 8,192, best of 2, median 9.1 % below" in found["GEMM ceiling"].detail
    assert found["arithmetic intensity"].detail.startswith("memory is the limit")
    assert "meet at 200 FLOP/byte" in found["arithmetic intensity"].detail


def test_evaluations_are_weighed_by_their_samples() -> None:
    ranks = [
        Evaluation(rank=0, samples=100, mean_loss=1.0, accuracy=0.5, missing=None),
        Evaluation(rank=1, samples=300, mean_loss=2.0, accuracy=0.9, missing=None),
    ]
    found = measures(*ranks)
    assert found["evaluation loss"].value == pytest.approx(1.75)
    assert found["accuracy"].value == pytest.approx(0.8)
    assert "400 samples" in found["accuracy"].detail
    assert "no samples are held out" in found["accuracy"].detail
    unseen = Evaluation(rank=0, samples=50, mean_loss=3.0, accuracy=0.4, missing=None, is_held_out=True)
    found = measures(*ranks, unseen)
    assert (found["accuracy"].value, found["held-out accuracy"].value) == pytest.approx((0.8, 0.4))
    assert found["held-out evaluation loss"].value == pytest.approx(3.0)
    assert "no samples are held out" not in found["accuracy"].detail
    assert "50 samples that no step used" in found["held-out accuracy"].detail
    regression = Evaluation(rank=0, samples=100, mean_loss=1.0, accuracy=None, missing="a regression")
    assert set(measures(regression)) - set(measures()) == {"evaluation loss"}
    errors = [replace(regression, samples=n, mean_absolute_error=x) for n, x in ((100, 0.5), (300, 0.7))]
    assert measures(*errors)["mean absolute error"].value == pytest.approx(0.65)


def test_the_summary_file_says_what_a_share_is_of() -> None:
    found = work_json(summary(CEILINGS, flops_per_step=3.958e12, bytes_per_step=24e9))
    assert found["mfu"] == pytest.approx(0.4)
    assert (found["mfu_peak"]["dtype"], found["mfu_peak"]["density"]) == ("bf16", "dense")
    assert found["memory_bandwidth_use"] == pytest.approx(0.5)
    assert found["measured_ceilings"]["compute"]["value_per_s"] == pytest.approx(800e12)
    unknown = work_json(summary(device=CPU, flops_per_step=1e9))
    assert (unknown["mfu"], unknown["mfu_peak"], unknown["memory_bandwidth_use"]) == (None, None, None)


def test_without_a_trace_communication_is_null_with_a_reason() -> None:
    found = profile_json(None)
    assert (found["comm_exposed_ms"], found["comm_kernel_ms"], found["profile"]) == (None, None, None)
    assert "profiling.enabled" in found["communication_missing"]["comm_exposed_ms"]


def test_the_roofline_has_the_measured_ceilings_the_data_sheet_and_the_run() -> None:
    # 100 steps a second of 96e9 FLOPs and 24e9 bytes: 9.6 TFLOP/s at 4 FLOP a byte.
    picture = roofline_picture(summary(CEILINGS, flops_per_step=96e9, bytes_per_step=24e9))
    assert picture is not None
    (chart,) = picture.charts
    measured, sheet, run = chart.series
    assert measured.name == "measured: matrix products 800 TFLOP/s, memory 4.00 TB/s"
    assert measured.points[1] == pytest.approx((200.0, 800e12))
    assert measured.points[0][1] == pytest.approx(measured.points[0][0] * 4e12)
    assert sheet.name.startswith("data sheet: matrix products 990 TFLOP/s")
    assert run.points[0] == pytest.approx((4.0, 9.6e12))
    (ridge,) = chart.references
    assert (ridge.label, ridge.x) == ("the ceilings meet at 200 FLOP/byte", 200.0)


def test_a_run_without_known_bytes_is_a_level_line_and_without_ceilings_there_is_no_roofline() -> None:
    picture = roofline_picture(summary(CEILINGS, flops_per_step=96e9, bytes_per_step=None))
    assert picture is not None
    _, level = picture.charts[0].references
    assert level.label == "this run: 9.60 TFLOP/s, its intensity is unknown"
    assert level.y == pytest.approx(9.6e12)
    assert roofline_picture(summary(flops_per_step=96e9)) is None

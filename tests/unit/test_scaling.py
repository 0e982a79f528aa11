"""One device against several: the rule of thumb, speed-ups of launches by hand, what is not recommended."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from concluding import doubt_of, table_of, text_of
from gpuproof.base.errors import UsageError
from gpuproof.campaign.conclude import conclude
from gpuproof.comparison.winners import ComparedSide
from gpuproof.config.models import RunConfig
from gpuproof.records.case import TrainingWork
from gpuproof.suites.base import HostPlace, launch_key
from gpuproof.suites.scale import SUITE
from gpuproof.suites.scale.advice import advise_before
from gpuproof.suites.scale.plan import read_options, scale_points
from gpuproof.suites.scale.speed_up import Thresholds, advise, speed_up
from planning import next_cases
from records_by_hand import write_run
from studies_by_hand import NO_DATA, REPEATS, concluded, config, launches, sections

TENSORFLOW = {
    "framework": "tensorflow",
    "reduction": "hierarchical_copy",
    "precision": "fp32",
    "optimizer": "Adam",
}


@pytest.mark.parametrize(
    ("parameters", "batch", "advice", "reason"),
    [
        (999_999, 128, "no", "Model too small (999,999 params)"),
        (1_000_000, 127, "no", "Batch size 127 too small for medium model"),
        (1_000_000, 128, "evaluate", "Medium model may benefit with large batch"),
        (4_999_999, 128, "evaluate", "Medium model may benefit with large batch"),
        (5_000_000, 16, "benchmark", "Model in 5M-10M param range - test required"),
        (9_999_999, 999, "benchmark", "Model in 5M-10M param range - test required"),
        (10_000_000, 63, "no", "Increase batch size for large model efficiency"),
        (10_000_000, 64, "yes", "Large model (10,000,000 params) benefits"),
    ],
)
@pytest.mark.promise("S2.13", "S2.14")
def test_the_rule_of_thumb_is_the_published_table(
    parameters: int, batch: int, advice: str, reason: str
) -> None:
    found = advise(parameters, batch, Thresholds())
    assert (found.advice, found.reason) == (advice, reason)


@pytest.mark.promise("S2.13")
def test_the_thresholds_of_a_recipe_count_before_anything_is_measured() -> None:
    assert advise_before(config(batch_sizes=[64])).reason == "Batch size 64 too small for medium model"
    lower = config(batch_sizes=[64], medium_model_max_params=1_500_000, large_model_min_params=2_000_000)
    assert advise_before(lower).reason == "Large model (2,021,379 params) benefits"


def test_each_batch_is_measured_on_one_device_once_and_by_both_laws_on_more() -> None:
    options = read_options(config(batch_sizes=[10, 32], num_devices=[4, 1, 2]))
    points = {point.case_id: point.samples_per_rank for point in scale_points(options)}
    assert points == {
        "bs10-n1": 10,
        "bs10-n2-strong": 5,
        "bs10-n2-weak": 10,
        "bs10-n4-weak": 10,  # 10 samples do not divide by 4
        "bs32-n1": 32,
        "bs32-n2-strong": 16,
        "bs32-n2-weak": 32,
        "bs32-n4-strong": 8,
        "bs32-n4-weak": 32,
    }


@pytest.mark.promise("S2.12")
def test_under_tensorflow_one_process_has_all_devices() -> None:
    of = RunConfig.model_validate(
        {**sections(num_devices=[1, 2], laws=["strong"]), "training": TENSORFLOW, "run": {"repeats": 1}}
    )
    cases = {case.case_id: case for case in next_cases(of)}
    assert set(cases) == {"bs32-n1", "bs32-n2-strong"}
    for case_id, devices in (("bs32-n1", 1), ("bs32-n2-strong", 2)):
        work = cases[case_id].work
        assert isinstance(work, TrainingWork)
        assert (cases[case_id].placement.num_ranks, work.num_replicas) == (1, devices)
        assert work.data.batch_size * devices == 32
        assert work.training.reduction == "hierarchical_copy"


@pytest.mark.promise("S2.4", "S2.16")
def test_launches_are_fresh_and_interleaved_replicate_by_replicate() -> None:
    cases = next_cases(config(laws=["strong"], batch_sizes=[16, 32, 64, 128]))
    replicates = [case.replicate for case in cases]
    assert replicates == sorted(replicates)
    assert {case.start for case in cases} == {"exec"}
    orders = [[case.case_id for case in cases if case.replicate == r] for r in range(REPEATS)]
    assert all(sorted(order) == sorted(orders[0]) for order in orders)
    assert len({tuple(order) for order in orders}) == REPEATS, "each replicate has an order of its own"
    ranks = {case.case_id: case.placement.ranks_per_host for case in cases}
    assert (ranks["bs16-n1"], ranks["bs16-n2-strong"]) == (1, 2)


@pytest.mark.parametrize(
    ("block", "more"),
    [
        ({"batch_sizes": [3], "num_devices": [2], "laws": ["strong"]}, {}),
        ({}, {"kind": "inference"}),
        ({}, {"matrix": {"data.batch_size": [1, 2]}}),
    ],
)
def test_what_is_no_scaling_study_is_refused(block: Mapping[str, Any], more: Mapping[str, Any]) -> None:
    wrong = RunConfig.model_validate({**sections(**block), **more})
    with pytest.raises(UsageError):
        SUITE.begin(wrong, (HostPlace(name=""),))
    with pytest.raises(UsageError):
        SUITE.begin(config(), (HostPlace(name="node1"), HostPlace(name="node2")))


HOSTS = tuple(HostPlace(name=name, num_devices=devices) for name, devices in (("a", 2), ("b", 4), ("c", 2)))


def test_over_hosts_a_point_has_the_first_that_hold_it_one_launch_at_a_time() -> None:
    state = SUITE.begin(config(num_devices=[1, 2, 4, 6], batch_sizes=[48], laws=["strong"]), HOSTS)
    asked = list(SUITE.next(state, {}, None))
    placed = {
        (case.placement.num_ranks, case.placement.hosts, case.placement.ranks_per_host) for case in asked
    }
    # as many ranks on each host as the smallest has devices
    assert placed == {(1, ("a",), 1), (2, ("a",), 2), (4, ("a", "b"), 2), (6, ("a", "b", "c"), 2)}
    assert {case.placement.num_hosts for case in asked} == {1, 2, 3}
    # each launch has the first host: what else is free is left alone, so that the drawn order is kept
    assert list(SUITE.next(state, {launch_key(asked[0]): asked[0]}, None)) == []


@pytest.mark.parametrize("number", [3, 8])
def test_numbers_of_devices_that_are_no_whole_hosts_are_refused(number: int) -> None:
    with pytest.raises(
        UsageError, match=f"{number} devices do not fill whole hosts: 3 hosts with 2 devices each"
    ):
        SUITE.begin(config(num_devices=[1, number], batch_sizes=[48]), HOSTS)


@pytest.mark.promise("S2.2", "S2.18", "S2.23")
def test_a_speed_up_is_that_of_the_step_times_by_hand(tmp_path: Path) -> None:
    # 32 samples in 10 ms on one device, 2 × 16 in 6 ms on two: 3,200 and 5,333 samples/s, 1.667 times
    done = concluded(
        tmp_path, {"bs32-n1": (0.010, 0.0101, 0.0099), "bs32-n2-strong": (0.006, 0.00606, 0.00594)}
    )
    (alone, two) = table_of(done, "Scaling")
    assert alone["throughput"].text == "3,200 samples/s"
    assert two["speed-up"].text.startswith("1.67 × (1.5")
    assert two["efficiency"].text == "83 %"
    assert two["recommendation"].text == "Multi-GPU beneficial"
    assert "Multi-GPU provides significant performance benefits" in text_of(done)
    assert done.result.headline.startswith("1.67 × on 2 devices (strong, 1.5")
    root = tmp_path / "examples" / "by-hand"
    (single,) = json.loads((root / "benchmark_large_single_gpu.json").read_text())
    (multi,) = json.loads((root / "benchmark_large_multi_gpu.json").read_text())
    assert single["mean_samples_per_sec"] == pytest.approx(3200, rel=1e-3)
    assert multi["mean_samples_per_sec"] == pytest.approx(16_000 / 3, rel=1e-3)
    low, high = multi["confidence_interval_95"]
    assert low < multi["mean_samples_per_sec"] < high
    assert (single["mean_communication_ms"], single["communication_missing"]) == (
        None,
        "a single device does not communicate",
    )
    assert (multi["model_parameters"], len(multi["detailed_runs"])) == (2_021_379, REPEATS)
    report = (root / "comparison_report_large.md").read_text()
    assert "| 32 | 3,200." in report
    assert "| Multi-rank beneficial |" in report  # these launches are of a processor
    assert "Heuristic, not measured here" in report


def test_the_report_names_the_device_and_the_verdict_and_its_rates_give_the_ratio(tmp_path: Path) -> None:
    done = concluded(tmp_path, {"bs32-n1": (0.010, 0.0125, 0.016), "bs32-n2-strong": (0.016, 0.025, 0.02)})
    report = (tmp_path / "examples" / "by-hand" / "comparison_report_large.md").read_text()
    assert "device: CPU, verdict: SUSPECT" in report
    assert "- SUSPECT: launches differ: the throughput" in report
    assert "- CPU run: not comparable with any GPU" in report
    assert "## 2 ranks, strong scaling" in report
    assert "| 2 GPUs" not in report
    # 32 samples in 12.6 ms and in 20 ms, the geometric means; means of rates are 2,587 and 1,627 samples/s
    (single,) = json.loads(
        (tmp_path / "examples" / "by-hand" / "benchmark_large_single_gpu.json").read_text()
    )
    assert single["mean_samples_per_sec"] == pytest.approx((3200 + 2560 + 2000) / 3, rel=1e-3)
    assert "| 32 | 2,539.8 | 1,600.0 | 0.63x (" in report
    assert "elsewhere throughput is the total work of all launches divided by their total time" in report
    assert "a speed-up is the ratio of the geometric means of launches; throughput is" in text_of(done)


def test_no_interval_of_a_rate_goes_below_zero(tmp_path: Path) -> None:
    concluded(tmp_path, {"bs32-n1": (0.010, 0.1, 0.1), "bs32-n2-strong": (0.01, 0.2, 0.2)})
    for side in ("single", "multi"):
        path = tmp_path / "examples" / "by-hand" / f"benchmark_large_{side}_gpu.json"
        (found,) = json.loads(path.read_text())
        assert found["confidence_interval_95"][0] == 0


@pytest.mark.parametrize(
    ("several", "says"),
    [
        ((0.0105, 0.01051, 0.01049), "Marginal difference"),
        ((0.013, 0.0131, 0.0129), "Single GPU preferred"),
        ((0.008, 0.0125, 0.0101), "no difference shown (only a factor of "),
        ((0.0098, 0.0103, 0.0100), "no difference shown (one of "),
        ((0.002, 0.00201, 0.00199), "cannot tell: 2 devices cannot be 5.00 times as fast as one"),
    ],
)
@pytest.mark.promise("S2.4", "S2.23")
def test_a_recommendation_is_given_only_where_the_interval_excludes_one(
    several: tuple[float, ...], says: str, tmp_path: Path
) -> None:
    done = concluded(tmp_path, {"bs32-n1": (0.010, 0.01001, 0.00999), "bs32-n2-strong": several})
    assert table_of(done, "Scaling")[1]["recommendation"].text.startswith(says)
    if says.startswith("cannot tell"):
        assert done.result.headline.startswith("2 devices: cannot tell")
        assert doubt_of(done, "super-linear").validity == "SUSPECT"
        assert done.result.validity == "SUSPECT"


def test_a_launch_that_stands_apart_is_named_and_kept(tmp_path: Path) -> None:
    steady = (0.010, 0.0101, 0.0099, 0.01005, 0.00995, 0.020)
    two = (*(step_s * 0.6 for step_s in steady[:5]), 0.00601)
    of = {**sections(laws=["strong"]), "run": {"repeats": 6}}
    records = launches(RunConfig.model_validate(of), {"bs32-n1": steady, "bs32-n2-strong": two})
    text = text_of(conclude(write_run(tmp_path, records, **{**NO_DATA, **of})))
    assert "bs32-n1: outliers (modified Z-score over 3.5; not excluded): launch 6;" in text
    assert "the limit flags some equal launches by chance: of 3 in 29 %" in text


@pytest.mark.parametrize("tails", ["normal", "t4", "quantised"])
@pytest.mark.parametrize(("spreads", "launches_of"), [((0.02, 0.02), (5, 5)), ((0.01, 0.05), (5, 3))])
def test_equal_sides_are_called_different_no_more_often_than_said(
    tails: str, spreads: tuple[float, float], launches_of: tuple[int, int]
) -> None:
    rng = np.random.default_rng(5)
    num_studies, num_rows = 1000, 4
    wrong = 0
    for _ in range(num_studies):
        wrong += any(
            speed_up(
                *(side(rng, tails, spread, num) for spread, num in zip(spreads, launches_of, strict=True)),
                num_devices=2,
                confidence=1 - 0.05 / num_rows,
            ).excludes_one
            for _ in range(num_rows)
        )
    assert wrong / num_studies <= 0.05 + 0.015  # two standard errors of a thousand studies


def side(rng: np.random.Generator, tails: str, spread: float, num_launches: int) -> ComparedSide:
    """Return throughputs of launches of one program."""
    drawn = rng.standard_t(4, num_launches) / 2**0.5 if tails == "t4" else rng.normal(0, 1, num_launches)
    rates = 1000 * np.exp(spread * drawn)
    values = [float(rate) for rate in (np.round(rates / 5) * 5 if tails == "quantised" else rates)]
    return ComparedSide(name="", values=values)


def test_without_several_devices_there_is_no_comparison(tmp_path: Path) -> None:
    done = concluded(tmp_path, {"bs32-n1": (0.010, 0.0101, 0.0099)}, num_devices=[1])
    assert done.result.exit_code == 0
    root = tmp_path / "examples" / "by-hand"
    assert (root / "benchmark_large_single_gpu.json").exists()
    assert not list(root.glob("*multi*"))
    assert not list(root.glob("comparison*"))

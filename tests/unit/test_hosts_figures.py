"""The figures of several hosts, against numbers worked out by hand."""

from __future__ import annotations

import pytest

from gpuproof.analysis.hosts import HostMeasured, summarize_fleet
from gpuproof.suites.by_host.exports import HostTests, aggregate


def host(name: str, per_device: float, *, gpu: str = "H100", devices: int = 1, **more: float) -> HostMeasured:
    return HostMeasured(
        host=name,
        gpu_type=gpu,
        num_devices=devices,
        items_per_s_total=per_device * devices,
        items_total=1000 * devices,
        energy_j=more.get("energy_j"),
        price_per_hour=more.get("price_per_hour"),
    )


def test_middle_and_spread_are_of_a_device_whatever_a_host_has_of_them() -> None:
    fleet = summarize_fleet([host("a", 100, devices=8), host("b", 110), host("c", 96)], num_hosts=4)
    spread = fleet.items_per_s_per_device
    assert spread is not None
    # the deviations from 100 are 0, 10 and 4
    assert (spread.median, spread.mad, spread.lowest, spread.highest) == (100, 4, 96, 110)
    assert fleet.items_per_s_total == 800 + 110 + 96
    assert (fleet.num_hosts, fleet.num_measured, fleet.num_devices) == (4, 3, 10)


def test_the_host_that_stands_apart_is_named() -> None:
    rates = {"a": 100.0, "b": 101.0, "c": 99.0, "d": 102.0, "e": 98.0, "slow": 70.0}
    fleet = summarize_fleet([host(name, rate) for name, rate in rates.items()], num_hosts=6)
    (outlier,) = fleet.outliers
    # median 99.5; deviations 0.5 1.5 0.5 2.5 1.5 29.5, so MAD 1.5 and 0.6745 · 29.5 / 1.5 = 13.27
    assert outlier.host == "slow"
    assert outlier.modified_z == pytest.approx(-13.265, abs=1e-3)
    assert outlier.relative_difference == pytest.approx(70 / 99.5 - 1)


def test_of_four_hosts_the_one_far_from_three_that_agree_is_named() -> None:
    fleet = summarize_fleet(
        [host(name, rate) for name, rate in zip("abcd", (100, 100, 101, 10), strict=True)], num_hosts=4
    )
    (outlier,) = fleet.outliers
    assert (outlier.host, outlier.modified_z) == ("d", None)
    assert outlier.relative_difference == pytest.approx(-0.9)
    standard = fleet.types[0].standard
    assert standard is not None
    assert (standard.basis, standard.num_without_interval) == ("launches", 4)


def test_types_are_compared_with_each_other_and_not_mixed() -> None:
    slow = [host(f"a{i}", 50 + i / 10, gpu="A100") for i in range(5)]
    fast = [host(f"h{i}", 100 + i / 10, gpu="H100") for i in range(5)]
    fleet = summarize_fleet([*slow, *fast], num_hosts=10)
    assert [kind.gpu_type for kind in fleet.types] == ["H100", "A100"]
    assert [kind.relative_to_fastest for kind in fleet.types] == [1.0, pytest.approx(50.2 / 100.2)]
    assert fleet.outliers == ()


def test_energy_and_cost_are_of_all_hosts_or_of_none() -> None:
    hosts = [
        host("a", 500, energy_j=2000.0, price_per_hour=3.6),
        host("b", 500, energy_j=4000.0, price_per_hour=7.2),
    ]
    fleet = summarize_fleet(hosts, num_hosts=2)
    assert fleet.energy_j_per_item == 3.0  # 6000 J for 2000 samples
    assert fleet.cost_per_million_items == pytest.approx(
        3.0
    )  # 10.8 an hour is 0.003 a second for 1000 samples
    assert hosts[0].cost_per_million_items == pytest.approx(2.0)
    partly = summarize_fleet([*hosts, host("c", 500)], num_hosts=3)
    assert (partly.energy_j_per_item, partly.cost_per_million_items) == (None, None)
    assert partly.cost_missing == "price_per_hour is given for 2 of 3 hosts"
    assert partly.energy_missing == "energy is known of 2 of 3 hosts"


def test_a_fleet_that_measured_nothing_has_no_figures() -> None:
    fleet = summarize_fleet([], num_hosts=3)
    assert (fleet.items_per_s_total, fleet.items_per_s_per_device, fleet.types) == (None, None, ())
    assert fleet.energy_j_per_item is None


def test_the_aggregate_of_a_suite_has_lambdactls_keys() -> None:
    def ended(kind: str, rate: float | None, *, success: bool = True) -> dict[str, object]:
        return {"test_type": kind, "throughput_samples_per_second": rate, "success": success}

    first = {"system_info": {"hostname": "x"}, "results": [ended("training", 10.0), ended("inference", 30.0)]}
    second = {"results": [ended("training", 20.0), ended("training", None, success=False)]}
    found = aggregate(
        [
            HostTests(host="a", document=first),
            HostTests(host="b", document=second),
            HostTests(host="c", document=None, stage="setup", error="no answer"),
            HostTests(host="d", document=None, stage="parse", error="damaged"),
        ],
        timestamp="2026-11-20T12:00:00+00:00",
    )
    assert found["summary"] == {
        "total_instances": 4,
        "successful_instances": 2,
        "failed_instances": 2,
        "success_rate": 0.5,
        "timestamp": "2026-11-20T12:00:00+00:00",
    }
    assert found["performance_summary"] == {
        "total_tests": 4,
        "training_tests": 3,
        "inference_tests": 1,
        "training": {"avg_throughput": 15.0, "max_throughput": 20.0, "min_throughput": 10.0},
        "inference": {"avg_throughput": 30.0, "max_throughput": 30.0, "min_throughput": 30.0},
    }
    assert [failed["stage"] for failed in found["failed_results"]] == ["setup", "parse"]
    tests = [each for came in found["successful_results"] for each in came["results"]]
    assert [each["source_hostname"] for each in tests] == ["a", "a", "b", "b"]
    assert found["successful_results"][0]["system_info"] == {"hostname": "x"}

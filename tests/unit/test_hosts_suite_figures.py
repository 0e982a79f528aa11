"""A suite's figures over several hosts, against numbers worked out by hand."""

from __future__ import annotations

import pytest

from gpuproof.suites.by_host.hosts import HostMeasured
from gpuproof.suites.by_host.hosts_suite import NO_COMMON_TEST, summarize_suite


def host(name: str, rate: float, *, gpu: str = "H100", devices: int = 1) -> HostMeasured:
    return HostMeasured(
        host=name,
        gpu_type=gpu,
        num_devices=devices,
        items_per_s_total=rate * devices,
        items_total=1000,
    )


def test_a_host_is_set_against_its_type_test_by_test() -> None:
    found = summarize_suite(
        {
            "one": [host("a", 100), host("b", 300, devices=8)],  # median 200: 0.5 and 1.5
            "two": [host("a", 400), host("b", 100, devices=8)],  # median 250: 1.6 and 0.4
            "three": [host("a", 7)],  # of b nothing is known: no ratio
        },
        num_hosts=3,
    )
    assert (found.num_hosts, found.num_measured) == (3, 2)
    assert [(speed.host, speed.num_tests) for speed in found.hosts] == [("a", 2), ("b", 2)]
    # the square roots of 0.5 · 1.6 and 1.5 · 0.4
    assert [speed.relative_to_type for speed in found.hosts] == pytest.approx([0.8**0.5, 0.6**0.5])
    (kind,) = found.types
    assert (kind.num_hosts, kind.relative_to_fastest, found.types_missing) == (2, 1.0, None)
    assert [test.summary.num_measured for test in found.tests] == [2, 2, 1]


def test_types_are_compared_over_the_tests_that_all_of_them_measured() -> None:
    found = summarize_suite(
        {
            "one": [host("a", 100, gpu="A100"), host("h", 200)],  # 1/2
            "two": [host("a", 100, gpu="A100"), host("h", 800)],  # 1/8
            "three": [host("h", 1)],
        },
        num_hosts=2,
    )
    assert [(kind.gpu_type, kind.num_tests) for kind in found.types] == [("H100", 2), ("A100", 2)]
    assert [kind.relative_to_fastest for kind in found.types] == [1.0, pytest.approx(0.25)]
    assert found.hosts == ()  # nobody has another of its type


def test_a_host_whose_gpu_has_another_name_in_one_test_is_judged_by_the_others() -> None:
    found = summarize_suite(
        {
            "one": [host("a", 100, gpu="x"), host("b", 100), host("c", 100)],
            "two": [host("a", 100), host("b", 100), host("c", 100)],
        },
        num_hosts=3,
    )
    assert [(speed.host, speed.num_tests) for speed in found.hosts] == [("b", 2), ("c", 2), ("a", 1)]
    assert {kind.gpu_type: kind.num_tests for kind in found.overall} == {"x": 1, "H100": 2}


def test_types_without_a_common_test_are_not_compared() -> None:
    found = summarize_suite({"one": [host("a", 1, gpu="A100")], "two": [host("h", 2)]}, num_hosts=2)
    assert {kind.relative_to_fastest for kind in found.types} == {None}
    assert found.types_missing == NO_COMMON_TEST


def test_a_host_that_stands_apart_is_named_once_with_its_tests() -> None:
    usual = {"a": 100.0, "b": 101.0, "c": 99.0, "d": 102.0, "e": 98.0}
    one = [host(name, rate) for name, rate in usual.items()]
    found = summarize_suite(
        {"one": [*one, host("slow", 30)], "two": [*one, host("slow", 20)], "three": [*one, host("slow", 80)]},
        num_hosts=6,
    )
    (apart,) = found.apart
    assert (apart.host, apart.gpu_type) == ("slow", "H100")
    assert [name for name, _ in apart.tests] == ["two", "one"]  # the farthest first
    # median 99.5, MAD 1.5, so 0.6745 · 79.5 / 1.5 and 0.6745 · 69.5 / 1.5
    assert [outlier.modified_z for _, outlier in apart.tests] == pytest.approx([-35.748, -31.251], abs=1e-3)
    assert apart.overall is not None
    assert apart.overall.relative_difference == pytest.approx((0.3 * 0.2 * 0.8) ** (1 / 3) / 0.995 - 1)


def test_a_host_that_is_slow_everywhere_is_named_by_its_mean() -> None:
    rates = {"a": 100.0, "b": 100.5, "c": 99.5, "d": 100.2, "e": 99.9, "f": 100.1, "g": 99.7, "slow": 90.0}
    measured = [host(name, rate) for name, rate in rates.items()]
    found = summarize_suite({f"test {i}": measured for i in range(12)}, num_hosts=8)
    (apart,) = found.apart
    assert apart.host == "slow"
    assert apart.overall is not None
    # one test's limit for 8 hosts is 25, the mean's 7.9
    assert apart.overall.modified_z == pytest.approx(-0.67449 * 9.95 / 0.25, rel=1e-3)


def test_a_host_that_lacks_tests_is_not_judged_by_the_mean() -> None:
    usual = [host(name, 100 + i / 10) for i, name in enumerate("abcdefg")]
    tests = {f"test {i}": [*usual, *([host("short", 80)] if i < 3 else [])] for i in range(12)}
    (overall,) = summarize_suite(tests, num_hosts=8).overall
    assert (overall.num_tests, overall.incomplete) == (12, ("short",))
    assert overall.judged.standard is not None
    assert overall.judged.standard.num_hosts == 7


def test_of_two_hosts_one_is_slower_and_none_stands_apart() -> None:
    tests = {name: [host("a", 100), host("b", 50, devices=8)] for name in ("one", "two")}
    found = summarize_suite(tests, num_hosts=2)
    assert found.apart == ()
    (overall,) = found.overall
    assert overall.judged.slower is not None
    assert (overall.judged.slower.host, overall.judged.slower.than) == ("b", "a")
    assert overall.judged.slower.relative_difference == pytest.approx(0.5)


def test_a_suite_of_which_nothing_was_measured_has_no_figures() -> None:
    found = summarize_suite({"one": [], "two": []}, num_hosts=2)
    assert (found.num_measured, found.hosts, found.types, found.apart) == (0, (), (), ())
    assert found.types_missing is None

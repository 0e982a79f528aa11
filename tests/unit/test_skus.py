"""Products, what hosts lack of them, and versions behind security notices."""

from __future__ import annotations

from typing import Any

import pytest

from gpuproof.base.errors import UsageError
from gpuproof.hardware.boards import board_names
from gpuproof.hardware.skus import all_skus, detect_skus, find_minimum, find_sku, shared_values
from gpuproof.records.outcome import Outcome
from gpuproof.verdict.check import ask
from gpuproof.verdict.checks.sku import WORDS, judge_sku, judge_versions
from gpuproof.verdict.facts import FleetFacts

H100 = "NVIDIA H100 80GB HBM3"


def gpu(**changes: Any) -> dict[str, Any]:
    return {
        "vendor": "nvidia",
        "name": H100,
        "static": {"mem_total_bytes": 85_520_809_984, "pcie_gen_max": 5, **changes.get("static", {})},
        "state": {"nvlink_links_active": 18, "pcie_width": 16, **changes.get("state", {})},
    }


def port(**changes: str) -> dict[str, str]:
    return {"state": "ACTIVE", "rate": "400 Gb/sec (4X NDR)", **changes}


def host(gpus: list[dict[str, Any]], **facts: Any) -> dict[str, Any]:
    return {"accelerators": {"devices": gpus, "drivers": {}}, **facts}


def judged(node: dict[str, Any], sku: str | None = None) -> Outcome:
    return ask([judge_sku], FleetFacts(hosts={"a": node}, sku=sku))[0].outcome


def test_a_whole_machine_has_all_of_what_its_candidates_share() -> None:
    outcome = judged(host([gpu() for _ in range(8)]))
    assert outcome.status == "PASS"
    assert outcome.measured == "GPUs: 8, 85.52 GB per GPU, 18 NVLink or xGMI links up"
    assert "DGX H100 / HGX H100 or p5.48xlarge" in (outcome.expected or "")


@pytest.mark.parametrize(
    ("gpus", "ports", "sku", "status", "measured"),
    [
        (7, 8, None, "WARN", "GPUs: 7"),
        (7, 8, "Standard_ND96isr_H100_v5", "FAIL", "GPUs: 7"),
        (8, 7, "Standard_ND96isr_H100_v5", "WARN", "ports up at full rate: 7"),
        (0, 8, "p5.48xlarge", "FAIL", "GPUs: 0"),
    ],
)
def test_what_is_missing_is_named(gpus: int, ports: int, sku: str | None, status: str, measured: str) -> None:
    node = host([gpu() for _ in range(gpus)], infiniband=[port() for _ in range(ports)])
    outcome = judged(node, sku)
    assert (outcome.status, outcome.measured) == (status, measured)
    assert outcome.next_step


@pytest.mark.parametrize(
    ("change", "measured"),
    [
        ({"state": {"nvlink_links_active": 17}}, "17 NVLink or xGMI links up"),
        ({"static": {"pcie_gen_max": 3}}, "PCIe generation 3 at most in its slot, not read under load"),
        ({"state": {"pcie_width": 8}}, "PCIe x8 as negotiated when idle"),
        ({"static": {"mem_total_bytes": 42_000_000_000}}, "42 GB per GPU"),
    ],
)
def test_one_gpu_that_lacks_something_is_enough(change: dict[str, Any], measured: str) -> None:
    outcome = judged(host([*(gpu() for _ in range(7)), gpu(**change)]), "HGX H100")
    assert (outcome.status, outcome.measured) == ("WARN", measured)


def test_a_link_is_judged_as_it_was_read_under_load() -> None:
    """At rest it is of generation 1 and 8 lanes, which says nothing."""
    rests = {"state": {"pcie_width": 8, "pcie_gen": 1}}
    node = host([{**gpu(**rests), "uuid": f"GPU-{index}"} for index in range(8)])

    def loaded(last: dict[str, float], *, num: int = 8) -> Outcome:
        links = {f"GPU-{index}": {"pcie_gen": 5.0, "pcie_width": 16.0} for index in range(num)}
        facts = FleetFacts(
            hosts={"a": node}, sku="HGX H100", pcie_under_load={**links, f"GPU-{num - 1}": last}
        )
        return ask([judge_sku], facts)[0].outcome

    healthy = loaded({"pcie_gen": 5.0, "pcie_width": 16.0})
    assert healthy.status == "PASS"
    assert str(healthy.measured).endswith("PCIe generation 5 under load, PCIe x16 under load")
    slow = loaded({"pcie_gen": 4.0, "pcie_width": 16.0})
    assert (slow.status, slow.measured) == ("WARN", "PCIe generation 4 under load")
    partly = loaded({"pcie_gen": 5.0, "pcie_width": 16.0}, num=7)
    assert (partly.status, partly.measured) == ("WARN", "PCIe x8 as negotiated when idle")


def test_a_port_at_half_its_rate_does_not_count() -> None:
    ports = [*(port() for _ in range(7)), port(rate="200 Gb/sec (4X HDR)")]
    outcome = judged(host([gpu() for _ in range(8)], infiniband=ports), "Standard_ND96isr_H100_v5")
    assert (outcome.status, outcome.measured) == ("WARN", "ports up at full rate: 7")


def test_a_virtual_machine_with_a_part_of_a_machine_is_not_short_of_the_rest() -> None:
    outcome = judged(host([gpu(state={"nvlink_links_active": 0})]))
    assert outcome.status == "PASS"
    assert "a part of" in (outcome.expected or "")


def test_dmi_names_the_product_where_it_can() -> None:
    assert len(detect_skus(H100, 8, "Virtual Machine")) > 1
    assert [sku.name for sku in detect_skus(H100, 1, "p5.48xlarge")] == ["p5.48xlarge"]
    settings = {"product": {"value": "p5.48xlarge", "missing": None}}
    outcome = judged(host([gpu()], settings=settings))
    assert (outcome.status, outcome.measured) == ("WARN", "GPUs: 1")


def test_what_is_not_reported_is_not_judged() -> None:
    bare = {"vendor": "nvidia", "name": H100, "static": {}, "state": {}}
    assert judged(host([bare])).status == "SKIP"
    assert judged(host([{**bare, "name": "NVIDIA L4"}])).status == "NOT-APPLICABLE"
    assert judged(host([])).status == "NOT-APPLICABLE"


def test_an_unknown_product_is_refused_with_those_that_there_are() -> None:
    with pytest.raises(UsageError, match=r"there is no product named 'p5\.48xlarg'") as error:
        find_sku("p5.48xlarg")
    assert "Did you mean 'p5.48xlarge'?" in str(error.value.next_step)
    assert find_sku("dgx h200").name == find_sku("HGX H200").name


def test_every_product_has_known_boards_and_a_source_for_each_value() -> None:
    boards = set(board_names())
    for sku in all_skus():
        assert set(sku.boards) <= boards, sku.name
        assert sku.num_gpus > 0
        assert all(
            "https://" in value.source and ", as of 20" in value.source for value in sku.values.values()
        )
        assert set(sku.values) <= {*WORDS, "nvlink_gb_per_s", "port_gbit_per_s"}
    assert "ports" not in shared_values(detect_skus(H100, 8, None))


@pytest.mark.parametrize(
    ("driver", "toolkit", "status", "measured"),
    [
        ("580.159.04", None, "PASS", "NVIDIA driver 580.159.04"),
        ("535.104.05", "1.19.1-1", "WARN", "NVIDIA driver 535.104.05"),
        ("580.159.03", "1.17.7-1", "WARN", "NVIDIA Container Toolkit 1.17.7-1"),
        ("550.90.07", None, "SKIP", None),
        (None, None, "NOT-APPLICABLE", None),
    ],
)
def test_versions_behind_a_notice_are_advice(
    driver: str | None, toolkit: str | None, status: str, measured: str | None
) -> None:
    drivers = {"nvidia": {"version": driver}} if driver else {}
    node = {
        "accelerators": {"drivers": drivers},
        "settings": {"container toolkit": {"value": toolkit, "missing": None if toolkit else "no package"}},
    }
    outcome = ask([judge_versions], FleetFacts(hosts={"a": node}))[0].outcome
    assert (outcome.status, outcome.measured) == (status, measured)


def test_a_branch_that_no_notice_names_has_no_minimum() -> None:
    minimum = find_minimum("NVIDIA driver", "580.65.06")
    assert minimum is not None
    assert str(minimum.value).startswith("580.")
    assert minimum.source.startswith("https://")
    assert find_minimum("NVIDIA driver", "999.1") is None
    assert find_minimum("NVIDIA driver", "58.1") is None

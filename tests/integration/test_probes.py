"""Probes on real ranks and on simulated devices: a planted fault is found, and its healthy twin is clean.

The twin is another device of the same run: nothing but the fault tells the two apart.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from gpuproof.base.errors import ExitCode
from running import clean_environment, gpuproof, run_directory
from simulating import needs_simulator, simulated

QUIETLY = ("--monitoring.enabled=false", "--distributed.threads_per_rank=1", "--run.run_id=r")
ON_SIM = (*QUIETLY, "--distributed.device=simgpu")


ONE_IN_BETWEEN = 7
"""Of the copies of a device: four fill it, and four are made there, as many home, and eight both ways."""


def probed(tmp_path: Path, *words: str, environment: Mapping[str, str] | None = None) -> dict[str, Any]:
    """Run a probe; return its result, with the exit code that the command ended with."""
    done = gpuproof("run", "probe", *words, cwd=tmp_path, environment=environment)
    result = json.loads((run_directory(tmp_path, "r", "probe").root / "result.json").read_text())
    assert result["exit_code"] == done.returncode, done.stdout + done.stderr
    assert isinstance(result, dict)
    return result


def statuses(result: dict[str, Any]) -> dict[str, str]:
    """Return how the comparison of each device ended, by the last part of its subject."""
    return {
        judged["outcome"]["subject"].rsplit("/", 1)[-1]: judged["outcome"]["status"]
        for judged in result["outcomes"]
    }


def test_memory_of_processor_ranks_keeps_its_words(tmp_path: Path) -> None:
    words = ("--probe.name=pattern", "--probe.pattern.memory_share=0.0005", "--nproc=2")
    result = probed(tmp_path, *QUIETLY, *words, "--distributed.device=cpu")
    assert result["exit_code"] == ExitCode.DONE
    assert statuses(result) == {"cpu-0": "PASS", "cpu-1": "PASS"}


def test_a_disk_is_tried_in_the_named_folder_and_left_as_it_was(tmp_path: Path) -> None:
    folder = tmp_path / "disk"
    folder.mkdir()
    words = (f"--probe.storage.folder={folder}", "--probe.storage.file_bytes=4M")
    more = ("--probe.storage.block_bytes=256K", "--probe.storage.random_reads=50")
    result = probed(tmp_path, *QUIETLY, "--probe.name=storage", *words, *more, "--distributed.device=cpu")
    assert result["exit_code"] == ExitCode.DONE
    figures = {(m["name"], m["labels"]["access"]): m for m in result["measures"] if m["labels"]}
    assert set(figures) == {
        ("storage write", "sequential"),
        ("storage read", "sequential"),
        ("storage read", "random"),
    }
    assert figures["storage read", "sequential"]["num_samples"] == 16
    assert all(measure["value"] > 0 for measure in figures.values())
    assert "page cache" in figures["storage read", "random"]["detail"]
    assert list(folder.iterdir()) == []


def test_what_a_processor_has_not_is_not_applicable(tmp_path: Path) -> None:
    result = probed(tmp_path, *QUIETLY, "--distributed.device=cpu")
    assert result["exit_code"] == ExitCode.INCONCLUSIVE
    assert set(statuses(result).values()) == {"NOT-APPLICABLE"}


@needs_simulator
def test_the_device_that_is_consistently_wrong_is_named(tmp_path: Path) -> None:
    small = ("--probe.fingerprint.edge=64", "--probe.fingerprint.heat_s=0.05", "--probe.fingerprint.rounds=2")
    environment = simulated({1: {"wrong_products_from": 1}}, devices=3, flops_per_s=1e12)
    words = (*ON_SIM, "--probe.name=fingerprint", *small, "--nproc=3")
    result = probed(tmp_path, *words, environment=environment)
    assert result["exit_code"] == ExitCode.FAILED
    assert statuses(result) == {"SIM-0000": "PASS", "SIM-0001": "FAIL", "SIM-0002": "PASS"}
    failed = [judged for judged in result["outcomes"] if judged["outcome"]["status"] == "FAIL"]
    measured = {judged["name"]: judged["outcome"]["measured"] for judged in failed}
    assert measured["fingerprint"].startswith("always wrong: 12 of 12 results")
    assert measured["wrong values"].startswith("3 wrong in 3 comparisons: ")


@needs_simulator
@pytest.mark.parametrize(("faults", "status"), [({}, "PASS"), ({0: {"wrong_products_from": 1}}, "FAIL")])
def test_a_device_alone_is_compared_with_its_own_rounds_and_with_the_host(
    faults: dict[int, dict[str, int]], status: str, tmp_path: Path
) -> None:
    """One that is wrong in the same way each time repeats itself: the host's product shows it."""
    small = ("--probe.fingerprint.edge=64", "--probe.fingerprint.heat_s=0.05", "--probe.fingerprint.rounds=2")
    words = (*ON_SIM, "--probe.name=fingerprint", *small)
    environment = simulated(faults, devices=1, flops_per_s=1e12)
    outcomes = probed(tmp_path, *words, environment=environment)["outcomes"]
    judged = {one["name"]: one["outcome"] for one in outcomes}
    assert judged["fingerprint"]["measured"].startswith("repeats itself: ")
    assert (judged["fingerprint"]["status"], judged["wrong values"]["status"]) == ("PASS", status)


@needs_simulator
def test_a_stuck_bit_is_found_with_its_address(tmp_path: Path) -> None:
    place = 2**24 + 2**21 + 3
    environment = simulated({1: {"stuck_byte": place}}, devices=2, memory_bytes_per_s=1e13)
    words = (
        "--probe.name=pattern",
        "--probe.pattern.memory_share=0.01",
        "--probe.pattern.patterns=[address]",
        "--nproc=2",
    )
    result = probed(tmp_path, *ON_SIM, *words, environment=environment)
    assert result["exit_code"] == ExitCode.FAILED
    assert statuses(result) == {"SIM-0000": "PASS", "SIM-0001": "FAIL"}
    told = " ".join(m["detail"] for m in result["measures"] if m["value"])
    assert f"byte {place - 3:#x}: bit 28 is wrong" in told


@needs_simulator
@pytest.mark.parametrize("least", [0.3, pytest.param(0.8, marks=pytest.mark.long)])
def test_links_reach_what_is_declared_and_a_wrong_copy_among_right_ones_is_found(
    least: float, tmp_path: Path
) -> None:
    """A host that stalls makes a copy longer, on a busy machine by more than a fifth, and never shorter."""
    size, rate = 2**20, 1.2e7
    environment = simulated(
        {1: {"wrong_copy": ONE_IN_BETWEEN}},
        devices=2,
        host_link_bytes_per_s=rate,
        peer_link_bytes_per_s=2 * rate,
        launch_latency_s=1e-9,
    )
    words = ("--probe.link.min_bytes=1M", "--probe.link.max_bytes=1M", "--probe.link.host_memory=[pinned]")
    counts = ("--probe.link.iterations=1", "--probe.link.warmup_iterations=1")
    result = probed(tmp_path, *ON_SIM, *words, *counts, environment=environment)
    rates = {
        (m["labels"]["kind"], m["labels"]["direction"]): m["value"]
        for m in result["measures"]
        if m["name"] == "link bandwidth"
    }
    assert size / rate > 0.08, "the device is behind the host, or pauses would be in the time"
    expected = {
        ("h2d", "one_way"): rate,
        ("d2h", "one_way"): rate,
        ("h2d", "both_ways"): 2 * rate,
        ("d2d", "one_way"): 2 * rate,
        ("d2d", "both_ways"): 4 * rate,
    }
    assert rates.keys() == expected.keys()
    assert all(least < rate / expected[way] < 1.01 for way, rate in rates.items()), rates
    assert result["exit_code"] == ExitCode.FAILED
    compared = [m for m in result["measures"] if m["name"] == "wrong values"]
    wrong = {m["subject"].split("/gpu/")[-1]: m["detail"] for m in compared if m["value"]}
    assert wrong == {
        "SIM-0001": "8 copies compared, the last two on the host: 1 wrong, the first was number 3"
    }
    assert {m["labels"].get("direction") for m in compared} == {None, "both_ways"}


@pytest.mark.parametrize(("only", "wrong"), [("9", 1), ("none", 0)])
def test_a_sum_that_is_wrong_once_beside_products_is_found(only: str, wrong: int, tmp_path: Path) -> None:
    corrupting = Path(__file__).parents[1] / "fakes" / "corrupting_collective"
    environment = clean_environment(PYTHONPATH=str(corrupting), CORRUPTED_SUM=only)
    words = ("--probe.name=overlap", "--probe.overlap.edge=32", "--probe.overlap.message_bytes=64K")
    counts = ("--probe.overlap.iterations=4", "--probe.overlap.warmup_iterations=1", "--nproc=2")
    result = probed(tmp_path, *words, *counts, *QUIETLY, environment=environment)
    assert [m["value"] for m in result["measures"] if m["name"] == "wrong values"] == [wrong] * 2
    assert result["exit_code"] == (ExitCode.FAILED if wrong else ExitCode.DONE)

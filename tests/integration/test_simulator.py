"""The simulated accelerator by itself: its times are those worked out by hand, and its faults show.

Declared are 10⁸ FLOP/s (four times that in 16 bits), 10⁹ bytes/s everywhere, 1 ms a launch, a queue of 8.
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from running import TIMEOUT_S
from simulating import needs_simulator, simulated

pytestmark = needs_simulator

HERE = Path(__file__).parent
DECLARED = {
    "devices": 6,
    "flops_per_s": 1e8,
    "flops_16bit_per_s": 4e8,
    "memory_bytes_per_s": 1e9,
    "host_link_bytes_per_s": 1e9,
    "peer_link_bytes_per_s": 1e9,
    "launch_latency_s": 1e-3,
    "link_latency_s": 2e-3,
    "queue_depth": 8,
    "memory_bytes": 2**28,
}
FAULTS: dict[int, dict[str, Any]] = {
    1: {"slower_percent": 30},
    2: {"throttled_after_s": 3.0, "throttled_percent": 50},
    3: {"wrong_product": 3},
    4: {"memory_bytes": 2**20},
    5: {"hang_in_kernel": 3},
}
LATENCY_MS = 1.0
# A host's scalar costs its 8 bytes: 8 ns beside what is worked out below.
PRODUCT_MS = 2 * 64**3 / 1e8 * 1e3
"""5.24 ms: its 49 kB take less."""
MEGABYTE_MS = 1.0


@pytest.fixture(scope="module")
def found() -> Any:
    result = subprocess.run(
        [sys.executable, "-W", "error", str(HERE / "simulate_alone.py")],
        env=simulated(FAULTS, **DECLARED),
        capture_output=True,
        text=True,
        timeout=TIMEOUT_S,
    )
    assert result.returncode == 0, result.stderr
    assert result.stderr == ""
    return json.loads(result.stdout)


def test_torch_knows_the_devices(found: Any) -> None:
    assert (found["name"], found["count"], found["uuid"]) == ("simgpu", 6, "SIM-0001")


def test_a_product_takes_its_flops_over_the_declared_rate(found: Any) -> None:
    as_declared, slower = found["product_ms"]
    assert as_declared == pytest.approx(LATENCY_MS + PRODUCT_MS, abs=1e-4)
    assert slower == pytest.approx(LATENCY_MS + 1.3 * PRODUCT_MS, abs=1e-4)


def test_in_16_bits_it_takes_a_quarter(found: Any) -> None:
    assert found["half"]["autocast_is_16bit"]
    assert found["half"]["product_ms"] == pytest.approx(LATENCY_MS + PRODUCT_MS / 4, abs=1e-4)


def test_a_copy_takes_its_bytes_over_the_declared_rate(found: Any) -> None:
    copies = found["copies_ms"]
    assert copies["within"] == pytest.approx(LATENCY_MS + 2 * MEGABYTE_MS, abs=1e-4)  # read and written
    assert copies["to_device"] == pytest.approx(LATENCY_MS + MEGABYTE_MS, abs=1e-4)
    assert copies["to_host"] == pytest.approx(LATENCY_MS + MEGABYTE_MS, abs=1e-4)


def test_the_host_runs_ahead_as_far_as_the_queue_is_deep(found: Any) -> None:
    assert 1 < found["queue"]["most"] <= 8
    assert found["queue"]["first_done"]  # the twelfth was launched only then
    assert found["queue"]["left"] == 0


def test_idle_time_is_not_busy_time(found: Any) -> None:
    busy_ms = 2 * (LATENCY_MS + PRODUCT_MS)
    assert found["idle"]["busy_ms"] == pytest.approx(busy_ms, abs=1e-4)
    assert found["idle"]["wall_ms"] >= busy_ms + 100


ZEROS_REPLAYED = """
import torch
from gpuproof_simgpu import activate
activate()
SIM = torch.get_device_module("simgpu")
ones, out = torch.ones(8, 8, device="simgpu:0"), torch.full((8, 8), 7.0, device="simgpu:0")
graph = torch.accelerator.Graph()
with SIM.stream(SIM.Stream()), graph:
    torch.mm(ones, ones, out=out)
    fresh = ones @ ones
    both = out + fresh + 1
fresh.fill_(5.0)
graph.replay()
print(out.sum().item(), fresh.sum().item(), both.sum().item())
"""


def test_products_that_are_not_computed_are_zeros_in_a_replay_too() -> None:
    result = subprocess.run(
        [sys.executable, "-c", ZEROS_REPLAYED],
        env=simulated(zero_products=True),
        capture_output=True,
        text=True,
        timeout=TIMEOUT_S,
        check=True,
    )
    assert result.stdout.split() == ["0.0", "0.0", "64.0"]


def test_a_graph_runs_nothing_when_captured_and_pays_one_launch_when_replayed(found: Any) -> None:
    graph = found["graph"]
    assert graph["values"] == [0.0, 3.0]
    assert graph["eager_ms"] == pytest.approx(3 * (LATENCY_MS + 2 * MEGABYTE_MS), abs=1e-4)
    assert graph["replay_ms"] == pytest.approx(LATENCY_MS + 3 * 2 * MEGABYTE_MS, abs=1e-4)
    assert "not permitted while a stream is capturing" in graph["refused"]


def test_a_copy_that_nobody_waited_for_is_poisoned(found: Any) -> None:
    poison = found["poison"]
    assert poison["early"] == [True, -1]
    assert poison["after"] == [7.0, 7]
    assert poison["waited"] == 7.0
    assert poison["arrived"] == 7.0


def test_a_time_that_has_not_passed_is_refused(found: Any) -> None:
    assert "must be completed" in found["unfinished"]


def test_memory_ends_where_it_is_declared_to(found: Any) -> None:
    memory = found["memory"]
    assert (memory["allocated"], memory["peak"], memory["after"]) == (1024, 1024, 0)
    assert memory["total"] == 2**20
    assert "out of memory" in memory["refused"]


def test_one_product_is_wrong(found: Any) -> None:
    assert found["wrong_products"] == [True, True, False, True]


def test_a_throttled_device_is_slower_from_its_time_on(found: Any) -> None:
    before, after = found["throttled_ms"]
    assert before == pytest.approx(LATENCY_MS + PRODUCT_MS, abs=1e-4)
    assert after == pytest.approx(LATENCY_MS + 1.5 * PRODUCT_MS, abs=1e-4)


def test_nothing_ends_after_a_kernel_that_hangs(found: Any) -> None:
    assert found["hang"] == [True, True, False, False]


@pytest.mark.parametrize("kind", ["perceptron", "convolution", "attention"])
def test_losses_are_the_processors_in_every_digit(found: Any, kind: str) -> None:
    on_processor, simulated_ones = found["losses"][kind]
    assert simulated_ones == on_processor
    assert len(set(on_processor)) == 4


def test_random_numbers_follow_the_seed(found: Any) -> None:
    assert found["random"] == [True, False]


def test_a_tensor_of_the_host_is_refused_beside_one_of_the_device(found: Any) -> None:
    assert "same device" in found["mixed"]

"""What is declared of simulated devices, and the readings that are made of the same declaration."""

from __future__ import annotations

import json
import struct
import tempfile
from pathlib import Path
from statistics import fmean, stdev

import pytest

from gpuproof.base.errors import UsageError
from gpuproof.devices.discovery import open_devices
from gpuproof.devices.fake import open_twins
from gpuproof.devices.simulated import VARIABLE, SimulatedFault, read_declaration, readings_file
from gpuproof.records.readings import VendorIndex


class Clock:
    now_s = 100.0

    def __call__(self) -> float:
        return self.now_s


def test_nothing_declared_is_the_defaults() -> None:
    declared = read_declaration("")
    assert declared == read_declaration("{}")
    assert declared.devices == 8
    assert declared.fault(3) == SimulatedFault()
    assert declared.memory_of(3) == declared.memory_bytes


def test_faults_are_of_the_device_that_they_name() -> None:
    declared = read_declaration(
        '{"devices": 2, "faults": {"1": {"slower_percent": 30, "memory_bytes": 1024}}}'
    )
    assert declared.fault(0).slower_percent == 0
    assert declared.fault(1).slower_percent == 30
    assert (declared.memory_of(0), declared.memory_of(1)) == (declared.memory_bytes, 1024)


@pytest.mark.parametrize(
    ("text", "cause"),
    [
        ("{", "it is not valid JSON"),
        ("[]", "not a JSON object"),
        ('{"flops": 1}', "flops: unknown key; known keys are devices, flops_per_s"),
        ('{"flops_per_s": 0}', "flops_per_s: 0 is not a valid value"),
        ('{"queue_depth": 1.5}', "queue_depth: 1.5 is not a valid value"),
        ('{"devices": true}', "devices: True is not a valid value"),
        ('{"zero_products": 1}', "zero_products: 1 is not a valid value"),
        ('{"faults": {"1": {"slower": 3}}}', "faults.1.slower: unknown key"),
        ('{"faults": {"1": {"slower_percent": -3}}}', "faults.1.slower_percent: -3 is not a valid value"),
        ('{"faults": {"one": {}}}', "faults.one: identify the device by its index"),
        ('{"devices": 1, "faults": {"1": {}}}', "faults.1 is for a nonexistent device: there are 1"),
    ],
)
def test_what_cannot_be_is_refused_by_its_name(text: str, cause: str) -> None:
    with pytest.raises(UsageError) as refused:
        read_declaration(text)
    assert cause in str(refused.value)
    assert VARIABLE in str(refused.value)


def test_readings_follow_the_faults() -> None:
    clock = Clock()
    faults = {
        "1": {"slower_percent": 50},
        "2": {"throttled_after_s": 5, "throttled_percent": 100, "xid_after_s": 7},
    }
    adapter = open_twins(json.dumps({"devices": 3, "faults": faults}), clock=clock)

    def clocks() -> list[float]:
        readouts = [adapter.read(VendorIndex(index), lane="fast") for index in range(3)]
        return [readout.reading.values["clock_sm_mhz"] for readout in readouts]

    assert clocks() == [1500.0, 1000.0, 1500.0]
    clock.now_s += 5
    assert clocks() == [1500.0, 1000.0, 750.0]
    throttled = adapter.read(VendorIndex(2), lane="fast").reading
    assert throttled.throttle_reasons == ("thermal_software",)
    assert adapter.poll_events() == ()
    clock.now_s += 2
    (event,) = adapter.poll_events()
    assert (event.vendor_index, event.event) == (2, "xid")
    assert adapter.poll_events() == ()


def test_they_are_found_by_their_permanent_names_and_alone() -> None:
    declaration = '{"devices": 2, "faults": {"1": {"memory_bytes": 4096}}}'
    devices = open_devices({VARIABLE: declaration})
    identities = devices.identities
    devices.close()
    assert [identity.uuid for identity in identities] == ["SIM-0000", "SIM-0001"]
    assert [identity.framework_index for identity in identities] == [0, 1]
    assert identities[1].static["mem_total_bytes"] == 4096
    assert open_twins(declaration).processes(VendorIndex(0)) == ()


def test_cards_differ_by_the_declared_spread_each_always_alike() -> None:
    cards = [
        read_declaration(json.dumps({"card_spread_percent": 3, "first_card": 8 * n})) for n in range(250)
    ]
    for part in ("work", "links"):
        shares = [card.slowdown(index, part) - 1 for card in cards for index in range(8)]
        assert stdev(shares) == pytest.approx(0.03, rel=0.06)
        assert abs(fmean(shares)) < 0.005
    assert cards[1].slowdown(0, "work") == read_declaration(
        '{"card_spread_percent": 3, "first_card": 5}'
    ).slowdown(3, "work")
    assert read_declaration('{"faults": {"1": {"slower_percent": 30}}}').slowdown(1, "work") == 1.3
    with pytest.raises(UsageError, match="more than 20 %"):
        read_declaration('{"card_spread_percent": 30}')


def test_another_card_of_a_known_board_has_its_name_another_uuid_and_its_power_limit() -> None:
    adapter = open_twins('{"devices": 2, "name": "NVIDIA H200", "first_card": 7, "power_limit_w": 200}')
    identities = adapter.identities()
    assert [(one.uuid, one.name) for one in identities] == [
        ("SIM-0007", "NVIDIA H200"),
        ("SIM-0008", "NVIDIA H200"),
    ]
    assert {one.static["power_limit_w"] for one in identities} == {200}
    assert {one.static["power_limit_default_w"] for one in identities} == {300}


def test_utilisation_follows_what_the_device_did(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    clock = Clock()
    twins = open_twins('{"devices": 1}', clock=clock)

    def used_percent(*busy_s: float) -> float:
        clock.now_s += 1.0
        if busy_s:
            file.write_bytes(struct.pack("=3q", *(round(1e9 * moment_s) for moment_s in busy_s)))
        return float(twins.gather(VendorIndex(0), ("util_gpu_percent",))[0]["util_gpu_percent"])

    file = readings_file(0)
    file.parent.mkdir()
    assert used_percent() == 100.0
    assert used_percent(0.25, 101.0, 101.2) == pytest.approx(25.0)
    assert used_percent(4.75, 102.5, 107.0) == pytest.approx(50.0)  # 4 s of it are still to come
    assert used_percent() == pytest.approx(100.0)
    clock.now_s += 9.0
    assert used_percent() == pytest.approx(30.0)
    assert used_percent() == 0.0

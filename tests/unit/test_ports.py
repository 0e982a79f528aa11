"""Port counters: what is read of a generated sysfs, and what a port gained between readings, or why not."""

from __future__ import annotations

import os
import threading
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import recordings as rec
from gpuproof.monitor.ports import PortReader
from gpuproof.readings.ports import PortChange, port_changes, ports_and_gpus
from gpuproof.readings.recording import load_recording
from gpuproof.records.journal import decode, encode
from gpuproof.records.ports import PORT_COUNTERS, Medium, PortReading, PortTotals, growth_text
from sysfs_ports import SysfsPorts


@pytest.fixture
def sysfs(tmp_path: Path) -> SysfsPorts:
    return SysfsPorts(tmp_path / "sys")


def read(sysfs: SysfsPorts) -> PortTotals:
    return PortReader(sysfs.root).read(1.0, "start")


def port(name: str = "mlx5_0:1", medium: Medium = "rdma", **other: Any) -> PortReading:
    return PortReading(name=name, medium=medium, **other)


def totals(*ports: PortReading) -> PortTotals:
    return PortTotals(monotonic_s=0.0, at="change", ports=ports, missing={})


def change(*counters: dict[str, int]) -> PortChange:
    """Return what one port gained over these readings of it."""
    (found,) = port_changes([totals(port(counters=of)) for of in counters])
    return found


def test_every_kind_of_port_is_read_with_its_state_and_rate(sysfs: SysfsPorts) -> None:
    sysfs.rdma("mlx5_0", symbol_error=3, packet_seq_err=7)
    sysfs.rdma("mlx5_1", layer="Ethernet")
    sysfs.ethernet("eth0", rx_crc_errors=5)
    sysfs.pcie(correctable=4)
    sysfs.pcie("0000:00:01.0", pci_class="0x060400")  # a bridge
    found = {one.name: one for one in read(sysfs).ports}
    assert list(found) == ["mlx5_0:1", "mlx5_1:1", "eth0", "0000:01:00.0"]
    first = found["mlx5_0:1"]
    assert (first.traits, first.state, first.rate) == (("InfiniBand",), "ACTIVE", "400 Gb/sec (4X NDR)")
    assert (first.counters["symbol_error"], first.counters["packet_seq_err"]) == (3, 7)
    assert "lifespan" not in first.counters
    assert found["mlx5_1:1"].traits == ("RoCE",)
    assert (found["eth0"].rate, found["eth0"].counters["rx_crc_errors"]) == ("100000 Mb/s", 5)
    assert found["0000:01:00.0"].counters["aer_dev_correctable"] == 4
    assert found["0000:01:00.0"].rate == "32.0 GT/s PCIe x16"


def test_what_is_read_survives_the_journal(sysfs: SysfsPorts) -> None:
    sysfs.rdma(symbol_error=3)
    written = read(sysfs)
    assert decode(encode(written)) == written


def test_pauses_of_priorities_are_said_not_to_be_in_sysfs(sysfs: SysfsPorts) -> None:
    sysfs.ethernet()
    (found,) = read(sysfs).ports
    assert "ethtool -S" in found.unread["pfc_pauses"]


def test_a_container_without_sysfs_says_why_of_each_medium(sysfs: SysfsPorts) -> None:
    found = read(sysfs)
    assert found.ports == ()
    assert found.missing == {
        "rdma": "nothing is listed as /sys/class/infiniband/*/ports/*",
        "ethernet": "nothing is listed as /sys/class/net/*",
        "pcie": "nothing is listed as /sys/bus/pci/devices/*",
    }


def test_virtual_links_are_no_port(sysfs: SysfsPorts) -> None:
    sysfs.ethernet("veth0", driver=None)
    assert "virtual links" in read(sysfs).missing["ethernet"]


def test_members_of_a_bond_virtual_functions_and_virtual_cards_are_named_as_such(sysfs: SysfsPorts) -> None:
    sysfs.ethernet("bond0", driver=None)
    sysfs.ethernet("eth0")
    (sysfs.root / "class/net/eth0/master").symlink_to(sysfs.root / "class/net/bond0")
    sysfs.ethernet("eth1", driver="virtio_net")
    sysfs.ethernet("eth2")
    sysfs.virtual_function("class/net/eth2")
    found = {one.name: one.traits for one in read(sysfs).ports}
    assert found == {"eth0": ("member of bond0",), "eth1": ("virtual",), "eth2": ("virtual function",)}


def test_a_counter_that_may_not_be_read_is_missing(sysfs: SysfsPorts) -> None:
    sysfs.rdma()
    file = sysfs.root / "class/infiniband/mlx5_0/ports/1/counters/symbol_error"
    file.unlink()
    file.mkdir()  # root may read any file
    (found,) = read(sysfs).ports
    assert found.unread == {"symbol_error": "it cannot be read"}


@pytest.mark.parametrize("text", ["N/A (no PMA)", "", "-1", "0x12"])
def test_a_counter_that_is_no_number_is_missing_with_what_the_driver_gave(
    sysfs: SysfsPorts, text: str
) -> None:
    sysfs.rdma()
    sysfs.write("class/infiniband/mlx5_0/ports/1/counters/symbol_error", text)
    (found,) = read(sysfs).ports
    assert "symbol_error" not in found.counters
    assert repr(text) in found.unread["symbol_error"]


def test_firmware_that_hangs_stops_its_own_medium_only(sysfs: SysfsPorts) -> None:
    """A named pipe without a writer: whoever opens it waits."""
    sysfs.rdma()
    sysfs.ethernet()
    file = sysfs.root / "class/infiniband/mlx5_0/ports/1/counters/symbol_error"
    file.unlink()
    os.mkfifo(file)
    reader = PortReader(sysfs.root, patience_s=0.2)
    found = reader.read(0.0, "start")
    threading.Thread(target=file.write_text, args=("1",), daemon=True).start()
    assert [one.name for one in found.ports] == ["eth0"]
    assert "did not return" in found.missing["rdma"]


def test_every_counter_of_the_catalogue_has_a_meaning_and_a_source() -> None:
    for row in PORT_COUNTERS.values():
        assert row.meaning
        assert row.source
        assert (row.at_top is None) == (row.bits is None), row.name


def test_increases_are_those_between_the_first_reading_and_the_last() -> None:
    found = change({"symbol_error": 3}, {"symbol_error": 5}, {"symbol_error": 15})
    assert dict(found.increases) == {"symbol_error": 12}
    assert growth_text(found.grown("error")) == "symbol_error +12"


def test_a_counter_of_32_bits_that_runs_over_counts_on() -> None:
    assert dict(change({"packet_seq_err": 2**32 - 10}, {"packet_seq_err": 5}).increases) == {
        "packet_seq_err": 15
    }


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ({"packet_seq_err": 1000}, {"packet_seq_err": 3}),  # by less than half its range
        ({"packet_seq_err": 2**32 - 10, "link_downed": 0}, {"packet_seq_err": 5, "link_downed": 1}),
        ({"symbol_error": 60_000}, {"symbol_error": 10}),  # which saturates, so that somebody cleared it
        ({"rx_roce_errors": 2**32 - 10}, {"rx_roce_errors": 5}),  # of no documented width
    ],
)
def test_a_total_that_was_reset_is_missing_with_the_reason(
    before: dict[str, int], after: dict[str, int]
) -> None:
    found, name = change(before, after), next(iter(before))
    assert name not in found.increases
    assert "it was reset" in found.missing[name]


def test_a_counter_that_saturates_gives_the_least_or_nothing() -> None:
    reaching = change({"symbol_error": 65_000}, {"symbol_error": 65_535})
    assert reaching.grown("error") == {"symbol_error": 535}
    assert "may have counted more" in reaching.missing["symbol_error"]
    stuck = change({"symbol_error": 65_535}, {"symbol_error": 65_535})
    assert "symbol_error" not in stuck.increases
    assert "perfquery -R" in stuck.missing["symbol_error"]


def test_a_counter_that_was_read_at_one_end_only_is_missing() -> None:
    found = change({"symbol_error": 1, "link_downed": 0}, {"link_downed": 0})
    assert found.missing["symbol_error"] == "it was not read at both ends"
    assert dict(found.increases) == {"link_downed": 0}


def test_a_port_that_vanished_is_missing_and_a_renamed_one_says_its_new_name() -> None:
    before = totals(port("eth0", "ethernet", address="0000:81:00.0", counters={"rx_errors": 0}))
    gone = port_changes([before, totals()])
    assert "it was not listed throughout" in gone[0].missing["port"]
    assert gone[0].increases == {}
    renamed = port("ens1", "ethernet", address="0000:81:00.0", counters={"rx_errors": 9})
    found = {one.port.name: one for one in port_changes([before, totals(renamed)])}
    assert "its card has ens1" in found["eth0"].missing["port"]
    assert found["ens1"].increases == {}


def test_a_line_with_a_counter_that_is_no_number_is_damaged_and_the_rest_is_read(tmp_path: Path) -> None:
    line = encode(totals(port(counters={"symbol_error": 3})))
    torn = line.replace('"symbol_error":3', '"symbol_error":"many"')
    path = rec.write(
        tmp_path / "r.jsonl", [rec.header([rec.identity()]), rec.sample(0, {0: {"power_w": 3.0}})]
    )
    path.write_text(f"{path.read_text()}{line}\n{torn}\n")
    found = load_recording(path)
    assert len(found.ports) == 1
    assert "1 damaged line(s) skipped" in found.notes[0]


def test_a_link_that_came_back_slower_is_told_and_one_of_pcie_at_rest_is_not() -> None:
    fast, slow = (
        port(state="ACTIVE", rate="400 Gb/sec (4X NDR)"),
        port(state="ACTIVE", rate="200 Gb/sec (2X NDR)"),
    )
    (found,) = port_changes([totals(fast), totals(slow)])
    assert found.became == "ACTIVE 400 Gb/sec (4X NDR) → ACTIVE 200 Gb/sec (2X NDR)"
    rates = ("2.5 GT/s PCIe x16", "32.0 GT/s PCIe x16")
    (idle,) = port_changes([totals(port("0000:01:00.0", "pcie", rate=rate)) for rate in rates])
    assert idle.became == ""


def test_links_of_a_gpu_are_read_from_the_totals_of_its_driver_also_where_it_answered_late(
    tmp_path: Path,
) -> None:
    gpus = [rec.identity(0), rec.identity(1)]
    records = [
        rec.header(gpus),
        rec.counters(0, "start", {0: {"nvlink_replay_count": 3.0, "energy_j": 5.0}, 1: {}}),
        totals(port(counters={"symbol_error": 0})),
        rec.counters(1, "appeared", {0: {"nvlink_replay_count": 9.0}, 1: {"nvlink_replay_count": 4.0}}),
        rec.sample(1, {0: {"power_w": 3.0}}),
        rec.counters(2, "end", {0: {"nvlink_replay_count": 10.0}, 1: {"nvlink_replay_count": 4.0}}),
        replace(totals(port(counters={"symbol_error": 0})), at="end"),
    ]
    changes = port_changes(ports_and_gpus(rec.loaded(tmp_path, records)))
    found = {one.port.name: dict(one.increases) for one in changes if one.port.medium == "gpu"}
    assert list(found.values()) == [{"nvlink_replay_count": 7}, {"nvlink_replay_count": 0}]


def test_counters_of_a_newer_version_are_of_no_kind() -> None:
    found = change({"nobody_knows": 1}, {"nobody_knows": 5})
    assert found.grown("error", "drop") == {}

"""Where cases run: as JSON and back, and as older versions wrote it."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from gpuproof.base.errors import RecordError
from gpuproof.records.case import CASE_SCHEMA_VERSION, Case, Placement
from gpuproof.records.codec import from_json, to_json
from gpuproof.store.versions import upgrade_case
from records_by_hand import CASE, case, of_schema_2

OF_SCHEMA_1 = {"nproc": 2, "device": "cpu", "devices": [1, 3]}


def test_a_placement_and_an_order_are_read_back() -> None:
    placed = case(placement={"hosts": ("a", "b"), "num_hosts": 2, "devices": (0, 2), "exclusive": "devices"})
    asked = {**to_json(placed), "after": [["main", 0], ["other", 2]]}
    read = from_json(Case, json.loads(json.dumps(asked)))
    assert read.placement == placed.placement
    assert read.after == (("main", 0), ("other", 2))


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({}, Placement(ranks_per_host=2, device="cpu", devices=(1, 3))),
        ({"host": "node 1"}, Placement(hosts=("node 1",), ranks_per_host=2, device="cpu", devices=(1, 3))),
        ({"nodes": 4}, Placement(num_hosts=4, ranks_per_host=2, device="cpu", devices=(1, 3))),
    ],
)
def test_a_spec_of_schema_1_is_read(changes: dict[str, object], expected: Placement) -> None:
    old = {**of_schema_2(CASE), "schema_version": 1, "host": changes.get("host")}
    del old["placement"], old["after"]
    nodes = {"nodes": changes["nodes"]} if "nodes" in changes else {}
    old["parallel"] = {**old["parallel"], **OF_SCHEMA_1, **nodes}
    read = from_json(Case, upgrade_case(old))
    assert (read.placement, read.schema_version) == (expected, CASE_SCHEMA_VERSION)
    assert (replace(read.work, parallel=CASE.work.parallel), read.after) == (CASE.work, ())


def test_what_is_of_this_schema_stays() -> None:
    assert upgrade_case(to_json(CASE)) == to_json(CASE)


def test_ranks_and_the_one_host() -> None:
    assert Placement(num_hosts=3, ranks_per_host=4).num_ranks == 12
    assert Placement(hosts=("a",)).host == "a"
    assert Placement(hosts=("a", "b"), num_hosts=2).host is None


def test_a_rank_without_a_device_is_refused() -> None:
    with pytest.raises(RecordError, match="ranks per host: 2, but devices listed: 1"):
        from_json(Placement, {"ranks_per_host": 2, "devices": [3]})

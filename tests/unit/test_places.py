"""Which case may run where: free hosts, named hosts, shared devices, and what can never be placed."""

from __future__ import annotations

import pytest

from gpuproof.launchers.base import HostError
from gpuproof.launchers.places import HeldPlaces, held_places
from gpuproof.records.case import Placement
from gpuproof.suites.base import HostPlace

LOST = {"b": HostError("no answer", host="b", stage="setup")}


def places(names: str = "abcd", *, max_busy: int | None = None) -> HeldPlaces:
    return HeldPlaces([HostPlace(name=name) for name in names], max_busy=max_busy)


def test_any_hosts_are_the_first_that_are_free() -> None:
    held = places()
    assert held.find(Placement(num_hosts=2), ()) == ("a", "b")
    assert held.take(("pair", 0), ("a", "b"), Placement(num_hosts=2)) == ()
    assert held.find(Placement(), ()) == ("c",)
    assert held.find(Placement(), {"c"}) == ("d",)
    assert held.find(Placement(num_hosts=3), ()) is None
    held.release(("pair", 0))
    assert held.find(Placement(num_hosts=3), ()) == ("a", "b", "c")


def test_named_hosts_are_taken_in_the_order_of_node_ranks_or_waited_for() -> None:
    held, swapped = places(), Placement(hosts=("d", "a"), num_hosts=2)
    assert held.find(swapped, ()) == ("d", "a")
    held.take(("one", 0), ("a",), Placement())
    assert held.find(swapped, ()) is None
    assert held.has_room(())


def test_devices_of_a_host_are_shared_only_among_those_that_ask_for_that() -> None:
    held = places("a")
    first, second = (Placement(devices=(index,), exclusive="devices") for index in (0, 1))
    assert held.take(("first", 0), ("a",), first) == ()
    assert held.find(second, ()) == ("a",)
    assert held.find(first, ()) is None
    assert held.find(Placement(), ()) is None
    assert held.find(Placement(exclusive="devices"), ()) is None
    assert held.take(("second", 0), ("a",), second) == (("first", 0),)
    whole = places("a")
    whole.take(("whole", 0), ("a",), Placement())
    assert whole.find(second, ()) is None
    assert not whole.has_room(())


def test_only_so_many_hosts_are_busy_at_a_time_but_one_job_gets_its_hosts() -> None:
    held = places(max_busy=2)
    assert held.find(Placement(num_hosts=3), ()) == ("a", "b", "c")
    held.take(("one", 0), ("a",), Placement())
    assert held.find(Placement(num_hosts=2), ()) is None
    held.take(("two", 0), ("b",), Placement())
    assert held.find(Placement(), ()) is None


@pytest.mark.parametrize(
    ("placement", "reason"),
    [
        (Placement(hosts=("z",)), "no such host is available: z"),
        (Placement(hosts=("a", "c"), num_hosts=3), "2 hosts are listed, but 3 are requested"),
        (Placement(num_hosts=4), "4 hosts are requested, but only 3 are available; b is lost: no answer"),
        (Placement(num_hosts=3), None),
        (Placement(hosts=("a",)), None),
    ],
)
def test_what_can_never_be_placed_is_said(placement: Placement, reason: str | None) -> None:
    assert places().reason_never(placement, LOST) == reason


def test_where_no_place_is_left_there_is_room_to_say_so() -> None:
    assert places("b").has_room(LOST)


def test_a_queue_takes_any_case_while_not_too_many_are_in_it() -> None:
    held = held_places([], max_busy=2)
    many = Placement(num_hosts=500, hosts=())
    assert held.reason_never(many, {}) is None
    assert held.find(many, ()) == ()
    held.take(("a", 0), (), many)
    assert held.has_room(())
    held.take(("b", 0), (), Placement(hosts=("n7",)))
    assert not held.has_room(())
    held.release(("a", 0))
    assert held.has_room(())
    assert held_places([], max_busy=None).has_room(())

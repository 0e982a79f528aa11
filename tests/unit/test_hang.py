"""Who hangs: by the operations that each rank asked for, the flight recorder, the marks of the device."""

from __future__ import annotations

import json
import socket
import threading
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pytest

from gpuproof.records.collected import CaseRecords
from gpuproof.records.progress import CollectiveCall, RankProgress
from gpuproof.records.run import Failure
from gpuproof.verdict.blame.hang import Hang, explain_hang
from gpuproof.worker.engine.clocks import EventClock
from gpuproof.worker.engine.host_clock import HostClock
from gpuproof.worker.rank.watchdog import ask_ras, look_at_progress, read_calls
from records_by_hand import case, start
from waiting import PATIENCE_S


def call(number: int, state: str = "scheduled") -> CollectiveCall:
    return CollectiveCall(number=number, operation="gloo:all_reduce", sizes=((16, 1024),), state=state)


def hung(progress: Mapping[int, RankProgress | None], *, ranks: int = 3) -> Hang | None:
    words = (
        Failure(
            rank=rank,
            host=f"node{rank}",
            phase="measure",
            cause="hang",
            message="no progress",
            unix_s=1.0,
            progress=found,
        )
        for rank, found in progress.items()
    )
    starts = (replace(start(rank, world_size=ranks), host=f"node{rank}") for rank in range(ranks))
    return explain_hang(CaseRecords(case=case(), records=(*starts, *words)))


def asked(number: int, **changes: Any) -> RankProgress:
    calls = tuple(call(n) for n in range(max(1, number - 2), number + 1))
    return RankProgress(collectives=number, calls=calls, launched=9, begun=9, completed=8, **changes)


def test_a_rank_that_asked_for_fewer_operations_did_not_come() -> None:
    found = hung({0: asked(17), 1: asked(16), 2: asked(17)})
    assert found is not None
    assert (found.waiting, found.late, found.silent) == ((0, 2), (1,), ())
    assert found.stopped_hosts == ("node1",)
    assert found.text == (
        "rank 0 on node0 and rank 2 on node2 wait in all_reduce of 16,384 elements (number 17), "
        "which rank 1 on node1 did not reach"
    )


def test_a_rank_without_a_word_is_named_and_not_said_to_be_late() -> None:
    found = hung({0: asked(17), 2: asked(17)})
    assert found is not None
    assert (found.waiting, found.late, found.silent) == ((0, 2), (), (1,))
    assert found.stopped_hosts == ("node1",)
    assert found.text.endswith("(number 17); rank 1 on node1 reported nothing")


def test_hosts_that_run_ahead_are_told_apart_by_what_the_devices_have_started() -> None:
    started = RankProgress(collectives=20, calls=(call(17, "started"), call(18)))
    stuck = RankProgress(collectives=20, calls=(call(17, "scheduled"), call(18)))
    found = hung(
        {0: replace(started, calls=started.calls[:1]), 1: replace(stuck, calls=stuck.calls[:1])}, ranks=2
    )
    assert found is not None
    assert (found.waiting, found.late) == ((0,), (1,))


def test_without_a_flight_recorder_the_marks_of_the_device_tell() -> None:
    progress = {
        rank: RankProgress(begun=begun, completed=5, launched=9) for rank, begun in enumerate((6, 5, 6))
    }
    found = hung({rank: replace(each, operation="all_reduce of 8 bytes") for rank, each in progress.items()})
    assert found is not None
    assert (found.waiting, found.late, found.operation) == ((0, 2), (1,), "all_reduce of 8 bytes")


@pytest.mark.parametrize(
    ("state", "end"),
    [
        ("started", ", but it does not finish: check the links between them"),
        ("completed", " and finished it: none waits for another there"),
        (
            "scheduled",
            "; whether it finished is not known: it does not finish, or each is busy or stuck after it",
        ),
    ],
)
def test_where_all_came_links_are_suspected_only_if_the_operation_did_not_finish(
    state: str, end: str
) -> None:
    found = hung({rank: RankProgress(collectives=4, calls=(call(4, state),)) for rank in range(3)})
    assert found is not None
    assert found.text == f"all ranks have reached all_reduce of 16,384 elements (number 4){end}"
    assert found.stopped_hosts == ()


@pytest.mark.parametrize("progress", [{}, {0: None, 1: None, 2: None}])
def test_where_no_rank_knows_how_far_it_is_nobody_is_named(progress: dict[int, None]) -> None:
    assert hung(progress) is None


def test_of_many_ranks_some_are_named() -> None:
    found = hung({rank: asked(3 if rank < 30 else 2) for rank in range(40)}, ranks=40)
    assert found is not None
    assert found.text.startswith("30 ranks (0, 1, 2, 3, 4, 5, 6, 7 …) wait in")


DUMP = {
    "version": "2.10",
    "entries": [
        {
            "collective_seq_id": 3,
            "profiling_name": "nccl:all_reduce",
            "input_sizes": [[8]],
            "state": "completed",
        },
        {"collective_seq_id": 4, "is_p2p": True, "profiling_name": "nccl:send", "input_sizes": [[8]]},
        {"collective_seq_id": 9, "process_group": ["2", "tensor"], "profiling_name": "nccl:all_gather"},
        {"collective_seq_id": "x"},
        "no record",
        {"collective_seq_id": 4, "process_group": ["0", "default_pg"], "state": "started"},
    ],
}
"""As NCCL's flight recorder writes it; by hand, since there is no NCCL here."""


def test_a_dump_of_nccl_is_read_leniently_and_for_the_default_group() -> None:
    calls = read_calls(json.dumps(DUMP).encode())
    assert [(each.number, each.operation, each.state) for each in calls] == [
        (3, "nccl:all_reduce", "completed"),
        (4, "unknown", "started"),
    ]
    assert read_calls(b"") == read_calls(b"[1]") == read_calls(b"{}") == ()


@pytest.fixture
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let answers take as long as a busy machine needs."""
    monkeypatch.setattr("gpuproof.worker.rank.watchdog.ANSWER_S", PATIENCE_S)


@pytest.mark.usefixtures("patient")
def test_the_service_of_nccl_is_asked_where_it_listens() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:

        def answer() -> None:
            connection, _ = server.accept()
            with connection:
                assert b"VERBOSE STATUS\n" in connection.recv(4096)
                connection.sendall(b"Job summary\n  1 rank is missing\n")

        thread = threading.Thread(target=answer)
        thread.start()
        assert ask_ras(server.getsockname()) == "Job summary\n  1 rank is missing"
        thread.join()
        address = server.getsockname()
    assert ask_ras(address) is None


@pytest.mark.usefixtures("patient")
def test_the_clock_of_a_processor_counts_what_has_begun_and_what_is_done() -> None:
    clock = HostClock()
    clock.begin()
    clock.end()
    clock.drain(in_flight=0)
    clock.begin()
    assert clock.progress() == (2, 2, 1)
    assert look_at_progress(clock, operation="x") == RankProgress(
        launched=2, begun=2, completed=1, operation="x"
    )
    assert look_at_progress(None, operation=None) is None


class Mark:
    """An event of a device that has reached `Mark.reached` of them."""

    reached = 0
    recorded = 0
    position = 0

    def record(self) -> None:
        Mark.recorded += 1
        self.position = Mark.recorded

    def query(self) -> bool:
        return 0 < self.position <= Mark.reached

    def synchronize(self) -> None:
        return

    def elapsed_time(self, end: Mark) -> float:
        return 1.0


def test_the_clock_of_a_device_counts_what_the_device_has_reached() -> None:
    clock = EventClock(Mark, lambda: None)
    for _ in range(4):
        clock.begin()
        clock.end()
    clock.begin()
    Mark.reached = 3  # the first step, and the beginning of the second
    assert clock.progress() == (5, 2, 1)
    assert len(clock.drain(in_flight=9)) == 1
    assert clock.progress() == (5, 2, 1)


def test_a_device_that_does_not_answer_holds_nobody_up() -> None:
    class Stuck:
        def progress(self) -> tuple[int, int, int]:
            threading.Event().wait()
            raise AssertionError

    found = look_at_progress(Stuck(), operation=None)
    assert found is not None
    assert found.missing == "the device did not answer within 2 s"

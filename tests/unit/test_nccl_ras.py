"""NCCL's RAS service, as a small server that speaks the lines of its protocol; nothing here needs a GPU."""

from __future__ import annotations

import json
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from gpuproof.worker.probes.nccl_ras import ras_faults, ras_status, value_of

OLD = {"SET FORMAT json": "ERROR: unknown command"}


def rank(number: int, **status: Any) -> dict[str, Any]:
    return {"rank": number, "host": "10.0.0.1", "pid": 100 + number, "status": status}


def status_of(ranks: list[dict[str, Any]], missing: list[dict[str, Any]]) -> dict[str, Any]:
    communicator = {"size": len(ranks) + len(missing), "ranks": ranks, "missing_ranks": missing}
    return {"nccl_version": "2.28.9", "communicators": [communicator], "ras": {"timeouts_count": 0}}


@contextmanager
def ras_server(answer: str, replies: dict[str, str] | None = None) -> Iterator[tuple[str, list[str]]]:
    """Answer one client, line by line, and close the connection after the status as NCCL does."""
    lines: list[str] = []
    usual = {"CLIENT PROTOCOL 2": "SERVER PROTOCOL 2", "TIMEOUT 5": "OK", "SET FORMAT json": "OK"}
    known = {**usual, **(replies or {})}

    def serve(listener: socket.socket) -> None:
        connection, _ = listener.accept()
        with connection, connection.makefile("rw", encoding="utf-8", newline="\n") as stream:
            for line in stream:
                lines.append(line.strip())
                stream.write(answer if lines[-1] == "VERBOSE STATUS" else known[lines[-1]] + "\n")
                stream.flush()
                if lines[-1] == "VERBOSE STATUS":
                    return

    with socket.create_server(("127.0.0.1", 0)) as listener:
        thread = threading.Thread(target=serve, args=(listener,), daemon=True)
        thread.start()
        yield f"127.0.0.1:{listener.getsockname()[1]}", lines
        thread.join(timeout=60)


def test_the_lines_of_the_protocol_bring_the_status() -> None:
    expected = status_of([rank(0, async_error=0), rank(1, async_error=0)], [])
    with ras_server(json.dumps(expected)) as (address, lines):
        assert ras_status(address, timeout_s=5) == expected
    assert lines == ["CLIENT PROTOCOL 2", "TIMEOUT 5", "SET FORMAT json", "VERBOSE STATUS"]
    assert not list(ras_faults(expected))


@pytest.mark.parametrize(
    ("replies", "answer", "reason"),
    [
        (OLD, "{}", "supports only text output"),
        (
            {"CLIENT PROTOCOL 2": "HTTP/1.1 400 Bad Request"},
            "{}",
            r"is not an NCCL RAS service: 'HTTP/1\.1 400",
        ),
        ({}, "Job summary", "Expecting value"),
        ({}, "[1]", "did not respond with a status"),
    ],
)
def test_what_is_no_status_is_refused(replies: dict[str, str], answer: str, reason: str) -> None:
    with ras_server(answer, replies) as (address, _), pytest.raises(ValueError, match=reason):
        ras_status(address, timeout_s=5)


@pytest.mark.parametrize(
    ("ranks", "missing", "faults"),
    [
        ([], [rank(1, considered_dead=True)], ["rank 1 on 10.0.0.1 (process 101): considered_dead"]),
        ([], [rank(1, considered_dead=False)], ["rank 1 on 10.0.0.1 (process 101): missing"]),
        ([rank(2, async_error=6)], [], ["rank 2 on 10.0.0.1 (process 102): ncclResult_t 6"]),
        ([rank(2, async_error=0, abort_flag=True)], [], ["rank 2 on 10.0.0.1 (process 102): abort_flag"]),
        ([rank(2, async_error=7)], [], []),
    ],
)
def test_each_rank_in_trouble_is_a_fault(
    ranks: list[dict[str, Any]], missing: list[dict[str, Any]], faults: list[str]
) -> None:
    status = status_of([rank(0, async_error=0), *ranks], missing)
    assert list(ras_faults(status)) == faults
    figure = value_of(status, None, num_ranks=2)
    assert figure.value == len(faults)
    assert f"communicators of [{1 + len(ranks) + len(missing)}] ranks; our 2 finished" in figure.evidence[-1]


def test_without_nccl_there_is_a_reason_and_no_number() -> None:
    figure = value_of({}, "the ranks communicate over gloo, not over NCCL", num_ranks=2)
    assert (figure.value, figure.is_inapplicable) == (None, True)
    assert figure.missing == "the ranks communicate over gloo, not over NCCL"
    assert figure.evidence == ()

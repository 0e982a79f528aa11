"""What a process reads of its own TCP connections: real sockets over loopback."""

from __future__ import annotations

import os
import socket
from collections.abc import Iterator
from contextlib import ExitStack

import pytest

from gpuproof.records.journal import decode, encode
from gpuproof.records.what_ran import CountedConnection
from gpuproof.worker.host import host_load as connections
from gpuproof.worker.host.host_load import read_connections

HERE, THERE = "127.0.0.71", "127.0.0.72"
"""Addresses that no other socket of the tests' process has."""


@pytest.fixture
def pair() -> Iterator[tuple[socket.socket, socket.socket]]:
    with ExitStack() as opened:
        listener = opened.enter_context(socket.socket())
        listener.bind((THERE, 0))
        listener.listen()
        near = opened.enter_context(
            socket.create_connection(listener.getsockname(), source_address=(HERE, 0))
        )
        far = opened.enter_context(listener.accept()[0])
        yield near, far


def found(local: str, peer: str) -> list[CountedConnection]:
    told = read_connections(rank=0)
    assert told.missing is None
    return [each for each in told.connections if (each.local, each.peer) == (local, peer)]


def test_segments_with_data_are_counted_at_the_end_that_sent_them(
    pair: tuple[socket.socket, socket.socket],
) -> None:
    near, far = pair
    for _ in range(5):
        near.sendall(b"x" * 1000)
        assert len(far.recv(1000, socket.MSG_WAITALL)) == 1000

    (sent,), (received,) = found(HERE, THERE), found(THERE, HERE)
    assert (sent.segments_sent, sent.segments_sent_again) == (5, 0)
    assert (received.segments_sent, received.segments_sent_again) == (0, 0)


def test_connections_between_the_same_addresses_are_one(pair: tuple[socket.socket, socket.socket]) -> None:
    near, _ = pair
    with socket.create_connection(near.getpeername(), source_address=(HERE, 0)) as second:
        near.sendall(b"x")
        second.sendall(b"x")
        (both,) = found(HERE, THERE)
    assert both.segments_sent == 2


def test_an_ipv4_address_is_one_on_a_socket_of_ipv6_too(pair: tuple[socket.socket, socket.socket]) -> None:
    near, _ = pair
    with socket.socket(socket.AF_INET6) as second:
        second.bind((f"::ffff:{HERE}", 0))
        second.connect((f"::ffff:{THERE}", near.getpeername()[1]))
        near.sendall(b"x")
        second.sendall(b"x")
        (both,) = found(HERE, THERE)
    assert both.segments_sent == 2


def test_what_is_no_tcp_connection_is_left_out() -> None:
    with socket.socket(type=socket.SOCK_DGRAM) as datagrams, socket.socket() as listener:
        datagrams.bind((HERE, 0))
        datagrams.connect((THERE, 9))
        listener.bind((THERE, 0))
        listener.listen()
        assert not found(HERE, THERE)


def test_nobody_is_given_a_time_out_by_being_looked_at(
    pair: tuple[socket.socket, socket.socket], monkeypatch: pytest.MonkeyPatch
) -> None:
    near, _ = pair
    assert found(HERE, THERE)
    assert os.get_blocking(near.fileno())
    monkeypatch.setattr(socket, "getdefaulttimeout", lambda: 5.0)
    assert read_connections(rank=0).missing == "this process has a default socket timeout"


def test_of_many_connections_those_are_kept_that_tell_most(
    pair: tuple[socket.socket, socket.socket], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(connections, "MOST_KEPT", 1)
    near, _ = pair
    near.sendall(b"x")
    (kept,) = read_connections(rank=0).connections
    assert kept.segments_sent


def test_the_record_goes_into_a_journal_and_back() -> None:
    told = read_connections(rank=3)
    assert decode(encode(told)) == told

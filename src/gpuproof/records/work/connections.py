"""What the kernel counted of a rank's TCP connections: packets that are lost on a link are sent again."""

from __future__ import annotations

from dataclasses import dataclass

from gpuproof.records.journal import record_kind


@dataclass(frozen=True, slots=True, kw_only=True)
class CountedConnection:
    """One or several connections between the same two addresses, since they were opened."""

    local: str
    """The address at this end."""
    peer: str
    """The one at the other."""
    segments_sent: int
    """With data, those that were sent again included."""
    segments_sent_again: int


@record_kind("connections")
@dataclass(frozen=True, slots=True, kw_only=True)
class Connections:
    """The connections that a rank has with other processes, by address, after what it measured."""

    rank: int
    connections: tuple[CountedConnection, ...]
    missing: str | None
    """Why nobody knows; None where the connections are those that there were."""

"""How the devices of a study reach each other: what torch said of direct copies, host by host."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from gpuproof.records.collected import CaseRecords
from gpuproof.records.run import Environment

LINK_PROBE = "how fast copies are: gpuproof run probe --probe.name=link"


def topology_lines(launches: Sequence[CaseRecords]) -> Iterator[str]:
    """Yield a line a host that has several devices; nothing where no host described itself."""
    hosts = {record.host: record.facts for launch in launches for record in launch.of(Environment)}
    lines = [f"{host}: {line}" for host, facts in hosts.items() for line in _host_lines(facts)]
    yield from lines
    if lines:
        yield LINK_PROBE


def _host_lines(facts: Mapping[str, Any]) -> Iterator[str]:
    devices = facts.get("devices") or []
    if len(devices) < 2:
        return
    reached = {device["index"]: device.get("peer_access") for device in devices}
    if any(link is None for link in reached.values()):
        yield f"{len(devices)} devices; whether they copy directly is not known: the framework does not say"
        return
    lacking = [
        f"{one}-{other}" for one in reached for other in reached if one < other and other not in reached[one]
    ]
    pairs = len(devices) * (len(devices) - 1) // 2
    if not lacking:
        yield f"{len(devices)} devices, all {pairs} pairs copy directly (peer access)"
    else:
        yield (
            f"{len(devices)} devices, {len(lacking)} of {pairs} pairs copy through the host's memory alone: "
            f"{', '.join(lacking)}"
        )

"""What cannot be exceeded: the network between hosts, for each collective operation.

Of N hosts each has to send, or get, a least part of the data over its own network cards, whichever way the
operation is done. With `c` the cards' sum of one host in one direction, the algorithm bandwidth is at most
c · N / (2 (N − 1)) for an all-reduce, or c where the network itself adds up; the bus bandwidth is that times
its factor of the number of ranks, and so may exceed c where there are two hosts.

>>> bus_bound("all_reduce", num_hosts=2, ranks_per_host=8, cards_bytes_per_s=400e9)
750000000000.0
>>> bus_bound("all_reduce", num_hosts=1, ranks_per_host=8, cards_bytes_per_s=400e9) is None
True
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, get_args

from gpuproof.analysis.collectives import bus_factor
from gpuproof.records.work.collective import Operation

BITS = 8
_RATE = re.compile(r"([\d.]+) Gb/sec")


def algorithm_bound(
    operation: str, *, num_hosts: int, ranks_per_host: int, cards_bytes_per_s: float, in_network: bool = True
) -> float | None:
    """Return the most algorithm bandwidth between hosts, in B/s; None where no network is needed.

    `in_network`: whether the network may add up, as it may unless it is known not to.
    """
    n = num_hosts
    if n < 2 or operation not in get_args(Operation):
        return None
    all_reduce = max(1.0, n / (2 * (n - 1))) if in_network else n / (2 * (n - 1))
    shares = {
        "all_reduce": all_reduce,
        "all_gather": n / (n - 1),
        "reduce_scatter": n / (n - 1),
        "all_to_all": n / ((n - 1) * ranks_per_host),
    }
    # A root, or one pair, has to pass everything through one host: all of it, once.
    return cards_bytes_per_s * shares.get(
        operation, n / (n - 1) if operation in ("gather", "scatter") else 1.0
    )


def bus_bound(
    operation: str, *, num_hosts: int, ranks_per_host: int, cards_bytes_per_s: float, in_network: bool = True
) -> float | None:
    """Return the most bus bandwidth between hosts, in B/s, as nccl-tests counts it; None as above."""
    bound = algorithm_bound(
        operation,
        num_hosts=num_hosts,
        ranks_per_host=ranks_per_host,
        cards_bytes_per_s=cards_bytes_per_s,
        in_network=in_network,
    )
    known = next((name for name in get_args(Operation) if name == operation), None)
    factor = None if known is None else bus_factor(known, num_hosts * ranks_per_host)
    return None if bound is None or factor is None else bound * factor


def cards_bytes_per_s(facts: Mapping[str, Any]) -> float | None:
    """Return what the active InfiniBand or RoCE ports of a host send at most; None where it told of none.

    >>> cards_bytes_per_s({"infiniband": [{"state": "ACTIVE", "rate": "400 Gb/sec (4X NDR)"}]})
    50000000000.0
    """
    ports = [port for port in facts.get("infiniband") or () if port["state"] == "ACTIVE"]
    rates = [_RATE.match(port["rate"] or "") for port in ports]
    known = [float(rate.group(1)) for rate in rates if rate]
    return sum(known) * 1e9 / BITS if known else None

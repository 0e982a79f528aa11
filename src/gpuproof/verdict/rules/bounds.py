"""Upper bounds set by a board's data sheet and by the network between hosts.

A board's rate is the peak rate of its data type, memory or links. It is looked up by the driver's exact name;
a simulated device declares its rate. For an unknown board, there is no rate.

With N hosts, each host must send or receive at least a certain fraction of the data over its own network
cards, however the operation is implemented. If `c` is the total one-way bandwidth of one host's cards, the
algorithm bandwidth is at most c · N / (2 (N − 1)) for an all-reduce, or c if the network itself does the
reduction; the bus bandwidth is that value times its factor for the number of ranks, so it may exceed c with
two hosts.

>>> bus_bound("all_reduce", num_hosts=2, ranks_per_host=8, cards_bytes_per_s=400e9)
750000000000.0
>>> bus_bound("all_reduce", num_hosts=1, ranks_per_host=8, cards_bytes_per_s=400e9) is None
True
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, get_args

from gpuproof.base.units import bandwidth
from gpuproof.hardware.boards import (
    PEAK_TYPE_OF_PRECISION,
    UNKNOWN_HEADROOM,
    BandwidthPeak,
    Link,
    Peak,
    board_names,
    find_link_peak,
    find_memory_peak,
    find_peak,
)
from gpuproof.launches.collectives import bus_factor
from gpuproof.records.outcome import kind_of
from gpuproof.records.result import WHOLE, Measure
from gpuproof.records.work.collective import Operation
from gpuproof.verdict.facts import FleetFacts, HostFacts, host_of, port_rates

BITS = 8
LARGE_BYTES = 128 * 2**20
LEAST_BYTES = {"all": LARGE_BYTES, "pair": 16 * 2**20, "host": 16 * 2**20}
"""Minimum sizes per link, for collectives and for copies. Smaller transfers are limited by link latency, not
bandwidth."""
BOTH_WAYS = 2.0
"""Factor applied to a link's one-way bandwidth for simultaneous copies in both directions, or for in-network
reduction."""
PRECISIONS = {"fp16": "amp"}
"""Maps a data type to the precision whose peak applies to it."""
BYTE_RATES = ("B/s", "bytes/s")


def algorithm_bound(
    operation: str, *, num_hosts: int, ranks_per_host: int, cards_bytes_per_s: float
) -> float | None:
    """Return the maximum algorithm bandwidth between hosts, in B/s; None if no network is needed.

    Assumes that the network itself may do the reduction, since this cannot be ruled out.
    """
    n = num_hosts
    if n < 2 or operation not in get_args(Operation):
        return None
    shares = {
        "all_reduce": max(1.0, n / (2 * (n - 1))),
        "all_gather": n / (n - 1),
        "reduce_scatter": n / (n - 1),
        "all_to_all": n / ((n - 1) * ranks_per_host),
    }
    # With a root, or a single pair, all data has to pass through one host once.
    return cards_bytes_per_s * shares.get(
        operation, n / (n - 1) if operation in ("gather", "scatter") else 1.0
    )


def bus_bound(
    operation: str, *, num_hosts: int, ranks_per_host: int, cards_bytes_per_s: float
) -> float | None:
    """Return the maximum bus bandwidth between hosts, in B/s, as nccl-tests counts it; None as above."""
    bound = algorithm_bound(
        operation, num_hosts=num_hosts, ranks_per_host=ranks_per_host, cards_bytes_per_s=cards_bytes_per_s
    )
    operation_name = next((name for name in get_args(Operation) if name == operation), None)
    factor = None if operation_name is None else bus_factor(operation_name, num_hosts * ranks_per_host)
    return None if bound is None or factor is None else bound * factor


def cards_bytes_per_s(facts: Mapping[str, Any]) -> float | None:
    """Return the maximum send rate of a host's active InfiniBand or RoCE ports; None if unreported.

    >>> cards_bytes_per_s({"infiniband": [{"state": "ACTIVE", "rate": "400 Gb/sec (4X NDR)"}]})
    50000000000.0
    """
    gigabits = port_rates(facts)
    return sum(gigabits) * 1e9 / BITS if gigabits else None


def dense_rate(measure: Measure, facts: FleetFacts) -> tuple[float, str] | None:
    """Return the data-sheet rate for a measure's board, in the measure's unit, and the source.

    Depending on the measure, this is the dense rate for the data type, the memory rate, or the rate of the
    links that limit a large copy or collective; for a simulated device, the declared rate. None if the board
    or the limiting part is unknown.
    """
    decisive = _decisive(measure, facts)
    if decisive is None or int(measure.labels.get("size_bytes", LARGE_BYTES)) < LEAST_BYTES.get(
        decisive[1], 0
    ):
        return None
    name, _, peak = decisive
    source = f"the declared rate of {name}"
    if not isinstance(peak, float):
        source = f"the data-sheet rate of {name} ({peak.provenance})"
    return _rate(peak) * _ways(measure), source


def ceiling_of(measure: Measure, facts: FleetFacts) -> tuple[float, str] | None:
    """Return the hardware's maximum for a measure, and its source; None if unknown."""
    if "num_ranks" in measure.labels and not _is_within_a_host(measure, facts):
        return _network_ceiling(measure, facts)
    decisive = _decisive(measure, facts)
    if decisive is None:
        return None
    name, part, peak = decisive
    if isinstance(peak, float):
        return peak * _ways(measure), f"the declared maximum of {name}"
    most = peak.at_clock(_clock(measure, facts)) if isinstance(peak, Peak) else peak.bytes_per_s
    return most * (
        BOTH_WAYS if part == "all" else _ways(measure)
    ), f"the maximum of {name} ({peak.provenance})"


def most_of_any_board(measure: Measure) -> tuple[float, str] | None:
    """Return the maximum over all known boards for a measure, in FLOP/s or B/s, and the board.

    For a total over several devices, the limit is multiplied by their number.
    """
    most = highest_rate(measure.unit, measure.labels)
    is_sum = kind_of(measure.subject) in ("host", "whole") and "num_ranks" not in measure.labels
    several = measure.labels.get("num_devices", 1) if is_sum else 1
    return None if most is None else (most[0] * several, most[1])


def highest_rate(
    unit: str, labels: Mapping[str, Any], names: Sequence[str] | None = None
) -> tuple[float, str] | None:
    """Return the maximum in FLOP/s or B/s over all known boards, and which board reaches it; else None.

    `labels` select the data type (`dtype`), or show that the measure uses links (`num_ranks`, `kind`).
    """
    if unit == "FLOP/s":
        parts, headroom = types_of(labels.get("dtype")), UNKNOWN_HEADROOM
    elif unit in BYTE_RATES:
        is_of_links = "num_ranks" in labels or labels.get("kind") == "d2d"
        parts, headroom = (["all"], BOTH_WAYS) if is_of_links else (["memory"], 1.0)
    else:
        return None
    rate, name = max(board_rates(parts, names or board_names()), default=(None, ""))
    best = "" if names else ", the best known board"
    return None if rate is None else (rate * headroom, f"the maximum of {name}{best}")


def types_of(dtype: object) -> list[str]:
    """Return the data type, or all types if no known board supports it."""
    has_rate = bool(board_rates([str(dtype)], board_names()))
    return [str(dtype)] if has_rate else list(PEAK_TYPE_OF_PRECISION)


def board_rates(parts: Sequence[str], names: Sequence[str]) -> list[tuple[float, str]]:
    """Return each board's rates for these parts, with its name; skips a part that a board lacks."""
    return [(_rate(peak), name) for name in names for part in parts if (peak := _find(name, part))]


DECLARED = {
    **dict.fromkeys(("fp32", "tf32", "fp64"), "flops_per_s"),
    **dict.fromkeys(("fp16", "bf16", "amp"), "flops_16bit_per_s"),
    **{"memory": "memory_bytes_per_s", "host": "host_link_bytes_per_s"},
    **dict.fromkeys(("pair", "all"), "peer_link_bytes_per_s"),
}
"""The rate that a simulated device declares for each part of a board."""


def _find(name: str, part: str) -> Peak | BandwidthPeak | None:
    """Return the rate of a part of a board: a data type, its memory, or a link."""
    if part == "memory":
        return find_memory_peak(name)
    link = next((link for link in get_args(Link) if link == part), None)
    return find_peak(name, PRECISIONS.get(part, part)) if link is None else find_link_peak(name, link)


def _rate(peak: Peak | BandwidthPeak | float) -> float:
    if isinstance(peak, float):
        return peak
    return peak.flops_per_s if isinstance(peak, Peak) else peak.bytes_per_s


def _decisive(measure: Measure, facts: FleetFacts) -> tuple[str, str, Peak | BandwidthPeak | float] | None:
    """Return a measure's board, the part that limits it, and that part's rate; None if unknown."""
    name, part = device_of(measure, facts), _part_of(measure, facts)
    if name is None or part is None:
        return None
    declared = [
        float(device["declared"][DECLARED[part]])
        for device in _devices_of(measure, facts)
        if "declared" in device and part in DECLARED
    ]
    peak = _find(name, part) or (min(declared) if declared else None)
    return None if peak is None else (name, part, peak)


def _part_of(measure: Measure, facts: FleetFacts) -> str | None:
    """Return the part of a board that limits a measure; None if it is unknown or may be something else."""
    labels, unit = measure.labels, measure.unit
    if labels.get("workload") == "gemm":
        return str(labels.get("dtype")) if unit == "FLOP/s" else None
    if unit not in BYTE_RATES:
        return None
    if labels.get("workload") == "memory":
        return "memory"
    if measure.name == "link bandwidth" and labels.get("kind") == "d2d":
        return "pair"
    if measure.name == "link bandwidth":
        return "host" if labels.get("host_memory") == "pinned" else None
    return "all" if "num_ranks" in labels and _is_within_a_host(measure, facts) else None


def _is_within_a_host(measure: Measure, facts: FleetFacts) -> bool:
    return kind_of(measure.subject) == "host" or (measure.subject == WHOLE and len(facts.hosts) == 1)


def _ways(measure: Measure) -> float:
    return BOTH_WAYS if measure.labels.get("direction") == "both_ways" else 1.0


def _network_ceiling(measure: Measure, facts: FleetFacts) -> tuple[float, str] | None:
    """Return the limit set by network cards between hosts, for boards without any other path.

    NVLink can span hosts (GB200 racks), but none of the boards with known peaks does.
    """
    labels, name = measure.labels, device_of(measure, facts)
    if name is None or find_memory_peak(name) is None or labels.get("quantity") != "bus bandwidth":
        return None
    num_hosts, ranks = len(facts.hosts), labels["num_ranks"]
    cards = [cards_bytes_per_s(host_facts) for host_facts in facts.hosts.values()]
    if not isinstance(ranks, int) or num_hosts < 2 or ranks % num_hosts or None in cards:
        return None
    slowest = min(card for card in cards if card is not None)
    bound = bus_bound(
        str(labels["operation"]),
        num_hosts=num_hosts,
        ranks_per_host=ranks // num_hosts,
        cards_bytes_per_s=slowest,
    )
    why = f"which {num_hosts} hosts with {bandwidth(slowest)} of network bandwidth each cannot exceed"
    return None if bound is None else (bound, why)


def device_of(measure: Measure, facts: FleetFacts) -> str | None:
    """Return the driver's name for a measure's device; None if there are several or it is unknown."""
    names = {str(device["name"]) for device in _devices_of(measure, facts) if device.get("name")}
    return names.pop() if len(names) == 1 else None


def _devices_of(measure: Measure, facts: FleetFacts) -> list[Mapping[str, Any]]:
    """Return what hosts report about a measure's device; for a link or a host, about all its devices."""
    gpu = "" if kind_of(measure.subject) == "link" else measure.subject.partition("/gpu/")[2]
    host = host_of(measure.subject)
    hosts = facts.hosts.values() if host is None else [facts.hosts.get(host, {})]
    return [device for of_host in hosts for device in _devices(of_host, gpu)]


def _devices(facts: HostFacts, gpu: str) -> list[Mapping[str, Any]]:
    devices = list(facts.get("devices") or ())
    return [d for d in devices if not gpu or gpu in (d.get("uuid"), str(d.get("index")))]


def _clock(measure: Measure, facts: FleetFacts) -> float | None:
    gpu = measure.subject.partition("/gpu/")[2]
    listed = (facts.hosts.get(host_of(measure.subject) or "", {}).get("accelerators") or {}).get("devices")
    clocks = [
        (device.get("static") or {}).get("clock_sm_max_mhz")
        for device in listed or ()
        if not gpu or gpu in (device.get("uuid"), str(device.get("physical_index")))
    ]
    reported = [clock for clock in clocks if clock]
    return max(reported) if reported else None

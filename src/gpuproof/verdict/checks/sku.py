"""Has each machine all that its product has, and is its software ahead of known security notices?

In: what hosts report, and the product where it was given (--sku). A detected product is advice, since a
virtual machine may have been given a part of one; where several products fit, what all have is judged.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from gpuproof.hardware.skus import Sku, detect_skus, find_minimum, find_sku, shared_values
from gpuproof.records.outcome import Outcome, not_applicable, pass_or_fail, skipped
from gpuproof.verdict.check import check
from gpuproof.verdict.checks.answers import Device, host_check, of_hosts
from gpuproof.verdict.facts import FleetFacts, HostFacts

SHORT_MEMORY = 0.95
"""Drivers report no 5 % less than what data sheets print: of an H100's 80 GB 85.5e9 bytes."""
OF_WHOLE_MACHINE = ("gpus", "nvlinks", "ports")
LOOK = "Look at dmesg, nvidia-smi -L (rocm-smi), ibstat and lspci -vv; a smaller machine is another --sku"
Numbers = Mapping[str, float]
Read = Callable[[HostFacts, Sequence[Device], Numbers], float | None]


def _least(devices: Sequence[Device], facts: str, key: str) -> float | None:
    """Return the least of all GPUs; None where one does not report it."""
    numbers: list[Any] = [(device.get(facts) or {}).get(key) for device in devices]
    return None if not numbers or None in numbers else min(map(float, numbers))


def _memory_gb(_node: HostFacts, devices: Sequence[Device], needed: Numbers) -> float | None:
    least = _least(devices, "static", "mem_total_bytes")
    is_short = least is not None and least < SHORT_MEMORY * needed["memory_gb"] * 1e9
    return needed["memory_gb"] if least is not None and not is_short else least and least / 1e9


def _ports(node: HostFacts, _devices: Sequence[Device], needed: Numbers) -> float | None:
    active = [port.get("rate") or "" for port in node.get("infiniband") or () if port["state"] == "ACTIVE"]
    rates = [float(rate[0]) for text in active if (rate := re.match(r"[\d.]+", text))]
    return sum(rate >= needed["port_gbit_per_s"] for rate in rates)


PARTS: Mapping[str, tuple[str, Read]] = {
    "gpus": ("GPUs: {:g}", lambda _node, devices, _needed: len(devices)),
    "memory_gb": ("{:g} GB a GPU", _memory_gb),
    "nvlinks": (
        "{:g} NVLink or xGMI links up",
        lambda _n, d, _needed: _least(d, "state", "nvlink_links_active"),
    ),
    "pcie_gen": (
        "PCIe generation {:g}",
        lambda _node, devices, _needed: _least(devices, "static", "pcie_gen_max"),
    ),
    "pcie_width": ("PCIe x{:g}", lambda _node, devices, _needed: _least(devices, "state", "pcie_width")),
    "ports": ("ports up at full rate: {:g}", _ports),
}
"""By key of skus.toml: how it is told, and what the host has of it; None where it does not report it."""


@check("sku", "the machine has all that its product has")
def judge_sku(facts: FleetFacts) -> list[Outcome]:
    """Compare each host with its product; of a product that was given, a missing GPU is a FAIL."""
    return of_hosts(facts, lambda subject, node: _of_host(subject, node, facts.sku))


def _of_host(subject: str, node: HostFacts, sku_name: str | None) -> Outcome:
    devices = (node.get("accelerators") or {}).get("devices") or ()
    devices = [device for device in devices if not (device.get("static") or {}).get("mig_parent_uuid")]
    if not devices and sku_name is None:
        return not_applicable("no driver lists a GPU, and no --sku says what there should be", subject)
    board = next(iter(Counter(str(device.get("name")) for device in devices)), "")
    product = ((node.get("settings") or {}).get("product") or {}).get("value")
    skus = [find_sku(sku_name)] if sku_name else detect_skus(board, len(devices), product)
    if not skus:
        return not_applicable(f"skus.toml has no machine with {len(devices)} × {board}", subject)
    is_whole = sku_name is not None or skus[0].is_product(product) or 2 * len(devices) >= skus[0].num_gpus
    return _compared(subject, node, devices, skus, is_whole=is_whole, is_advice=sku_name is None)


def _compared(
    subject: str,
    node: HostFacts,
    devices: Sequence[Device],
    skus: Sequence[Sku],
    *,
    is_whole: bool,
    is_advice: bool,
) -> Outcome:
    values = shared_values(skus)
    needed = {key: float(sourced.value) for key, sourced in values.items()}
    keys = [key for key in PARTS if key in needed and (is_whole or key not in OF_WHOLE_MACHINE)]
    read = {key: number for key in keys if (number := PARTS[key][1](node, devices, needed)) is not None}
    short = [key for key, number in read.items() if number < needed[key]]
    shown = short or list(read)
    named = f"{'' if is_whole else 'a part of '}{' or '.join(sku.name for sku in skus)}"
    if not shown:
        return skipped(f"it may be {named}, and reports none of {', '.join(keys)}", subject=subject)
    return pass_or_fail(
        subject,
        not short,
        ", ".join(PARTS[key][0].format(read[key]) for key in shown),
        expected=f"{', '.join(PARTS[key][0].format(needed[key]) for key in shown)} ({named})",
        source="; ".join(dict.fromkeys(values[key].source for key in shown)),
        next_step=LOOK,
        warns=is_advice or "gpus" not in short,
    )


@host_check("security notices", "no driver or container toolkit is older than a security notice asks for")
def judge_versions(subject: str, node: HostFacts) -> Outcome:
    """Compare versions with the lowest of their branch that no notice names; being behind is advice."""
    drivers = (node.get("accelerators") or {}).get("drivers") or {}
    toolkit = ((node.get("settings") or {}).get("container toolkit") or {}).get("value")
    versions = {
        "NVIDIA driver": (drivers.get("nvidia") or {}).get("version"),
        "NVIDIA Container Toolkit": toolkit,
    }
    versions = {name: version for name, version in versions.items() if version}
    minima = {name: row for name, version in versions.items() if (row := find_minimum(name, version))}
    if not minima:
        shown = ", ".join(f"{name} {version}" for name, version in versions.items())
        reason = f"no notice in versions.toml names the branch of {shown}"
        return skipped(reason, subject=subject) if shown else not_applicable("it reports no version", subject)
    behind = [name for name, row in minima.items() if _numbers(versions[name]) < _numbers(str(row.value))]
    names = behind or list(minima)
    return pass_or_fail(
        subject,
        not behind,
        ", ".join(f"{name} {versions[name]}" for name in names),
        expected=", ".join(f"{minima[name].value} or newer" for name in names),
        source="; ".join(minima[name].source for name in names),
        next_step=f"Update {' and '.join(names)}",
        warns=True,
    )


def _numbers(version: str) -> tuple[int, ...]:
    return tuple(int(number) for number in re.findall(r"\d+", version.partition("-")[0]))

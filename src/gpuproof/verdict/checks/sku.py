"""Does each machine match its product, and is its software free of known security notices?

Input: what hosts report, and the product if given (--sku). A detected product is only a hint, since a virtual
machine may have only part of one. If several products fit, only what they have in common is checked.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from gpuproof.hardware.skus import detect_skus, find_minimum, find_sku, shared_values
from gpuproof.records.outcome import Outcome, not_applicable, pass_or_fail, skipped
from gpuproof.verdict.check import check
from gpuproof.verdict.checks.answers import Device, host_check, of_hosts
from gpuproof.verdict.facts import FleetFacts, HostFacts, port_rates

LEAST: Mapping[str, tuple[str, str]] = {
    "memory_gb": ("static", "mem_total_bytes"),
    "nvlinks": ("state", "nvlink_links_active"),
    "pcie_gen": ("static", "pcie_gen_max"),
    "pcie_width": ("state", "pcie_width"),
}
"""Per-GPU keys of skus.toml, and where to find them in a GPU's facts; the minimum over all GPUs counts."""
WORDS = {
    "gpus": "GPUs: {:g}",
    "memory_gb": "{:.4g} GB per GPU",
    "nvlinks": "{:g} NVLink or xGMI links up",
    "pcie_gen": "PCIe generation {:g}",
    "pcie_width": "PCIe x{:g}",
    "ports": "ports up at full rate: {:g}",
}
IDLE = {"pcie_gen": " at most in its slot, not read under load", "pcie_width": " as negotiated when idle"}
"""Text added for links without readings under load: the generation drops when idle, so the slot's generation
is used."""
OF_WHOLE_MACHINE = ("gpus", "nvlinks", "ports")
ENOUGH_OF = {"memory_gb": 0.95}
"""Fraction of the expected value that passes: drivers report up to 5 % less than data sheets state, e.g.
85.5e9 bytes for the 80 GB of an H100."""
LOOK = "Check dmesg, nvidia-smi -L (rocm-smi), ibstat and lspci -vv; for a smaller machine, use another --sku"


def _part(key: str, node: HostFacts, devices: Sequence[Device], needed: Mapping[str, float]) -> float | None:
    """Return the amount of a component that a host has; None if the host does not report it."""
    if key == "gpus":
        return len(devices)
    if key == "ports":
        unread = node.get("infiniband") is None
        return None if unread else sum(rate >= needed["port_gbit_per_s"] for rate in port_rates(node))
    facts, name = LEAST[key]
    at_rest: list[Any] = [(device.get(facts) or {}).get(name) for device in devices]
    links = [device["loaded"] or {} for device in devices]
    numbers = [link.get(key, number) for link, number in zip(links, at_rest, strict=True)]
    if not numbers or None in numbers:
        return None
    return min(map(float, numbers)) * (1e-9 if key == "memory_gb" else 1)


@check("sku", "the machine has every component that its product should have")
def judge_sku(facts: FleetFacts) -> list[Outcome]:
    """Compare each host with its product; if the product is specified, a missing GPU is a FAIL."""
    return of_hosts(facts, lambda subject, node: _of_host(subject, node, facts))


def _of_host(subject: str, node: HostFacts, facts: FleetFacts) -> Outcome:
    devices, sku_name = (node.get("accelerators") or {}).get("devices") or (), facts.sku
    devices = [device for device in devices if not (device.get("static") or {}).get("mig_parent_uuid")]
    if not devices and sku_name is None:
        return not_applicable("no driver lists a GPU, and no --sku says what to expect", subject)
    board = next(iter(Counter(str(device.get("name")) for device in devices)), "")
    links = facts.pcie_under_load
    devices = [{**device, "loaded": links.get(str(device.get("uuid")))} for device in devices]
    how = dict.fromkeys(IDLE, " under load") if all(device["loaded"] for device in devices) else IDLE
    product = ((node.get("settings") or {}).get("product") or {}).get("value")
    skus = [find_sku(sku_name)] if sku_name else detect_skus(board, len(devices), product)
    if not skus:
        return not_applicable(f"skus.toml has no machine with {len(devices)} × {board}", subject)
    is_whole = sku_name is not None or skus[0].is_product(product) or 2 * len(devices) >= skus[0].num_gpus
    values = shared_values(skus)
    needed = {key: float(sourced.value) for key, sourced in values.items()}
    keys = [key for key in WORDS if key in needed and (is_whole or key not in OF_WHOLE_MACHINE)]
    read = {key: number for key in keys if (number := _part(key, node, devices, needed)) is not None}
    short = [key for key, number in read.items() if number < needed[key] * ENOUGH_OF.get(key, 1)]
    shown = short or list(read)
    named = f"{'' if is_whole else 'a part of '}{' or '.join(sku.name for sku in skus)}"
    if not shown:
        return skipped(f"it may be {named}, but reports none of {', '.join(keys)}", subject=subject)
    return pass_or_fail(
        subject,
        not short,
        ", ".join(WORDS[key].format(read[key]) + how.get(key, "") for key in shown),
        expected=f"{', '.join(WORDS[key].format(needed[key]) for key in shown)} ({named})",
        source="; ".join(dict.fromkeys(values[key].source for key in shown)),
        next_step=LOOK,
        warns=sku_name is None or "gpus" not in short,
    )


@host_check("security notices", "no driver or container toolkit is older than a security notice requires")
def judge_versions(subject: str, node: HostFacts) -> Outcome:
    """Compare each version with the lowest in its branch without a notice; older ones are advisory."""
    drivers = (node.get("accelerators") or {}).get("drivers") or {}
    toolkit = ((node.get("settings") or {}).get("container toolkit") or {}).get("value")
    pairs = (
        ("NVIDIA driver", (drivers.get("nvidia") or {}).get("version")),
        ("NVIDIA Container Toolkit", toolkit),
    )
    versions = {name: str(version) for name, version in pairs if version}
    minima = {name: row for name, version in versions.items() if (row := find_minimum(name, version))}
    if not minima:
        shown = ", ".join(f"{name} {version}" for name, version in versions.items())
        reason = f"no notice in versions.toml covers the branch of {shown}"
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

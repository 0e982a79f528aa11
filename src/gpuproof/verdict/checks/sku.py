"""Has each machine all that its product has, and is its software ahead of known security notices?

In: what hosts report, and the product where it was given (--sku). A detected product is advice, since a
virtual machine may have been given a part of one; where several products fit, what all have is judged.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from gpuproof.hardware.skus import SourcedValue, detect_skus, find_minimum, find_sku, shared_values
from gpuproof.records.outcome import Outcome, not_applicable, pass_or_fail, skipped
from gpuproof.verdict.check import check
from gpuproof.verdict.checks.answers import host_check, of_hosts
from gpuproof.verdict.facts import FleetFacts, HostFacts

SHORT_MEMORY = 0.95
"""Drivers report a little less than what data sheets print, never 5 %: an H100's 80 GB are 85.5e9 bytes."""
OF_WHOLE_MACHINE = ("gpus", "nvlinks", "ports")
LOOK = "Look at dmesg, nvidia-smi -L (rocm-smi), ibstat and lspci -vv; a smaller machine is another --sku"
Device = Mapping[str, Any]


def _least(fact: str, key: str) -> Callable[[HostFacts, Sequence[Device], Mapping[str, SourcedValue]], Any]:
    """Read the least of all GPUs; None where one does not report it."""

    def read(_node: HostFacts, devices: Sequence[Device], _values: Mapping[str, SourcedValue]) -> Any:
        numbers = [(device.get(fact) or {}).get(key) for device in devices]
        return None if not numbers or None in numbers else min(map(float, numbers))

    return read


def _memory_gb(node: HostFacts, devices: Sequence[Device], values: Mapping[str, SourcedValue]) -> Any:
    least = _least("static", "mem_total_bytes")(node, devices, values)
    nominal = values["memory_gb"].value
    return None if least is None else nominal if least >= SHORT_MEMORY * nominal * 1e9 else least / 1e9


def _ports_up(node: HostFacts, _devices: Sequence[Device], values: Mapping[str, SourcedValue]) -> Any:
    ports = node.get("infiniband")
    if ports is None or "port_gbit_per_s" not in values:
        return None
    rates = [re.match(r"[\d.]+", port.get("rate") or "") for port in ports if port.get("state") == "ACTIVE"]
    return sum(float(rate[0]) >= values["port_gbit_per_s"].value for rate in rates if rate)


PARTS: Mapping[str, tuple[str, Callable[[HostFacts, Sequence[Device], Mapping[str, SourcedValue]], Any]]] = {
    "gpus": ("{} GPUs", lambda _node, devices, _values: len(devices)),
    "memory_gb": ("{} GB a GPU", _memory_gb),
    "nvlinks": ("{} NVLink or xGMI links up", _least("state", "nvlink_links_active")),
    "pcie_gen": ("PCIe generation {}", _least("static", "pcie_gen_max")),
    "pcie_width": ("PCIe x{}", _least("state", "pcie_width")),
    "ports": ("{} ports up at full rate", _ports_up),
}
"""By key of skus.toml: how it is told, and what the host has of it; None where it does not report it."""


@check("sku", "the machine has all that its product has")
def judge_sku(facts: FleetFacts) -> list[Outcome]:
    """Compare each host with its product; of a product that was given, a missing GPU is a FAIL."""
    return of_hosts(facts, lambda subject, node: _of_host(subject, node, facts.sku))


def _of_host(subject: str, node: HostFacts, sku_name: str | None) -> Outcome:
    reported = node.get("accelerators") or {}
    devices = [d for d in reported.get("devices") or () if not (d.get("static") or {}).get("mig_parent_uuid")]
    if not devices and sku_name is None:
        return not_applicable("no driver lists a GPU, and no --sku says what there should be", subject)
    board = Counter(str(device.get("name")) for device in devices).most_common(1)
    product = ((node.get("settings") or {}).get("product") or {}).get("value")
    skus = [find_sku(sku_name)] if sku_name else detect_skus(board[0][0], len(devices), product)
    if not skus:
        return not_applicable(f"skus.toml has no machine with {len(devices)} × {board[0][0]}", subject)
    values = shared_values(skus)
    is_whole = sku_name is not None or skus[0].is_product(product) or 2 * len(devices) >= skus[0].num_gpus
    keys = [key for key in PARTS if key in values and (is_whole or key not in OF_WHOLE_MACHINE)]
    found = {key: PARTS[key][1](node, devices, values) for key in keys}
    short = [key for key in keys if found[key] is not None and found[key] < values[key].value]
    judged = short or [key for key in keys if found[key] is not None]
    if not judged:
        return skipped(
            f"it may be a part of {skus[0].name}, and reports none of {', '.join(keys)}", subject=subject
        )
    named = " or ".join(sku.name for sku in skus)
    part = "" if is_whole else "a part of "
    return pass_or_fail(
        subject,
        not short,
        ", ".join(_told(key, found[key]) for key in judged),
        expected=f"{', '.join(_told(key, values[key].value) for key in judged)} ({part}{named})",
        source="; ".join(dict.fromkeys(values[key].source for key in judged)),
        next_step=LOOK,
        warns=sku_name is None or "gpus" not in short,
    )


def _told(key: str, number: float) -> str:
    return PARTS[key][0].format(f"{number:g}")


@host_check("security notices", "no driver or container toolkit is older than a security notice asks for")
def judge_versions(subject: str, node: HostFacts) -> Outcome:
    """Compare versions with the lowest of their branch that no notice names; being behind is advice."""
    versions = dict(_versions(node))
    if not versions:
        return not_applicable("it reports no driver or toolkit of NVIDIA's", subject)
    minima = {name: find_minimum(name, version) for name, version in versions.items()}
    judged = {name: row for name, row in minima.items() if row is not None}
    if not judged:
        reason = ", ".join(f"{name} {version}" for name, version in versions.items())
        return skipped(f"no notice in versions.toml names the branch of {reason}", subject=subject)
    behind = [name for name, row in judged.items() if _numbers(versions[name]) < _numbers(row.version)]
    shown = behind or list(judged)
    return pass_or_fail(
        subject,
        not behind,
        ", ".join(f"{name} {versions[name]}" for name in shown),
        expected=", ".join(f"{judged[name].version} or newer" for name in shown),
        source="; ".join(f"{judged[name].source}, {judged[name].date}" for name in shown),
        next_step=f"Update {' and '.join(shown)}",
        warns=True,
    )


def _versions(node: HostFacts) -> Iterator[tuple[str, str]]:
    driver = (((node.get("accelerators") or {}).get("drivers") or {}).get("nvidia") or {}).get("version")
    toolkit = ((node.get("settings") or {}).get("container toolkit") or {}).get("value")
    yield from (("NVIDIA driver", str(driver)),) if driver else ()
    yield from (("NVIDIA Container Toolkit", str(toolkit)),) if toolkit else ()


def _numbers(version: str) -> tuple[int, ...]:
    return tuple(int(number) for number in re.findall(r"\d+", version.partition("-")[0]))

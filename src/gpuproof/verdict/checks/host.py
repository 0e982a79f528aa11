"""How is each host set up? The facts of `records/host_facts.csv` against what their sources expect.

In: the facts that hosts report of themselves. Out: of each host one line of what is fine and what is only
reported, a WARN for each setting that is not as its source wants it, and one line of what could not be read.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from gpuproof.base.files import packaged_rows
from gpuproof.records.outcome import Judged, Outcome, not_applicable, pass_or_fail, skipped
from gpuproof.verdict.check import check
from gpuproof.verdict.checks.answers import MUTE, RUN_AGAIN, no_gpu, unanswered
from gpuproof.verdict.facts import FleetFacts, HostFacts

NAME = "host settings"
ROWS = packaged_rows("records/host_facts.csv")
EXPECTED = "what the sources of records/host_facts.csv ask for"
NEEDS_ROOT = "reading it needs root, and nothing here is read as root"
OLDER = "the run is of a version that did not record them"
UNFINISHED_FABRIC = ("not started", "in progress")
FABRIC_SOURCE = "https://docs.nvidia.com/datacenter/tesla/fabric-manager-user-guide/index.html"
NVML = "https://docs.nvidia.com/deploy/nvml-api/group__nvmlDeviceQueries.html"


@check(NAME, "no setting or event of the host's own disturbs its GPUs")
def judge_host_settings(facts: FleetFacts) -> Iterator[Outcome | Judged]:
    """Judge the settings of every host; all of it is advice."""
    if not facts.all_hosts:
        yield no_gpu(facts)
    for host, node in facts.all_hosts.items():
        if node is None:
            yield unanswered(f"host/{host}", MUTE, RUN_AGAIN)
        elif node.get("settings") is None:
            yield not_applicable(OLDER, f"host/{host}")
        else:
            yield from _of_host(f"host/{host}", node)


def _of_host(subject: str, node: HostFacts) -> Iterator[Outcome | Judged]:
    rows = [row for row in ROWS if _applies(str(row["applies"]), node)]
    values = {row["name"]: node["settings"].get(row["name"]) or {} for row in rows}
    bad = [row for row in rows if not _is_good(row, values[row["name"]].get("value"))]
    yield _fine(subject, [row for row in rows if row not in bad and row["read"] != "root"], values)
    yield from (_warning(subject, row, values[row["name"]]["value"]) for row in bad)
    for row in (row for row in rows if row["read"] == "root"):
        outcome = skipped(NEEDS_ROOT, row["next_step"], subject, responsible="administrator")
        yield Judged(name=row["name"], outcome=outcome, is_required=False)
    yield from (item for item in (_fabric(subject, node), _temperature(subject, node)) if item is not None)


def _fine(
    subject: str, rows: Sequence[Mapping[str, Any]], values: Mapping[str, Mapping[str, Any]]
) -> Outcome:
    """Return one line of all that is fine, of what has no expectation, and of what could not be read."""
    read = {row["name"]: value for row in rows if (value := values[row["name"]].get("value")) is not None}
    unread = [f"{row['name']} ({values[row['name']].get('missing')})" for row in rows if row["good"]]
    unread = [text for text in unread if text.partition(" (")[0] not in read]
    missing = f"; not read: {', '.join(unread)}" if unread else ""
    if not any(row["good"] and row["name"] in read for row in rows):
        return not_applicable(f"none of them can be read here{missing}", subject)
    seen = "; ".join(f"{name} {value}" for name, value in read.items()) + missing
    return pass_or_fail(subject, True, seen, expected=EXPECTED, source=EXPECTED, next_step=None)


def _is_good(row: Mapping[str, Any], value: str | None) -> bool:
    """Say whether a value is fine, has no expectation, or is missing and so no evidence against the host."""
    return value is None or not row["good"] or re.fullmatch(row["good"], value) is not None


def _warning(subject: str, row: Mapping[str, Any], value: str) -> Judged:
    outcome = pass_or_fail(
        subject,
        False,
        value,
        expected=row["expected"],
        source=row["source"],
        next_step=row["next_step"],
        warns=True,
    )
    return Judged(name=row["name"], outcome=outcome, is_required=False)


def _gpus(node: HostFacts) -> Sequence[Mapping[str, Any]]:
    return (node.get("accelerators") or {}).get("devices") or ()


def _applies(to: str, node: HostFacts) -> bool:
    gpus = _gpus(node)
    vendors = {device.get("vendor") for device in gpus}
    nodes = (node.get("affinity") or {}).get("numa_nodes") or {}
    return {
        "always": True,
        "gpu": bool(gpus),
        "gpus": len(gpus) > 1,
        "numa": bool(gpus) and len(nodes) > 1,
    }.get(to, to in vendors)


def _fabric(subject: str, node: HostFacts) -> Judged | None:
    """Warn where a GPU has not joined its NVLink fabric: collectives then go over PCIe, or fail."""
    states = [(device.get("static") or {}).get("fabric_state") for device in _gpus(node)]
    unfinished = [state for state in states if state in UNFINISHED_FABRIC]
    if not unfinished:
        return None
    manager = (node["settings"].get("fabric manager") or {}).get("value") or "not visible"
    outcome = pass_or_fail(
        subject,
        False,
        f"{len(unfinished)} of {len(states)} GPUs: {unfinished[0]} (nv-fabricmanager: {manager})",
        expected="every GPU has joined its NVLink fabric",
        source=FABRIC_SOURCE,
        next_step="Start nvidia-fabricmanager (GB200: nvidia-imex) and look at its log; then reset the GPUs",
        warns=True,
    )
    return Judged(name="NVLink fabric", outcome=outcome, is_required=False)


def _temperature(subject: str, node: HostFacts) -> Judged | None:
    """Report how warm GPUs are before they work, and warn at the maximum that their driver states."""
    warm = [
        (float(degrees), device.get("static") or {})
        for device in _gpus(node)
        if (degrees := (device.get("state") or {}).get("temp_gpu_c")) is not None
    ]
    if not warm:
        return None
    low, high = min(degrees for degrees, _ in warm), max(degrees for degrees, _ in warm)
    limits = [static.get("temp_max_c") or static.get("temp_slowdown_c") for _, static in warm]
    if not all(limits):
        return None
    is_cool = all(degrees < float(limit or 0) for (degrees, _), limit in zip(warm, limits, strict=True))
    spread = f" (spread {high - low:g} K)" if len(warm) > 1 else ""
    outcome = pass_or_fail(
        subject,
        is_cool,
        f"{low:g} to {high:g} °C{spread}" if low < high else f"{high:g} °C{spread}",
        expected=f"under the {min(float(limit or 0) for limit in limits):g} °C that the driver states",
        source=NVML,
        next_step="Look for other work on it, then at fans, coolant and dust",
        warns=True,
    )
    return Judged(name="temperature before work", outcome=outcome, is_required=False)

"""How is each host set up? The facts of `records/host_facts.csv`, compared with their sources.

Input: the facts that hosts report about themselves. Output: for each host, one line with everything that is
fine or reported for information only, and a WARN for each setting that differs from the advice of its source.
All of it is advisory.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from gpuproof.base.files import packaged_rows
from gpuproof.records.outcome import Expectation, Judged, Outcome, skipped
from gpuproof.verdict.check import check
from gpuproof.verdict.checks.answers import MUTE, RUN_AGAIN, no_gpu, unanswered
from gpuproof.verdict.facts import FleetFacts, HostFacts

NAME = "host settings"
ROWS = packaged_rows("records/host_facts.csv")
SETTINGS = Expectation("what each setting's source recommends", "records/host_facts.csv", "")


@check(NAME, "none of the host's settings or events disturbs its GPUs")
def judge_host_settings(facts: FleetFacts) -> Iterator[Outcome | Judged]:
    """Check the settings of every host."""
    if not facts.all_hosts:
        yield no_gpu(facts)
    for host, node in facts.all_hosts.items():
        if node is None:
            yield unanswered(f"host/{host}", MUTE, RUN_AGAIN)
        elif node.get("settings") is None:
            yield skipped("the run is from a version that did not record them", subject=f"host/{host}")
        else:
            yield from _of_host(f"host/{host}", node)


def _of_host(subject: str, node: HostFacts) -> Iterator[Outcome | Judged]:
    gpus: Sequence[Mapping[str, Any]] = (node.get("accelerators") or {}).get("devices") or ()
    rows = [row for row in ROWS if _applies(row["applies"], node, gpus)]
    values = {name: fact["value"] for name, fact in node["settings"].items()}
    bad = [row for row in rows if not _is_good(row, values.get(row["name"]))]
    yield from _fine(
        subject, [row for row in rows if row not in bad and row["read"] != "root"], node["settings"]
    )
    for row in bad:
        wanted = Expectation(row["expected"], row["source"], row["next_step"], "administrator", "WARN")
        yield _advice(row["name"], wanted.judge(False, values[row["name"]], subject=subject))
    for row in (row for row in rows if row["read"] == "root"):
        reason = str(node["settings"].get(row["name"], {}).get("missing"))
        yield _advice(row["name"], skipped(reason, row["next_step"], subject, responsible="administrator"))


def _advice(name: str, outcome: Outcome) -> Judged:
    return Judged(name=name, outcome=outcome, is_required=False)


def _applies(to: str, node: HostFacts, gpus: Sequence[Mapping[str, Any]]) -> bool:
    num_nodes = len((node.get("affinity") or {}).get("numa_nodes") or ())
    least = {"always": 0, "gpu": 1, "gpus": 2, "numa": 1 if num_nodes > 1 else len(gpus) + 1}
    return len(gpus) >= least[to] if to in least else any(gpu.get("vendor") == to for gpu in gpus)


def _is_good(row: Mapping[str, Any], value: str | None) -> bool:
    """Return whether a value is acceptable; missing values and values without an expectation are."""
    return value is None or not row["good"] or re.fullmatch(row["good"], value) is not None


def _fine(
    subject: str, rows: Sequence[Mapping[str, Any]], facts: Mapping[str, Any]
) -> Iterator[Outcome | Judged]:
    """Yield a line for rows that are fine or have no expectation, and a line for unreadable rows."""
    read = [row for row in rows if facts.get(row["name"], {}).get("value") is not None]
    unread = [row["name"] for row in rows if row["good"] and row not in read]
    reasons = "; ".join(f"{name} ({facts.get(name, {}).get('missing')})" for name in unread)
    if not any(row["good"] for row in read):
        yield skipped(f"none of them can be read here: {reasons}", subject=subject)
        return
    seen = "; ".join(f"{row['name']} {facts[row['name']]['value']}" for row in read)
    yield SETTINGS.judge(True, seen, subject=subject)
    if reasons:
        yield _advice(f"{NAME} not read", skipped(reasons, subject=subject))

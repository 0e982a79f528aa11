"""What derived files have in common: rows as CSV, JSON as it is written, and the time that a run took."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from gpuproof.records.codec import to_json
from gpuproof.records.collected import CaseRecords
from gpuproof.records.run import Environment, Failure
from gpuproof.suites.base import Export, JsonContent

OWNER = ("case", "replicate")
"""Keys of a row of epochs that say which launch it is of."""
HOSTS_FOLDER = "hosts"
"""Where the files of each of several hosts lie."""


def json_export(name: str, content: Any) -> Export:
    """Return a file of JSON."""
    return Export(name=name, content=JsonContent(content))


def csv_text(rows: Sequence[Mapping[str, Any]]) -> str:
    """Return rows of the same keys as CSV, the keys being its header; nothing where there is no row."""
    if not rows:
        return ""
    text = io.StringIO()
    writer = csv.DictWriter(text, fieldnames=list(rows[0]), lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    return text.getvalue()


def epochs_csv(epoch_lines: str) -> str:
    """Return the rows of a metrics_epoch.jsonl as CSV: the columns of S1.27 first, then whose they are."""
    rows = [json.loads(line) for line in epoch_lines.splitlines()]
    return csv_text([{**{key: row[key] for key in row if key not in OWNER}, **_owner(row)} for row in rows])


def _owner(row: Mapping[str, Any]) -> dict[str, Any]:
    return {key: row[key] for key in OWNER}


def failures_json(failures: Iterable[Failure]) -> list[dict[str, Any]]:
    """Return failures as exports have them; the progress of devices only where it is known."""
    rows = to_json(list(failures))
    return [{key: value for key, value in one.items() if key != "progress" or value} for one in rows]


def wall_clock_s(launches: Sequence[CaseRecords]) -> float | None:
    """Sum over launches the time from a rank's first record to its result, the longest rank's of each."""
    return sum(launch.taken_s or 0.0 for launch in launches) or None


def environment_facts(
    launches: Sequence[CaseRecords], *, by_inventory: bool = False
) -> dict[str, Any] | None:
    """Return the environment of each host, by its own or the inventory's name; None where none has one."""
    return {
        (by_inventory and launch.case.placement.host) or environment.host: environment.facts
        for launch in launches
        for environment in launch.of(Environment)
    } or None

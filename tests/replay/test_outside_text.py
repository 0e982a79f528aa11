"""Words of hosts and runs that a terminal would obey: none of them reaches a page, a line or an error."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from gpuproof.base.errors import GpuproofError
from gpuproof.campaign.conclude import conclude
from gpuproof.cli.main import cli
from gpuproof.report.formats import ReportFormat, render
from gpuproof.store.run import RunDirectory

RUNS = Path(__file__).parent / "runs"
OBEYED = "\x1b]0;owned\x07\x1b[2J\x9b31m\u202e\ud800\r\x08"
FREE = (
    "host",
    "hostname",
    "name",
    "message",
    "text",
    "notes",
    "exception",
    "hardware",
    "traceback",
    "source",
)
"""Keys whose texts are words, which nothing looks up."""
FORMS: tuple[ReportFormat, ...] = ("terminal", "markdown", "html", "json", "csv", "junit")


def planted(value: Any, *, is_free: bool = False) -> Any:
    if isinstance(value, dict):
        # The name of a phase and of a data set is one of a list.
        is_listed = value.get("kind") == "phase" or "samples_per_epoch" in value
        return {key: planted(item, is_free=key in FREE and not is_listed) for key, item in value.items()}
    if isinstance(value, list):
        return [planted(item, is_free=is_free) for item in value]
    return f"{value}{OBEYED}" if isinstance(value, str) and is_free else value


def obeyed(text: str) -> set[str]:
    return {c for c in text if not c.isprintable()} - {"\n", "\t"}


def plant(root: Path) -> None:
    for path in root.rglob("*.json*"):
        if path.name == "run.json":
            described = json.loads(path.read_text())
            for host in (described.get("fleet") or {}).get("hosts", ()):
                host["name"] += OBEYED  # the launches name their host, too
            path.write_text(json.dumps(described))
            continue
        if not path.stat().st_size:
            continue
        if path.suffix == ".json":
            path.write_text(json.dumps(planted(json.loads(path.read_text()))))
        else:
            lines = [json.dumps(planted(json.loads(line))) for line in path.read_text().splitlines()]
            path.write_text("".join(f"{line}\n" for line in lines))


@pytest.mark.parametrize("kind", sorted(path.name for path in RUNS.iterdir()))
def test_no_control_character_comes_out(kind: str, tmp_path: Path) -> None:
    root = tmp_path / "results" / "x" / kind
    shutil.copytree(RUNS / kind / "run", root)
    plant(root)
    try:
        concluded = conclude(RunDirectory.open(root))
    except GpuproofError as error:
        pytest.fail(f"words alone do not damage a run: {error}")
    for form in FORMS:
        assert not obeyed(render(concluded.result, concluded.page, form)), form
    listed = CliRunner().invoke(cli, ["runs", "--save-dir", str(root.parents[1])])
    assert (listed.exit_code, obeyed(listed.output)) == (0, set())

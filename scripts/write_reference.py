"""Write docs/reference and docs/decisions/index.md from the code's own definitions.

    python scripts/write_reference.py

Commands come from click's tree and keys from the recipe schema; records, metrics and checks come from their
tables and classes. `pytest tests/golden --update-golden` also writes these pages, and a test compares them.
"""

from __future__ import annotations

import csv
import inspect
import json
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import fields, replace
from itertools import groupby
from pathlib import Path
from typing import Any, get_args

import click

sys.path.insert(0, str(Path(__file__).resolve().parent))

import code_tables

ROOT = Path(__file__).resolve().parents[1]
DOCS = ROOT / "docs"
WRITTEN = ROOT / "scripts" / "reference"
"""Texts that are not in the code: page headers, and the location where each vendor's adapter reads a
metric."""
SOURCES = WRITTEN / "metric_sources.csv"
WIDTH = 100

Row = Sequence[object]


def table(head: Sequence[str], rows: Iterable[Row]) -> str:
    """Return a Markdown table."""
    lines = [f"| {' | '.join(head)} |", f"|{'---|' * len(head)}"]
    lines += [f"| {' | '.join(_cell(cell) for cell in row)} |" for row in rows]
    return "\n".join(lines) + "\n"


def _cell(value: object) -> str:
    text = " ".join(str(value).split())
    return text.replace("\\", "\\\\").replace("|", "\\|").replace("<", "&lt;")


def code(text: str) -> str:
    """Return a string as code, or an empty string for None."""
    return f"`{text}`" if text else ""


def head(page: str) -> str:
    """Return the text that precedes the tables of a page."""
    return (WRITTEN / f"{page}.md").read_text(encoding="utf-8")


# Command line


def command_line() -> str:
    """Return the `--help` output of every command."""
    from gpuproof.cli.main import cli

    parts = [
        head("command-line"),
    ]
    for path, command, context in _commands(cli, ("gpuproof",), None):
        parts.append(
            f"{'#' * min(1 + len(path), 4)} {' '.join(path)}\n\n```text\n{command.get_help(context)}\n```\n"
        )
    return "\n".join(parts)


def _commands(
    command: click.Command, path: tuple[str, ...], parent: click.Context | None
) -> Iterator[tuple[tuple[str, ...], click.Command, click.Context]]:
    settings = {**command.context_settings, "terminal_width": WIDTH, "max_content_width": WIDTH}
    context = click.Context(command, info_name=path[-1], parent=parent, **settings)
    yield path, command, context
    if isinstance(command, click.Group):
        for name in command.list_commands(context):
            below = command.get_command(context, name)
            if below is not None and not below.hidden:
                yield from _commands(below, (*path, name), context)


# Configuration


def configuration() -> str:
    """Return every key of a recipe."""
    from gpuproof.config.keys import json_schema

    schema = json_schema()
    parts = [
        head("configuration"),
    ]
    for name, section in schema["properties"].items():
        meaning = section.get("description") or _resolved(section, schema).get("description", "")
        rows = list(_keys(section, (name,), schema, _meanings_of_block(name)))
        parts.append(f"## {name}\n\n{meaning}\n\n{table(('key', 'takes', 'default', 'meaning'), rows)}")
    return "\n".join(parts)


def _meanings_of_block(name: str) -> Mapping[str, str]:
    """Return the docstrings of a suite's options, which are not in any schema."""
    from gpuproof.config.suite_options import is_suite, options_type

    options = options_type(name) if is_suite(name) else None
    return code_tables.field_meanings(options) if options else {}


def _resolved(node: Mapping[str, Any], schema: Mapping[str, Any]) -> Mapping[str, Any]:
    reference = node.get("$ref", "").rpartition("/")[2]
    return schema["$defs"][reference] if reference else node


def _keys(
    node: Mapping[str, Any], path: tuple[str, ...], schema: Mapping[str, Any], meanings: Mapping[str, str]
) -> Iterator[Row]:
    properties = _resolved(node, schema).get("properties")
    if not properties:
        meaning = node.get("description") or meanings.get(path[-1], "")
        yield code(".".join(path)), _takes(node, schema), _default(node), meaning
        return
    for name, below in properties.items():
        yield from _keys(below, (*path, name), schema, meanings)


def _default(node: Mapping[str, Any]) -> str:
    return code(json.dumps(node["default"], ensure_ascii=False)) if "default" in node else ""


def _takes(node: Mapping[str, Any], schema: Mapping[str, Any]) -> str:
    from gpuproof.config.keys import accepted

    try:
        return accepted(node)
    except KeyError:
        kinds = [part for part in node.get("anyOf", [node]) if part.get("type") != "null"]
        words = " or ".join(dict.fromkeys(_kind(_resolved(part, schema)) for part in kinds))
        return f"{words}, or null" if len(kinds) < len(node.get("anyOf", [node])) else words


def _kind(node: Mapping[str, Any]) -> str:
    if "enum" in node:
        return f"one of {', '.join(map(str, node['enum']))}"
    words = {"array": "a list", "object": "a mapping", "string": "text", "integer": "a whole number"}
    return {**words, "number": "a number", "boolean": "true or false"}.get(node.get("type", ""), "any value")


# Results and recordings


def result() -> str:
    """Return the fields of result.json."""
    from gpuproof.report.formats import result_schema

    schema = result_schema()
    parts = [
        head("result"),
        _described("Result", schema, schema),
    ]
    parts += [_described(name, node, schema) for name, node in sorted(schema["$defs"].items())]
    return "\n".join(parts)


def _described(name: str, node: Mapping[str, Any], schema: Mapping[str, Any]) -> str:
    rows = [
        (code(key), _type(below), below.get("description", ""))
        for key, below in node.get("properties", {}).items()
    ]
    return f"## {name}\n\n{node.get('description', '')}\n\n{table(('field', 'type', 'meaning'), rows)}"


def _type(node: Mapping[str, Any]) -> str:
    if "$ref" in node:
        name = node["$ref"].rpartition("/")[2]
        return f"[{name}](#{name.lower()})"
    if "anyOf" in node:
        return " or ".join(_type(part) for part in node["anyOf"])
    if node.get("type") == "array":
        items = node.get("items")
        return f"list of {_type(items)}" if items else "list"
    if "enum" in node:
        return ", ".join(code(str(value)) for value in node["enum"])
    return str(node.get("type") or code(str(node.get("const", "any"))))


def recordings() -> str:
    """Return the kinds of lines in the journals: device recordings, then rank records."""
    import importlib
    import pkgutil

    import gpuproof.records
    from gpuproof.records import journal

    for module in pkgutil.walk_packages(gpuproof.records.__path__, "gpuproof.records."):
        importlib.import_module(module.name)
    registered = sorted(journal._KINDS.items(), key=lambda item: _place(item[1].cls))
    kinds = {
        kind: entry.cls for kind, entry in registered if entry.cls.__module__.startswith("gpuproof.records")
    }
    of_devices = [kind for kind, cls in kinds.items() if cls.__module__.endswith((".readings", ".ports"))]
    parts = [
        head("recordings"),
        "## Recordings\n\n`monitor record` and `monitor exec` write them, and each launch has one "
        "per host (`monitor-HOST.jsonl`).\n",
    ]
    parts += [_record(kind, kinds[kind]) for kind in of_devices]
    parts.append(
        "## Records of ranks\n\n`rank-N.jsonl` of each launch; those that do not come from a rank (`failure` "
        "with rank null) are in `launcher.jsonl`.\n"
    )
    parts += [_record(kind, cls) for kind, cls in kinds.items() if kind not in of_devices]
    return "\n".join(parts)


def _place(record: type) -> tuple[bool, str, int]:
    """Sort by where a record is defined, with the records that every rank writes first."""
    return record.__module__ != "gpuproof.records.run", record.__module__, inspect.getsourcelines(record)[1]


def _record(kind: str, record: type) -> str:
    meanings = code_tables.field_meanings(record)
    rows = [
        (code(field.name), code(str(field.type)), meanings.get(field.name, "")) for field in fields(record)
    ]
    about = inspect.cleandoc(record.__doc__ or "").partition("\n\n")[0]
    return f"### {kind}\n\n{' '.join(about.split())}\n\n{table(('key', 'type', 'meaning'), rows)}"


# Metrics, checks, events


def metrics() -> str:
    """Return every metric that a reading may contain."""
    from gpuproof.records.metrics import HOST_METRICS, METRICS
    from gpuproof.records.readings import ThrottleReason

    sources = metric_sources()
    shown = [metric for name, metric in METRICS.items() if not name.startswith("throttle_time_")]
    rows = [
        (
            code(metric.name), metric.lane or "once", metric.kind, metric.description, *sources[metric.name],
            code(metric.exported + ("_total" if metric.kind == "counter" else "")), code(metric.dcgm or ""),
        )
        for metric in shown
    ]  # fmt: skip
    reasons = ", ".join(map(code, get_args(ThrottleReason)))
    name = "throttle_time_REASON_s"
    row = (code(name), "slow", "counter", "time throttled for REASON", *sources[name])
    columns = ("metric", "read", "kind", "meaning", "NVIDIA", "AMD", "Intel", "Prometheus", "DCGM")
    host = [
        (code(x.name), x.lane or "once", x.kind, x.description, code(x.exported + total))
        for x in HOST_METRICS.values()
        for total in ("_total" if x.kind == "counter" else "",)
    ]
    return "\n".join([
        head("metrics"),
        table(columns, [*rows, (*row, "`gpuproof_gpu_throttle_seconds_total`", "")]),
        "REASON uses a single vocabulary for all vendors, in each sample and in these counters: "
        f"{reasons}.\n`idle`, `application_clocks` and `display_clocks` are states, not faults.\n",
        "## Of the host\n",
        table(("metric", "read", "kind", "meaning", "Prometheus"), host),
        *_ports(),
    ])  # fmt: skip


def _ports() -> list[str]:
    """Return the port counters and the comments in their table, which list the counters' sources."""
    from gpuproof.base.files import packaged_text
    from gpuproof.records.ports import PORT_COUNTERS

    rows = [
        (
            code(row.name), row.medium, row.kind, row.meaning, row.bits or "–", row.at_top or "–",
            (row.silent or "–").replace(";", ", "), row.source,
        )
        for row in PORT_COUNTERS.values()
    ]  # fmt: skip
    columns = ("counter", "of", "kind", "meaning", "bits", "at its top", "not counted on", "source")
    about = [line[2:] for line in packaged_text("records/ports.csv").splitlines() if line.startswith("#")]
    return [
        "## Of ports\n",
        "Read from sysfs every 10 s and at the start and end of a recording (`gpu`: from the GPU's driver); "
        "in Prometheus, except for traffic and packet counts and `gpu`, `gpuproof_port_events_total` with "
        "host, port and counter as labels.\n\n" + "\n".join(about) + "\n",
        table(columns, rows),
    ]


def metric_sources() -> dict[str, tuple[str, str, str]]:
    """Return where NVIDIA's, AMD's and Intel's adapters read each metric; a dash means not supported."""
    with SOURCES.open(encoding="utf-8", newline="") as lines:
        return {row["metric"]: (row["nvidia"], row["amd"], row["intel"]) for row in csv.DictReader(lines)}


def checks() -> str:
    """Return the checks, each with the action that it recommends."""
    columns = ("check", "a PASS says", "what to do otherwise", "who acts")
    parts = [
        head("checks"),
        "## Of a run\n",
        table(columns, _check_rows(code_tables.CHECKS_OF_RULES)),
        "## Of a machine or a cluster, before anything is measured\n\n`gpuproof doctor`, "
        "`gpuproof doctor --multi-node` and `gpuproof kubernetes verify` run them.\n",
        table(columns, _check_rows(code_tables.CHECKS_OF_MACHINES)),
    ]
    return "\n".join(parts)


def _check_rows(folders: Sequence[str]) -> list[Row]:
    rows = {row.name: row for row in code_tables.checks(*folders)}
    if folders == code_tables.CHECKS_OF_RULES:
        from gpuproof.verdict.checks.registry import CHECKS

        alike = "Make it the same as on the others, or measure it separately"
        blank = {
            name: code_tables.CheckRow(name=name, summary=item.summary, actions=(alike,), actors=())
            for name, item in CHECKS.items()
        }
        rows = {name: rows.get(name, row) for name, row in blank.items()}
        rows["xid"] = replace(
            rows["xid"], actions=("by its code: see [events](events.md)",), actors=("by its code",)
        )
    usual = "administrator" if folders == code_tables.CHECKS_OF_RULES else "user"
    return [
        (row.name, row.summary, "; or: ".join(row.actions), ", ".join(row.actors) or usual)
        for row in rows.values()
    ]


def events() -> str:
    """Return driver events, and how gpuproof interprets them."""
    from gpuproof.hardware.events import TITLES, event_kinds

    kinds_of = groupby(event_kinds().values(), lambda kind: kind.source)
    parts = [head("events")]
    for source, kinds in [(source, list(kinds)) for source, kinds in kinds_of]:
        title = {**TITLES, "kernel": "Other lines of the kernel's log", "driver": "Readings of ours"}[source]
        origins = dict.fromkeys(f"{k.reference}, {k.as_of}" for k in kinds)
        rows = [(k.code, k.name, k.scope, k.severity, k.status, k.word, k.action) for k in kinds]
        columns = ("code", "meaning", "scope", "severity", "status", "by itself", "action")
        parts += [f"## {title}\n\nFrom {'; '.join(origins)}.\n", table(columns, rows)]
    actions = {k.action: (k.action, k.actor, k.next_step) for k in event_kinds().values()}
    parts += ["## Actions\n", table(("action", "who acts", "what to do"), actions.values())]
    return "\n".join(parts)


def exit_codes() -> str:
    """Return the exit codes."""
    from gpuproof.base.errors import ExitCode

    meanings = {
        "DONE": "done; for a verdict: VALID, READY, no regression",
        "OUR_BUG": "a bug in gpuproof; the traceback is printed",
        "USAGE": ("an error in a command line or a recipe, reported with its location; nothing was started"),
        "FAILED": "a launch failed, a required check failed, or a regression was detected",
        "INCONCLUSIVE": ("nothing was measured, the results are INVALID, or a question could not be decided"),
        "UNFIT_ENVIRONMENT": "the machine lacks something; the message says what",
        "TIMEOUT": "a time limit was reached",
        "INTERRUPTED": "Ctrl-C or SIGTERM; measurements are saved, and `--resume` continues",
    }
    rows = [(code_.value, meanings[code_.name]) for code_ in ExitCode]
    return "\n".join([head("exit-codes"), table(("code", "meaning"), rows)])


def python() -> str:
    """Return the public API of `import gpuproof`."""
    import gpuproof
    from gpuproof.monitor.watch import monitor

    parts = [head("python"), "[First run](../start/first-run.md#from-python) has an example.\n"]
    for name in sorted(name for name in gpuproof.__all__ if not name.startswith("_")):
        function = inspect.unwrap(monitor) if name == "monitor" else getattr(gpuproof, name)
        signature = str(inspect.signature(function)).replace("'", "")
        text = inspect.getdoc(function) or ""
        parts.append(f"## {name}\n\n```python\ngpuproof.{name}{signature}\n```\n\n```text\n{text}\n```\n")
    return "\n".join(parts)


def decisions() -> str:
    """Return the list of decision records."""
    files = sorted(path for path in (DOCS / "decisions").glob("[0-9]*.md"))
    titles = [(path, path.read_text(encoding="utf-8").partition("\n")[0].lstrip("# ")) for path in files]
    listed = "\n".join(f"- [{title}]({path.name})" for path, title in titles)
    return f"# Decisions\n\nWhere gpuproof differs from the plan, and why.\n\n{listed}\n"


PAGES = {
    "reference/command-line.md": command_line,
    "reference/configuration.md": configuration,
    "reference/result.md": result,
    "reference/recordings.md": recordings,
    "reference/metrics.md": metrics,
    "reference/checks.md": checks,
    "reference/events.md": events,
    "reference/exit-codes.md": exit_codes,
    "reference/python.md": python,
    "decisions/index.md": decisions,
}
"""The function that creates each page, by its path below docs/."""


if __name__ == "__main__":
    for path, page in PAGES.items():
        (DOCS / path).write_text(page(), encoding="utf-8")

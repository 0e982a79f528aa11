"""Report formats: each writes a run's page, or its result, as text.

Pages are for people (terminal, Markdown, HTML). Results are for programs: JSON as in `result.json`, CSV with
one row per measure, and JUnit XML with one case per check.
"""

from __future__ import annotations

import ast
import csv
import inspect
import io
import json
import textwrap
from collections.abc import Mapping
from dataclasses import fields
from pathlib import PurePath
from typing import Any, Literal, get_args

import orjson

from gpuproof.base.errors import UsageError
from gpuproof.records.codec import to_json
from gpuproof.records.outcome import Judged, Outcome
from gpuproof.records.page import Page
from gpuproof.records.progress import CollectiveCall, RankProgress
from gpuproof.records.result import Doubt, LaunchValue, Measure, MeasureInterval, Result
from gpuproof.records.run import Failure

ReportFormat = Literal["terminal", "markdown", "html", "json", "csv", "junit"]
FORMATS: tuple[ReportFormat, ...] = get_args(ReportFormat)
SUFFIXES: Mapping[str, ReportFormat] = {
    ".txt": "terminal",
    ".md": "markdown",
    ".markdown": "markdown",
    ".html": "html",
    ".htm": "html",
    ".json": "json",
    ".csv": "csv",
    ".xml": "junit",
}
IN_RESULTS = (
    CollectiveCall,
    Doubt,
    Failure,
    Judged,
    LaunchValue,
    Measure,
    MeasureInterval,
    Outcome,
    RankProgress,
)
"""The types that make up a result."""


def choose_format(name: str | None, output: PurePath | None) -> ReportFormat:
    """Return the requested format, or the one implied by the file name.

    Raises:
        UsageError: there is no such format, or the file name does not imply one.
    """
    if name is None and output is None:
        return "terminal"
    for candidate in FORMATS:
        if name == candidate:
            return candidate
    suffix = "" if output is None else output.suffix.lower()
    if name is None and suffix in SUFFIXES:
        return SUFFIXES[suffix]
    cause = f"no format {name}" if name is not None else f"the name {output} does not imply a format"
    raise UsageError(cause, place="--format", next_step=f"Choose one of {', '.join(FORMATS)}")


def render(
    result: Result,
    page: Page,
    form: ReportFormat,
    *,
    width: int | None = None,
    junit_strict: bool = False,
) -> str:
    """Return a report as text; `width` is the terminal format's line width, or None for a log.

    `junit_strict` turns a SUSPECT or INCONCLUSIVE verdict into a JUnit error.
    """
    if form == "json":
        return json_text(result)
    if form == "csv":
        return csv_text(result)
    if form == "junit":
        from gpuproof.report.junit import junit

        return junit(result, is_strict=junit_strict)
    return render_page(page, form, width=width)


def render_page(
    page: Page, form: Literal["terminal", "markdown", "html"], *, width: int | None = None
) -> str:
    """Return a page as text; renderers are loaded on demand."""
    if form == "markdown":
        from gpuproof.report.markdown import markdown

        return markdown(page)
    if form == "html":
        from gpuproof.report.html import html

        return html(page)
    from gpuproof.report.terminal import LOG_WIDTH, terminal_text

    return terminal_text(page, width=width or LOG_WIDTH)


def json_text(result: Result) -> str:
    """Return `result.json`; it can be many megabytes, which the standard library indents slowly."""
    return orjson.dumps(to_json(result), option=orjson.OPT_INDENT_2 | orjson.OPT_APPEND_NEWLINE).decode()


def csv_text(result: Result) -> str:
    """Return the rows of `measure_rows`, with launches as JSON."""
    rows, columns = measure_rows(result), _columns(result)
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(columns)
    writer.writerows([_flat(row[name]) for name in columns] for row in rows)
    return text.getvalue()


def measure_rows(result: Result) -> list[dict[str, Any]]:
    """Return a row per measure: its fields, a column per label, interval bounds, and its launches."""
    rows, columns = [], _columns(result)
    for measure in result.measures:
        row = to_json(measure)
        parts = {"label": row.pop("labels"), "interval": row.pop("interval") or {}}
        row |= {f"{part}.{name}": value for part, values in parts.items() for name, value in values.items()}
        rows.append({name: row.get(name) for name in columns})
    return rows


def _columns(result: Result) -> list[str]:
    plain = [field.name for field in fields(Measure) if field.name not in ("labels", "interval", "launches")]
    labels = dict.fromkeys(f"label.{name}" for measure in result.measures for name in measure.labels)
    return [*plain, *labels, *(f"interval.{field.name}" for field in fields(MeasureInterval)), "launches"]


def _flat(value: Any) -> Any:
    """Return a value in a form that fits into a single cell."""
    return json.dumps(value) if isinstance(value, dict | list) else value


def result_schema() -> dict[str, Any]:
    """Return the JSON Schema of result.json, which is the same for every suite."""
    from pydantic import TypeAdapter

    schema = TypeAdapter(Result).json_schema()
    for record in (Result, *IN_RESULTS):
        described = schema if record is Result else schema["$defs"][record.__name__]
        described["description"] = inspect.getdoc(record)
        for name, meaning in _meanings(record).items():
            described["properties"][name]["description"] = meaning
    return {"$schema": "https://json-schema.org/draft/2020-12/schema", **schema}


def _meanings(record: type) -> dict[str, str]:
    """Return the docstrings of a dataclass's fields."""
    (node,) = ast.parse(textwrap.dedent(inspect.getsource(record))).body
    assert isinstance(node, ast.ClassDef)
    return {
        field.target.id: inspect.cleandoc(meaning.value.value)
        for field, meaning in zip(node.body, node.body[1:], strict=False)
        if isinstance(field, ast.AnnAssign) and isinstance(field.target, ast.Name)
        if isinstance(meaning, ast.Expr) and isinstance(meaning.value, ast.Constant)
        if isinstance(meaning.value.value, str)
    }

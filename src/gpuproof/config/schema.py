"""What others read: JSON Schemas of recipe and result, a run's record of its config, YAML with origins.

Pure functions of the model or of a `LoadedConfig`; what they return is plain JSON or text.
"""

from __future__ import annotations

import ast
import inspect
import json
import textwrap
from collections.abc import Iterator, Mapping
from typing import Any

from pydantic import TypeAdapter

from gpuproof.config.load import DEFAULT, LoadedConfig
from gpuproof.config.models import RunConfig
from gpuproof.config.suite_options import block_schemas
from gpuproof.config.yaml import resolve
from gpuproof.records.outcome import Judged, Outcome
from gpuproof.records.result import Doubt, LaunchValue, Measure, MeasureInterval, Result
from gpuproof.records.run import Failure

DIALECT = "https://json-schema.org/draft/2020-12/schema"
IN_RESULTS = (Doubt, Failure, Judged, LaunchValue, Measure, MeasureInterval, Outcome)
"""The types of which a result is made."""


def json_schema() -> dict[str, Any]:
    """Return the JSON Schema of a config file, for editors and for the documentation."""
    schema = RunConfig.model_json_schema()
    del schema["properties"]["suite_options"]  # set by the suites' own sections
    properties, definitions = block_schemas(frozenset(RunConfig.model_fields))
    schema["properties"] |= properties
    schema["$defs"] |= definitions
    return {"$schema": DIALECT, **schema}


def result_schema() -> dict[str, Any]:
    """Return the JSON Schema of result.json, which has the same shape for every suite."""
    schema = TypeAdapter(Result).json_schema()
    for found in (Result, *IN_RESULTS):
        described = schema if found is Result else schema["$defs"][found.__name__]
        described["description"] = inspect.getdoc(found)
        for name, meaning in _meanings(found).items():
            described["properties"][name]["description"] = meaning
    return {"$schema": DIALECT, **schema}


def _meanings(record: type) -> dict[str, str]:
    """Return the docstrings of a dataclass's fields."""
    (node,) = ast.parse(textwrap.dedent(inspect.getsource(record))).body
    assert isinstance(node, ast.ClassDef)
    return {
        field.target.id: inspect.cleandoc(said.value.value)
        for field, said in zip(node.body, node.body[1:], strict=False)
        if isinstance(field, ast.AnnAssign) and isinstance(field.target, ast.Name)
        if isinstance(said, ast.Expr) and isinstance(said.value, ast.Constant)
        if isinstance(said.value.value, str)
    }


def resolved(loaded: LoadedConfig) -> dict[str, Any]:
    """Return what `run.json` keeps: the source, every value, and the origin of each dotted key."""
    return {
        "source": loaded.source,
        "values": loaded.config.model_dump(mode="json"),
        "origins": dict(loaded.origins),
    }


def as_yaml_with_origins(loaded: LoadedConfig) -> str:
    """Write every value as YAML that loads again, each with its origin in a comment."""
    return "".join(f"{line}  # {origin}\n" if origin else f"{line}\n" for line, origin in _all_lines(loaded))


def as_yaml(loaded: LoadedConfig) -> str:
    """Write every value as YAML that loads again."""
    return "".join(f"{line}\n" for line, _ in _all_lines(loaded))


def _all_lines(loaded: LoadedConfig) -> Iterator[tuple[str, str | None]]:
    values = loaded.config.model_dump(mode="json")
    blocks = values.pop("suite_options")
    return _lines({**values, **blocks}, loaded.origins, "")


def _lines(
    values: Mapping[str, Any], origins: Mapping[str, str], above: str
) -> Iterator[tuple[str, str | None]]:
    """Give each line of YAML, with the origin of the value that is on it."""
    indent = "  " * above.count(".")
    for name, value in values.items():
        key = name if _is_plain_key(name) else json.dumps(name, ensure_ascii=False)
        origin = origins.get(above + name)
        if origin is None and isinstance(value, dict):
            yield f"{indent}{key}:", None
            yield from _lines(value, origins, f"{above}{name}.")
        else:
            printable = "".join(c if c.isprintable() else " " for c in origin or DEFAULT)
            yield f"{indent}{key}: {json.dumps(value, ensure_ascii=False)}", printable


def _is_plain_key(name: str) -> bool:
    return name.isidentifier() and isinstance(resolve(name), str)

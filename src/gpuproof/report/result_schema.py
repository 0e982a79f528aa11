"""The JSON Schema of result.json, for those who read results with programs of their own. Pure."""

from __future__ import annotations

import ast
import inspect
import textwrap
from typing import Any

from pydantic import TypeAdapter

from gpuproof.records.outcome import Judged, Outcome
from gpuproof.records.result import Doubt, LaunchValue, Measure, MeasureInterval, Result
from gpuproof.records.run import Failure

IN_RESULTS = (Doubt, Failure, Judged, LaunchValue, Measure, MeasureInterval, Outcome)
"""The types of which a result is made."""


def result_schema() -> dict[str, Any]:
    """Return the JSON Schema of result.json, which has the same shape for every suite."""
    schema = TypeAdapter(Result).json_schema()
    for found in (Result, *IN_RESULTS):
        described = schema if found is Result else schema["$defs"][found.__name__]
        described["description"] = inspect.getdoc(found)
        for name, meaning in _meanings(found).items():
            described["properties"][name]["description"] = meaning
    return {"$schema": "https://json-schema.org/draft/2020-12/schema", **schema}


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

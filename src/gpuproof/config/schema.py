"""The JSON Schema of a recipe, for others and for our own messages, which say it in words. Pure."""

from __future__ import annotations

import functools
import json
from collections.abc import Mapping
from typing import Any

from gpuproof.config.models import RunConfig
from gpuproof.config.settings import KeyPath
from gpuproof.config.suite_options import block_schemas

_FORMATS = {
    "file-name": "a name of letters, digits, `.`, `_` and `-` that begins with a letter or digit",
    "commit": "auto or a commit's hexadecimal hash",
    "web-address": "an address that begins with http:// or https://",
    "checksum": "md5: and 32, or sha256: and 64 hexadecimal digits",
}


def json_schema() -> dict[str, Any]:
    """Return the JSON Schema of a config file, for editors and for the documentation."""
    schema = json.loads(json.dumps(_whole()).replace(r"\n", " "))
    del schema["properties"]["suite_options"]  # set by the suites' own sections
    properties, definitions = block_schemas(frozenset(RunConfig.model_fields))
    schema["properties"] |= properties
    schema["$defs"] |= definitions
    return {"$schema": "https://json-schema.org/draft/2020-12/schema", **schema}


@functools.cache
def _whole() -> dict[str, Any]:
    return RunConfig.model_json_schema()


def schema_at(path: KeyPath) -> dict[str, Any]:
    """Return the JSON Schema of a key's value."""
    node = whole = _whole()
    for name in path:
        reference = node.get("$ref")
        section = whole["$defs"][reference.rpartition("/")[2]] if reference else node
        node = section["properties"][name]
    return node


def accepted(schema: Mapping[str, Any]) -> str:
    """Say in words which values a JSON Schema takes.

    >>> accepted({"anyOf": [{"type": "integer", "minimum": 1}, {"type": "null"}]})
    'a whole number from 1, or null'
    """
    if "anyOf" in schema:
        return ", or ".join(accepted(part) for part in schema["anyOf"])
    if "const" in schema:
        return str(schema["const"])
    if "enum" in schema:
        return f"one of {', '.join(str(v).lower() if isinstance(v, bool) else v for v in schema['enum'])}"
    if schema["type"] == "array":
        return f"a list, each {accepted(schema['items'])}"
    if schema["type"] == "string":
        return _text(schema)
    words = {"integer": "a whole number", "number": "a number", "boolean": "true or false", "null": "null"}
    return words[schema["type"]] + _bounds(schema)


def _text(schema: Mapping[str, Any]) -> str:
    if "format" in schema:
        return _FORMATS[schema["format"]]
    return f"text of {schema.get('minLength', 0)} to {schema['maxLength']} printable characters"


def _bounds(schema: Mapping[str, Any]) -> str:
    signs = {"minimum": "from", "exclusiveMinimum": "above", "maximum": "to", "exclusiveMaximum": "below"}
    return "".join(f" {word} {schema[sign]:,}" for sign, word in signs.items() if sign in schema)

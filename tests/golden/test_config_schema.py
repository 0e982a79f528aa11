"""The JSON Schemas of recipe and result are part of the public interface: a user sees a change to them."""

from __future__ import annotations

import json
from collections.abc import Callable

from gpuproof.config.keys import json_schema
from gpuproof.report.formats import IN_RESULTS, result_schema


def test_the_schema_is_the_published_one(golden: Callable[[str, str], None]) -> None:
    golden("config.schema.json", json.dumps(json_schema(), indent=2) + "\n")


def test_the_schema_of_a_result_is_the_published_one(golden: Callable[[str, str], None]) -> None:
    schema = result_schema()
    assert set(schema["$defs"]) == {found.__name__ for found in IN_RESULTS}
    golden("result.schema.json", json.dumps(schema, indent=2) + "\n")

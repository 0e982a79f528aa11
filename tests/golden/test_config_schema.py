"""The config's JSON Schema is part of the public interface: a change to it is a change that a user sees."""

from __future__ import annotations

import json
from collections.abc import Callable

from gpuproof.config.schema import json_schema


def test_the_schema_is_the_published_one(golden: Callable[[str, str], None]) -> None:
    golden("config.schema.json", json.dumps(json_schema(), indent=2) + "\n")

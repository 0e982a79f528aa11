"""The names that `import gpuproof` gives, with their parameters: a change is a change for every script."""

from __future__ import annotations

import inspect
import typing
from collections.abc import Callable
from typing import Any

import gpuproof
from gpuproof.monitor.watch import monitor
from gpuproof.records.result import Result

Golden = Callable[[str, str], None]


def test_exported_names(golden: Golden) -> None:
    exported: dict[str, Callable[..., Any]] = {
        name: getattr(gpuproof, name) for name in gpuproof.__all__ if not name.startswith("_")
    }
    assert exported.pop("monitor") is gpuproof.monitor
    assert issubclass(gpuproof.RunResult, Result)
    del exported["RunResult"]
    functions = {**exported, "monitor": inspect.unwrap(monitor)}
    lines = [f"{name}{inspect.signature(function)}" for name, function in sorted(functions.items())]
    golden("python_api.txt", "\n".join(lines) + "\n")


def test_their_annotations_can_be_resolved() -> None:
    assert typing.get_type_hints(gpuproof.run)["return"] is gpuproof.RunResult

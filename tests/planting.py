"""How a fault is planted below our code: a module is changed as it is imported, wherever this is found."""

from __future__ import annotations

import importlib.abc
import importlib.machinery
import sys
from collections.abc import Callable
from typing import Any


class Planter(importlib.abc.MetaPathFinder):
    """Finds a module where it is, and changes it once it is loaded."""

    def __init__(self, module: str, change: Callable[[Any], None]) -> None:
        self._module, self._change = module, change

    def find_spec(self, name: str, path: Any, target: Any = None) -> importlib.machinery.ModuleSpec | None:
        if name != self._module:
            return None
        spec = importlib.machinery.PathFinder.find_spec(name, path, target)
        assert spec is not None
        assert spec.loader is not None
        load = spec.loader.exec_module

        def load_and_change(module: Any) -> None:
            load(module)
            self._change(module)

        spec.loader.exec_module = load_and_change  # type: ignore[method-assign]  # that is the fault
        return spec


def plant(module: str, change: Callable[[Any], None]) -> None:
    """Have `change` called with the module when it is imported."""
    sys.meta_path.insert(0, Planter(module, change))

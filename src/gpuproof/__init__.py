"""gpuproof: measure GPUs under deep-learning load, explain the results, and report a verdict.

The Python API consists of `run`, `load_result`, `load_step_times`, `compare` and `monitor`, and of
`RunResult`, which most of these functions return. Each is imported on first use, because the package is also
imported by the command line, by workers on nodes that have only Python and PyTorch, and by monitors that have
only Python.
"""

from __future__ import annotations

import sys
from importlib import import_module
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from gpuproof.campaign.api import RunResult as RunResult
    from gpuproof.campaign.api import compare as compare
    from gpuproof.campaign.api import load_result as load_result
    from gpuproof.campaign.api import load_step_times as load_step_times
    from gpuproof.campaign.api import run as run
    from gpuproof.monitor.watch import monitor as monitor

__version__ = "0.2.0"
__all__ = ["RunResult", "__version__", "compare", "load_result", "load_step_times", "monitor", "run"]

MOVED = {
    "gpuproof.errors": "gpuproof.base.errors",
    "gpuproof.units": "gpuproof.base.units",
    "gpuproof.registry": "gpuproof.base.registry",
    "gpuproof.analysis": "gpuproof.launches",
    "gpuproof.analysis.launch": "gpuproof.launches.launch",
    "gpuproof.analysis.explanations": "gpuproof.launches.explanations",
    "gpuproof.analysis.point_figures": "gpuproof.launches.point_measures",
    "gpuproof.launches.point_figures": "gpuproof.launches.point_measures",
    "gpuproof.suites.exports": "gpuproof.suites.results",
    "gpuproof.suites.measures": "gpuproof.suites.results",
}
"""Modules documented in 0.2, and their current locations; the old names still work."""


class _Moved:
    """Finds and loads a module by its 0.2 name; the result is the current module object."""

    @staticmethod
    def find_spec(name: str, _path: Any = None, _target: Any = None) -> ModuleSpec | None:
        return ModuleSpec(name, _Moved) if name in MOVED else None  # type: ignore[arg-type]  # a loader

    @staticmethod
    def create_module(spec: ModuleSpec) -> ModuleType:
        module = import_module(MOVED[spec.name])
        spec.loader_state = module.__spec__
        return module

    @staticmethod
    def exec_module(module: ModuleType) -> None:
        assert module.__spec__ is not None
        module.__spec__ = module.__spec__.loader_state


sys.meta_path.insert(0, _Moved)  # must come first: `analysis` uses the path of `launches`


def __getattr__(name: str) -> Any:
    if name == "monitor":
        return import_module("gpuproof.monitor")  # the package, which is callable
    if name in __all__:
        return getattr(import_module("gpuproof.campaign.api"), name)
    raise AttributeError(f"module 'gpuproof' has no attribute {name!r}", name=name)


def __dir__() -> list[str]:
    return __all__

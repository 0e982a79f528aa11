"""A fault planted in every Python that finds this file: a ResNet that takes no 16 images in inference.

Python imports it at its start. The model is broken as it is imported, in the worker, and nothing else is.
"""

from __future__ import annotations

import importlib.abc
import importlib.machinery
import sys
from typing import Any

MODULE = "gpuproof.workloads.torch.resnet"


class Breaker(importlib.abc.MetaPathFinder):
    """Finds the module where it is, and breaks it once it is loaded."""

    def find_spec(self, name: str, path: Any, target: Any = None) -> importlib.machinery.ModuleSpec | None:
        if name != MODULE:
            return None
        spec = importlib.machinery.PathFinder.find_spec(name, path, target)
        assert spec is not None
        assert spec.loader is not None
        load = spec.loader.exec_module

        def load_and_break(module: Any) -> None:
            load(module)
            break_model(module)

        spec.loader.exec_module = load_and_break  # type: ignore[method-assign]  # that is the fault
        return spec


def break_model(module: Any) -> None:
    build = module.build_resnet18

    def build_broken(*args: Any) -> Any:
        model = build(*args)
        forward = model.forward

        def refuse(images: Any) -> Any:
            if not model.training and len(images) == 16:
                raise ValueError("no room for 16 images")
            return forward(images)

        model.forward = refuse
        return model

    module.build_resnet18 = build_broken


sys.meta_path.insert(0, Breaker())

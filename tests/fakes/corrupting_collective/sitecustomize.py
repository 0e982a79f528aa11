"""A fault planted in every Python that finds this file: on rank 1 an element of each large sum is wrong.

Python imports it at its start. torch is changed as it is imported, below all of our own code.
"""

from __future__ import annotations

import importlib.abc
import importlib.machinery
import os
import sys
from typing import Any

MODULE = "torch.distributed.distributed_c10d"
LARGE = 1000
"""Elements; what ranks agree by is smaller."""


class Corrupter(importlib.abc.MetaPathFinder):
    """Finds the module where it is, and changes it once it is loaded."""

    def find_spec(self, name: str, path: Any, target: Any = None) -> importlib.machinery.ModuleSpec | None:
        if name != MODULE:
            return None
        spec = importlib.machinery.PathFinder.find_spec(name, path, target)
        assert spec is not None
        assert spec.loader is not None
        load = spec.loader.exec_module

        def load_and_corrupt(module: Any) -> None:
            load(module)
            corrupt(module)

        spec.loader.exec_module = load_and_corrupt  # type: ignore[method-assign]  # that is the fault
        return spec


def corrupt(module: Any) -> None:
    right = module.all_reduce

    def all_reduce(tensor: Any, *args: Any, **kwargs: Any) -> Any:
        done = right(tensor, *args, **kwargs)
        if tensor.numel() > LARGE:
            tensor[tensor.numel() // 2] += 1
        return done

    module.all_reduce = all_reduce


if os.environ.get("RANK") == "1":
    sys.meta_path.insert(0, Corrupter())

"""A fault planted in every Python that finds this file: a ResNet that takes no 16 images in inference.

Python imports it at its start. The model is broken as it is imported, in the worker, and nothing else is.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

sys.path.append(str(Path(__file__).parents[2]))
from planting import plant

sys.path.pop()

MODULE = "gpuproof.workloads.torch.cnn"


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


plant(MODULE, break_model)

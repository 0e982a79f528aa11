"""The model run by all peers of `peers.py`: timm's resnet18, loaded as `python:peer_models:…`.

Also the entry point for programs that use timm: `python -m peer_models PROGRAM WORDS`, where PROGRAM is a
FILE.py or MODULE:FUNCTION. The torchvision on a package index is built for a GPU build of torch, and its
operators are missing in a CPU build; they are declared here without an implementation, which is enough for
models that do not use them.
"""

from __future__ import annotations

import runpy
import sys
from importlib import import_module
from typing import Any

import torch
from torch import nn

UNDEFINED = (
    "nms(Tensor dets, Tensor scores, float iou_threshold) -> Tensor",
    "qnms(Tensor dets, Tensor scores, float iou_threshold) -> Tensor",
)


def import_timm() -> Any:
    """Import timm, whether or not the installed torchvision matches this torch."""
    try:
        import torchvision  # noqa: F401
    except RuntimeError:  # "operator torchvision::nms does not exist"
        for name in [name for name in sys.modules if name.partition(".")[0] == "torchvision"]:
            del sys.modules[name]
        library = torch.library.Library("torchvision", "DEF")
        for signature in UNDEFINED:
            library.define(signature)
        import_timm.library = library  # type: ignore[attr-defined]  # its end would take the operators back
    import timm

    return timm


class TimmResNet18(nn.Module):
    """timm's resnet18 with random weights, as `python:peer_models:TimmResNet18`."""

    def __init__(self, *, num_classes: int) -> None:
        super().__init__()
        self.model = import_timm().create_model("resnet18", num_classes=num_classes)

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        """Return logits."""
        logits: torch.Tensor = self.model(images)
        return logits


def hide_amdsmi_without_driver() -> None:
    """Hide a package that cannot be imported: optimum-benchmark only checks whether it exists."""
    try:
        import amdsmi  # noqa: F401
    except Exception:  # noqa: BLE001  # a KeyError of its own, where the library is not installed
        sys.modules["amdsmi"] = None  # type: ignore[assignment]  # Python's own way to say that there is none


if __name__ == "__main__":
    import_timm()
    hide_amdsmi_without_driver()
    script = sys.argv[1]
    sys.argv = sys.argv[1:]
    if script.endswith(".py"):
        runpy.run_path(script, run_name="__main__")
    else:
        module, _, function = script.partition(":")
        getattr(import_module(module), function)()

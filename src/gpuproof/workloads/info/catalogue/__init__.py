"""The built-in workloads, torch-free: shapes, parameter counts and FLOPs in closed form, a file a family.

Every layer that multiplies is listed once, here; the torch modules are built from the same plans, and
tests hold the closed forms against torch's own counters. Entry points name these objects.
"""

from __future__ import annotations

from gpuproof.workloads.info.catalogue.cnn import LENET5, SIMPLE_CNN
from gpuproof.workloads.info.catalogue.decoder import DECODER, MOE_DECODER
from gpuproof.workloads.info.catalogue.encoder import TRANSFORMER, VIT_B_16
from gpuproof.workloads.info.catalogue.gemm import GEMM
from gpuproof.workloads.info.catalogue.memory import MEMORY
from gpuproof.workloads.info.catalogue.mlp import LARGE, MEDIUM
from gpuproof.workloads.info.catalogue.resnet import RESNET, RESNET18, RESNET50

__all__ = [
    "DECODER",
    "GEMM",
    "LARGE",
    "LENET5",
    "MEDIUM",
    "MEMORY",
    "MOE_DECODER",
    "RESNET",
    "RESNET18",
    "RESNET50",
    "SIMPLE_CNN",
    "TRANSFORMER",
    "VIT_B_16",
]

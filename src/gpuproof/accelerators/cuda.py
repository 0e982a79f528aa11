"""CUDA devices, AMD's under ROCm among them: torch has one module for both."""

from __future__ import annotations

import os

import torch

from gpuproof.accelerators.base import Accelerator, Arithmetic, DeviceProperties, Work, has_scaled_products
from gpuproof.records.what_ran import Tf32Switch

TF32_OVERRIDE = "NVIDIA_TF32_OVERRIDE"
"""NVIDIA's libraries obey this variable whatever torch asks of them: 0 forbids TF32, 1 uses it always."""


class CudaAccelerator(Accelerator):
    """CUDA and ROCm."""

    type = "cuda"
    title = "CUDA"
    collectives = ("nccl", "gloo")
    has_cudnn = True
    visibility_variable = "CUDA_VISIBLE_DEVICES"

    def why_no_graphs(self) -> str | None:
        """Every torch that we take can capture."""
        return None

    def capture_graph(self, run: Work) -> Work:
        """Record what `run` gives to the device, without running it; return what replays it."""
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            run()
        replay: Work = graph.replay
        return replay

    def properties(self, device: torch.device) -> DeviceProperties:
        """Describe one device; torch leaves out what NVML writes before its UUID."""
        properties = torch.cuda.get_device_properties(device)
        uuid = getattr(properties, "uuid", None)
        return DeviceProperties(
            name=properties.name,
            uuid=None if uuid is None else f"GPU-{uuid}",
            memory_total_bytes=properties.total_memory,
            compute_capability=(properties.major, properties.minor),
            multiprocessors=properties.multi_processor_count,
            cache_bytes=getattr(properties, "L2_cache_size", None),
        )

    def arithmetic(self, device: torch.device) -> Arithmetic:
        """Ask torch what the device computes with."""
        is_nvidia = torch.version.hip is None
        properties = self.properties(device)
        return Arithmetic(
            name=properties.name,
            in_software=False,
            capability=properties.compute_capability if is_nvidia else None,
            has_bf16=torch.cuda.is_bf16_supported(including_emulation=False),
            has_scaled_products=has_scaled_products(),
            tf32_override=os.environ.get(TF32_OVERRIDE) if is_nvidia else None,
        )

    def use_tf32(self, *, on: bool) -> None:
        """Let products and convolutions of fp32 use TF32, or forbid it."""
        torch.backends.cuda.matmul.allow_tf32 = on
        torch.backends.cudnn.allow_tf32 = on

    def tf32_switch(self) -> Tf32Switch | None:
        """Read back whether products and convolutions may use TF32."""
        switches = {bool(torch.backends.cuda.matmul.allow_tf32), bool(torch.backends.cudnn.allow_tf32)}
        return "mixed" if len(switches) == 2 else "on" if True in switches else "off"

    def choose_convolutions(self, *, deterministic: bool, timed: bool) -> None:
        """Have cuDNN choose by timing, or the same always."""
        torch.backends.cudnn.benchmark = timed
        torch.backends.cudnn.deterministic = deterministic

    def library_versions(self) -> dict[str, str | int | None]:
        """Return the versions of cuDNN and NCCL, or MIOpen and RCCL; None without a device."""
        if not torch.cuda.is_available():
            return {"cudnn": None, "nccl": None}
        has_nccl = torch.distributed.is_nccl_available()
        nccl = ".".join(map(str, torch.cuda.nccl.version())) if has_nccl else None
        return {"cudnn": torch.backends.cudnn.version(), "nccl": nccl}

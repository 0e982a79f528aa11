"""The processor, Intel's GPUs and Apple's, where they differ from torch's conventions.

Neither of the two kinds of GPU was tried on hardware.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace

import torch

from gpuproof.accelerators.base import Accelerator, Arithmetic, DeviceProperties, Work


class Processor(Accelerator):
    """The CPU: a step is done when it returns."""

    type = "cpu"
    title = "CPU"
    asynchronous = False
    in_software = True
    min_window_s = 0.0
    collectives = ("gloo",)
    pins_memory = False
    has_channels_last = False

    def set_device(self, device: torch.device) -> None:
        """Do nothing: there is one."""

    def why_no_graphs(self) -> str | None:
        """Say why a step cannot be captured."""
        return "CUDA graphs are for CUDA devices, and this run is on the CPU"

    def properties(self, device: torch.device) -> DeviceProperties:
        """Describe it by no more than its kind: `worker.host.environment` has its name."""
        return DeviceProperties(name="CPU")

    def arithmetic(self, device: torch.device) -> Arithmetic:
        """Ask torch what it computes with."""
        return replace(super().arithmetic(device), name="the processor")

    def process_group(self, backend: str) -> str:
        """Name the one backend."""
        return backend

    @contextmanager
    def kept_random_state(self, device: torch.device) -> Iterator[None]:
        """Put the state of random numbers back at the end."""
        with torch.random.fork_rng(devices=[]):
            yield


class XpuAccelerator(Accelerator):
    """Intel GPUs."""

    type = "xpu"
    title = "Intel XPU"
    collectives = ("xccl",)
    visibility_variable = "ZE_AFFINITY_MASK"

    def why_no_graphs(self) -> str | None:
        """Say why a step cannot be captured and replayed; None where it can."""
        if hasattr(torch.xpu, "XPUGraph"):
            return None
        return f"torch {torch.__version__} captures no graphs on {self.title} devices"

    def capture_graph(self, run: Work) -> Work:
        """Record what `run` gives to the device, without running it; return what replays it."""
        graph = torch.xpu.XPUGraph()
        with torch.xpu.graph(graph):
            run()
        replay: Work = graph.replay
        return replay


class MpsAccelerator(Accelerator):
    """Apple's GPUs: one device, which shares the host's memory."""

    type = "mps"
    title = "Apple MPS"
    pins_memory = False

    def synchronize(self, device: torch.device) -> None:
        """Wait until the device has done all that it was given."""
        torch.mps.synchronize()

    def why_no_graphs(self) -> str | None:
        """Say why a step cannot be captured."""
        return "torch captures no graphs on Apple MPS devices"

    def properties(self, device: torch.device) -> DeviceProperties:
        """Describe it by what torch tells: how much of the host's memory it had best not exceed."""
        return DeviceProperties(name="Apple GPU", memory_total_bytes=int(torch.mps.recommended_max_memory()))

    def free_and_total_bytes(self, device: torch.device) -> tuple[int, int] | None:
        """Return what is left of the memory that it had best not exceed, and all of that."""
        total = int(torch.mps.recommended_max_memory())
        return max(0, total - int(torch.mps.driver_allocated_memory())), total

    @contextmanager
    def kept_random_state(self, device: torch.device) -> Iterator[None]:
        """Put the state of random numbers back at the end, the processor's too."""
        before = torch.mps.get_rng_state()
        with torch.random.fork_rng(devices=[]):
            yield
        torch.mps.set_rng_state(before)

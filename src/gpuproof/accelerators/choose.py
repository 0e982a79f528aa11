"""Select a case's device type by name; types from other packages are imported on use.

CUDA devices (including AMD's under ROCm, since torch has one module for both), the CPU, and Intel's and
Apple's GPUs, where they differ from torch's conventions. The Intel and Apple classes were not tested on
hardware.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import cache

import torch

from gpuproof.accelerators.base import Accelerator, Arithmetic, DeviceProperties, Work, has_scaled_products
from gpuproof.base.errors import EnvironmentUnfitError, UsageError
from gpuproof.base.registry import ACCELERATORS, find_owner, load, names
from gpuproof.records.what_ran import Tf32Switch

TF32_OVERRIDE = "NVIDIA_TF32_OVERRIDE"
"""NVIDIA's libraries obey this variable regardless of what torch requests: 0 forbids TF32, 1 always uses
it."""


class CudaAccelerator(Accelerator):
    """CUDA and ROCm."""

    type = "cuda"
    title = "CUDA"
    collectives = ("nccl", "gloo")
    has_cudnn = True
    visibility_variable = "CUDA_VISIBLE_DEVICES"

    def why_no_graphs(self) -> str | None:
        """Every torch version we support can capture steps."""
        return None

    def capture_graph(self, run: Work) -> Work:
        """Record what `run` submits to the device, without running it; return a function that replays it."""
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            run()
        replay: Work = graph.replay
        return replay

    def properties(self, device: torch.device) -> DeviceProperties:
        """Describe one device; torch omits the prefix that NVML puts before its UUID."""
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
        """Query torch for the device's compute properties."""
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
        """Allow or forbid TF32 in fp32 matmuls and convolutions."""
        torch.backends.cuda.matmul.allow_tf32 = on
        torch.backends.cudnn.allow_tf32 = on

    def tf32_switch(self) -> Tf32Switch | None:
        """Return whether matmuls and convolutions may use TF32, as set in torch."""
        switches = {bool(torch.backends.cuda.matmul.allow_tf32), bool(torch.backends.cudnn.allow_tf32)}
        return "mixed" if len(switches) == 2 else "on" if True in switches else "off"

    def choose_convolutions(self, *, deterministic: bool, timed: bool) -> None:
        """Make cuDNN choose algorithms by timing, or deterministically."""
        torch.backends.cudnn.benchmark = timed
        torch.backends.cudnn.deterministic = deterministic

    def library_versions(self) -> dict[str, str | int | None]:
        """Return the versions of cuDNN and NCCL, or of MIOpen and RCCL; None without a device."""
        if not torch.cuda.is_available():
            return {"cudnn": None, "nccl": None}
        has_nccl = torch.distributed.is_nccl_available()
        nccl = ".".join(map(str, torch.cuda.nccl.version())) if has_nccl else None
        return {"cudnn": torch.backends.cudnn.version(), "nccl": nccl}


class Cpu(Accelerator):
    """The CPU: a step has finished when its call returns."""

    type = "cpu"
    title = "CPU"
    asynchronous = False
    in_software = True
    min_window_s = 0.0
    collectives = ("gloo",)
    pins_memory = False
    has_channels_last = False

    def set_device(self, device: torch.device) -> None:
        """Do nothing: there is only one device."""

    def why_no_graphs(self) -> str | None:
        """Return why a step cannot be captured."""
        return "CUDA graphs are for CUDA devices, and this run is on the CPU"

    def properties(self, device: torch.device) -> DeviceProperties:
        """Describe the CPU only by its kind: `worker.host.environment` contains its name."""
        return DeviceProperties(name="CPU")

    def arithmetic(self, device: torch.device) -> Arithmetic:
        """Query torch for the CPU's compute properties."""
        return replace(super().arithmetic(device), name="the CPU")

    def process_group(self, backend: str) -> str:
        """Return the only backend."""
        return backend

    @contextmanager
    def kept_random_state(self, device: torch.device) -> Iterator[None]:
        """Restore the random state on exit."""
        with torch.random.fork_rng(devices=[]):
            yield


class XpuAccelerator(Accelerator):
    """Intel GPUs."""

    type = "xpu"
    title = "Intel XPU"
    collectives = ("xccl",)
    visibility_variable = "ZE_AFFINITY_MASK"

    def why_no_graphs(self) -> str | None:
        """Return why a step cannot be captured and replayed; None if it can."""
        if hasattr(torch.xpu, "XPUGraph"):
            return None
        return f"torch {torch.__version__} does not capture graphs on {self.title} devices"

    def capture_graph(self, run: Work) -> Work:
        """Record what `run` submits to the device, without running it; return a function that replays it."""
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
        """Wait until the device has finished all its work."""
        torch.mps.synchronize()

    def why_no_graphs(self) -> str | None:
        """Return why a step cannot be captured."""
        return "torch does not capture graphs on Apple MPS devices"

    def properties(self, device: torch.device) -> DeviceProperties:
        """Describe the device as torch reports it; its memory size is the recommended maximum."""
        return DeviceProperties(name="Apple GPU", memory_total_bytes=int(torch.mps.recommended_max_memory()))

    def free_and_total_bytes(self, device: torch.device) -> tuple[int, int] | None:
        """Return how much of the recommended maximum memory is left, and that maximum."""
        total = int(torch.mps.recommended_max_memory())
        return max(0, total - int(torch.mps.driver_allocated_memory())), total

    @contextmanager
    def kept_random_state(self, device: torch.device) -> Iterator[None]:
        """Restore the random state on exit, including the CPU's random state."""
        before = torch.mps.get_rng_state()
        with torch.random.fork_rng(devices=[]):
            yield
        torch.mps.set_rng_state(before)


PROCESSOR = Cpu()
IN_ORDER: tuple[Accelerator, ...] = (CudaAccelerator(), XpuAccelerator(), MpsAccelerator())
"""Types that `auto` looks for. Users specify other types explicitly, so that none of those has to be imported
to look for its devices."""
OWN = {accelerator.type: accelerator for accelerator in (*IN_ORDER, PROCESSOR)}


@cache
def find_accelerator(name: str) -> Accelerator:
    """Return the device type with this name.

    Raises:
        EnvironmentUnfitError: no installed package provides this device type.
        UsageError: the device type cannot be loaded.
    """
    if name in OWN:
        return OWN[name]
    if name not in names(ACCELERATORS):
        raise EnvironmentUnfitError(
            f"no installed package provides the device type {name!r}",
            place="distributed.device",
            next_step=f"Install the package that registers it ({ACCELERATORS}) on the worker's machine",
        )
    accelerator: Accelerator = load(ACCELERATORS, name)()
    if accelerator.type != name:
        raise UsageError(
            f"{find_owner(ACCELERATORS, name)} registers {name!r}, but torch calls it {accelerator.type!r}",
            next_step="Register it under the device's name",
        )
    return accelerator


def accelerator_of(device: torch.device) -> Accelerator:
    """Return the type of a device."""
    return find_accelerator(device.type)


def free_bytes_of(device: torch.device) -> int | None:
    """Return the memory still available on a device (for a CPU, on its host); None if unknown."""
    room = accelerator_of(device).free_and_total_bytes(device)
    if room is not None or device.type != PROCESSOR.type:
        return None if room is None else room[0]
    try:
        with open("/proc/meminfo", encoding="ascii") as lines:
            fields = dict(line.split(":", 1) for line in lines)
        return int(fields["MemAvailable"].split()[0]) * 1024
    except (OSError, KeyError, ValueError):
        return None


def choose_accelerator(choice: str) -> Accelerator:
    """Return the requested type; `auto` is the first one available, else the CPU.

    Raises:
        EnvironmentUnfitError: it was requested by name, and torch sees no such device, or no installed
            package provides it.
    """
    if choice == "auto":
        return next((candidate for candidate in IN_ORDER if candidate.count()), PROCESSOR)
    accelerator = find_accelerator(choice)
    if accelerator is not PROCESSOR and not accelerator.count():
        raise EnvironmentUnfitError(
            f"no {accelerator.title} device: torch {torch.__version__} sees none",
            next_step="`gpuproof doctor` says why. To use the CPU: set distributed.device=cpu, or "
            "give `gpuproof load` --device cpu",
        )
    return accelerator


def accelerators_here(choice: str = "auto") -> tuple[Accelerator, ...]:
    """Return the device types for which torch sees devices; other packages' types only if chosen."""
    chosen = () if choice == "auto" or choice in OWN else (find_accelerator(choice),)
    return tuple(candidate for candidate in (*IN_ORDER, *chosen) if candidate.count())

"""Which type of device a case runs on, by its name; other packages' are imported on use.

CUDA devices (AMD's under ROCm among them: torch has one module for both), the processor, Intel's GPUs and
Apple's, where they differ from torch's conventions. Neither of the last two was tried on hardware.
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


class Cpu(Accelerator):
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


PROCESSOR = Cpu()
IN_ORDER: tuple[Accelerator, ...] = (CudaAccelerator(), XpuAccelerator(), MpsAccelerator())
"""What `auto` looks for. Others are named by the user: none of them is imported to find out."""
OWN = {accelerator.type: accelerator for accelerator in (*IN_ORDER, PROCESSOR)}


@cache
def find_accelerator(name: str) -> Accelerator:
    """Return the type of device of this name.

    Raises:
        EnvironmentUnfitError: no package here has it.
        UsageError: it cannot be loaded.
    """
    if name in OWN:
        return OWN[name]
    if name not in names(ACCELERATORS):
        raise EnvironmentUnfitError(
            f"no installed package provides the device type {name!r}",
            place="distributed.device",
            next_step=f"Install the package that registers it ({ACCELERATORS}) where the worker runs",
        )
    accelerator: Accelerator = load(ACCELERATORS, name)()
    if accelerator.type != name:
        raise UsageError(
            f"{find_owner(ACCELERATORS, name)} registers {name!r}, but torch calls it {accelerator.type!r}",
            next_step="Register it under the name of the device",
        )
    return accelerator


def accelerator_of(device: torch.device) -> Accelerator:
    """Return the type of a device."""
    return find_accelerator(device.type)


def free_bytes_of(device: torch.device) -> int | None:
    """Return the memory that a device could still give, of a processor its host's; None where nobody says."""
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
    """Return the type that was asked for; `auto` is the first that is there, else the processor.

    Raises:
        EnvironmentUnfitError: it was asked for by name, and torch sees none, or no package here has it.
    """
    if choice == "auto":
        return next((candidate for candidate in IN_ORDER if candidate.count()), PROCESSOR)
    accelerator = find_accelerator(choice)
    if accelerator is not PROCESSOR and not accelerator.count():
        raise EnvironmentUnfitError(
            f"no {accelerator.title} device: torch {torch.__version__} sees none",
            next_step="`gpuproof doctor` says why. On the processor: set distributed.device=cpu, or give "
            "`gpuproof load` --device cpu",
        )
    return accelerator


def accelerators_here(choice: str = "auto") -> tuple[Accelerator, ...]:
    """Return the types of which torch sees devices; another package's only where it is the choice."""
    chosen = () if choice == "auto" or choice in OWN else (find_accelerator(choice),)
    return tuple(candidate for candidate in (*IN_ORDER, *chosen) if candidate.count())

"""What the worker needs from a device type, with torch's implementation for most types.

One object represents a type (`cuda`, `xpu`, …). If a device lacks a feature, the method returns None, or a
reason that is shown to the user. Any package may register a class with this protocol, constructed without
arguments, in the entry-point group `gpuproof.accelerators` under torch's name for the type. A class that
inherits from `Accelerator` gets everything that torch's conventions for a device module (`torch.TYPE`)
provide.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

import torch

from gpuproof.base.errors import EnvironmentUnfitError
from gpuproof.base.spans import Span
from gpuproof.records.what_ran import Tf32Switch
from gpuproof.records.work.window import GPU_WINDOW_S

if TYPE_CHECKING:
    from typing_extensions import Self

Work = Callable[[], None]
OutOfMemory = torch.OutOfMemoryError
"""Exception that torch raises when a device of any type is out of memory."""


class TimingEvent(Protocol):
    """A point in the device's queue."""

    def record(self) -> None:
        """Append the event to the queue."""

    def query(self) -> bool:
        """Return whether the device has reached the event."""

    def synchronize(self) -> None:
        """Wait until the device has reached the event."""

    def elapsed_time(self, end: Self) -> float:
        """Return the milliseconds from this event to `end`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceProperties:
    """What torch reports about one device; values that torch does not report are None."""

    name: str
    uuid: str | None = None
    """UUID of the device, as reported by its driver."""
    memory_total_bytes: int | None = None
    compute_capability: tuple[int, int] | None = None
    """Major and minor version, as defined by NVIDIA; on AMD the numbers have a different meaning."""
    multiprocessors: int | None = None
    cache_bytes: int | None = None
    """Size of the last-level cache, as reported by torch."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Arithmetic:
    """Properties that determine which precisions a device supports."""

    name: str
    in_software: bool
    """Whether the CPU emulates types that it has no instructions for, which is correct but slow."""
    capability: tuple[int, int] | None
    """NVIDIA's compute capability; None for devices without one (a CPU, AMD)."""
    has_bf16: bool
    has_scaled_products: bool
    """Whether torch supports fp8 matmuls with a scale for each operand."""
    tf32_override: str | None
    """Value of NVIDIA_TF32_OVERRIDE."""
    has_fp64: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceCommand:
    """A kernel, copy or collective that a device ran, on the device's clock or its profiler's."""

    name: str
    """Name used by the profiler; simulated commands are named `compute`, `copy` or `simccl`."""
    begin_s: float
    end_s: float

    @property
    def span(self) -> Span:
        """Time span from the command's start to its end."""
        return self.begin_s, self.end_s


class Accelerator(Protocol):
    """A type of device."""

    type: str
    """Name of this type in `torch.device`."""
    title: str
    """Name shown to users, in messages."""
    simulated: bool = False
    """Whether the hardware is simulated; if so, measurements say nothing about any hardware, and `auto` never
    selects the type."""
    asynchronous: bool = True
    """Whether work is queued, so that the host continues before the device has finished."""
    in_software: bool = False
    """Whether values are computed by the CPU."""
    min_window_s: float = GPU_WINDOW_S
    """Minimum duration of a window limited by steps, unless the recipe says otherwise."""
    collectives: tuple[str, ...] = ()
    """torch.distributed backends that can transfer the device's tensors, preferred one first; empty means one
    rank only."""
    pins_memory: bool = True
    """Whether copies from pinned host memory are faster."""
    has_channels_last: bool = True
    """Whether convolutions may be faster on images in NHWC layout."""
    has_cudnn: bool = False
    visibility_variable: str | None = None
    """Environment variable that determines which devices torch sees."""

    @property
    def declared_rates(self) -> Mapping[str, float]:
        """Declared rates of a simulated device, in FLOP/s and bytes/s; empty for real devices."""
        return {}

    @property
    def module(self) -> Any:
        """Torch's module for this type."""
        return getattr(torch, self.type, None)

    def _ask(self, name: str, *arguments: Any) -> Any:
        """Call a function of the device's module, or else of `torch.accelerator`; None if neither has it."""
        function = getattr(self.module, name, None)
        if function is None and self._is_current():
            function = getattr(torch.accelerator, name, None)
        return None if function is None else function(*arguments)

    def _is_current(self) -> bool:
        """Return whether `torch.accelerator`, which knows one type per process, refers to this type."""
        generic = getattr(torch, "accelerator", None)
        current = None if generic is None else generic.current_accelerator()
        return current is not None and bool(current.type == self.type)

    def count(self) -> int:
        """Count the devices that torch sees."""
        return int(self._ask("device_count") or 0) if self._ask("is_available") else 0

    def set_device(self, device: torch.device) -> None:
        """Make this the process's default device."""
        self._ask("set_device", device)

    def synchronize(self, device: torch.device) -> None:
        """Wait until the device has finished all its work."""
        self._ask("synchronize", device)

    def has_events(self) -> bool:
        """Return whether points in the device's queue can be timed."""
        return hasattr(self.module, "Event")

    def make_event(self) -> TimingEvent:
        """Create a timed event on the current device."""
        event: TimingEvent = self.module.Event(enable_timing=True)
        return event

    def busy_s(self, device: torch.device) -> float | None:
        """Return how long the device has been busy, in seconds; None if it does not track this."""
        return None

    def commands_during(self, run: Work, device: torch.device) -> list[DeviceCommand] | None:
        """Run, wait, and return what the device did; return None and run nothing if nothing is recorded."""
        return None

    def why_no_graphs(self) -> str | None:
        """Return why a step cannot be captured and replayed; None if it can."""
        if hasattr(getattr(torch, "accelerator", None), "Graph") and self._is_current():
            return None
        return f"torch {torch.__version__} does not capture graphs on {self.title} devices"

    def run_aside(self, run: Work) -> None:
        """Run the work on a side stream, synchronizing the streams before and after it."""
        here, side = self.module.current_stream(), self.module.Stream()
        side.wait_stream(here)
        with self.module.stream(side):
            run()
        here.wait_stream(side)

    def run_both(self, run: Work, other: Work, *, peer: torch.device | None = None) -> None:
        """Run two pieces of work concurrently on two streams; anything queued afterwards waits for both.

        If the work copies to or from a `peer`, it also waits for a stream there, so `other` gets a second
        stream on that device.
        """
        here, side = self.module.current_stream(), self.module.Stream()
        side.wait_stream(here)
        with ExitStack() as streams:
            streams.enter_context(self.module.stream(side))
            if peer is not None:
                streams.enter_context(self.module.stream(self.module.Stream(peer)))
            other()
        run()
        here.wait_stream(side)

    def capture_graph(self, run: Work) -> Work:
        """Record what `run` submits to the device, without running it; return a function that replays it."""
        graph = torch.accelerator.Graph()
        with self.module.stream(self.module.Stream()), graph:
            run()
        replay: Work = graph.replay
        return replay

    def allocated_bytes(self, device: torch.device) -> int | None:
        """Return bytes currently allocated by torch's allocator; None if not counted or reported as 0."""
        return self._ask("memory_allocated", device) or None

    def peak_memory_bytes(self, device: torch.device) -> tuple[int | None, int | None]:
        """Return the peaks of allocated and reserved memory; None if not recorded, or reported as 0."""
        allocated, reserved = (
            self._ask(name, device) for name in ("max_memory_allocated", "max_memory_reserved")
        )
        return allocated or None, reserved or None

    def reason_no_memory_limit(self) -> str | None:
        """Return why a process cannot be limited to part of the device's memory; None if it can."""
        if hasattr(self.module, "set_per_process_memory_fraction"):
            return None
        return f"torch {torch.__version__} does not limit a process's memory on {self.title} devices"

    def limit_memory(self, limit_bytes: int, device: torch.device) -> None:
        """Limit how much memory torch's allocator may use; the limit must not exceed the device's memory.

        Raises:
            EnvironmentUnfitError: the device has less memory, or torch does not know how much it has.
        """
        total_bytes = self.properties(device).memory_total_bytes
        if total_bytes is None or limit_bytes > total_bytes:
            has = "an unknown amount" if total_bytes is None else f"{total_bytes:,}"
            raise EnvironmentUnfitError(
                f"a limit of {limit_bytes:,} bytes is requested, but the device has {has}",
                place="distributed.memory_limit_bytes",
                next_step="Request no more than the device has, or no limit (null)",
            )
        self._ask("set_per_process_memory_fraction", limit_bytes / total_bytes, device)

    def forget_peak_memory(self, device: torch.device) -> None:
        """Reset the peak memory values."""
        self._ask("reset_peak_memory_stats", device)

    def free_and_total_bytes(self, device: torch.device) -> tuple[int, int] | None:
        """Return the device's free and total memory; None if torch does not know."""
        sizes = self._ask("mem_get_info", device) or self._ask("get_memory_info", device)
        return None if sizes is None else (int(sizes[0]), int(sizes[1]))

    def properties(self, device: torch.device) -> DeviceProperties:
        """Describe one device."""
        properties = self._ask("get_device_properties", device)
        return DeviceProperties(
            name=str(getattr(properties, "name", self.title)),
            uuid=str(getattr(properties, "uuid", "")) or None,
            memory_total_bytes=getattr(properties, "total_memory", None),
            multiprocessors=getattr(properties, "multi_processor_count", None),
        )

    def reaches(self, device: torch.device, peer: torch.device) -> bool | None:
        """Return whether a device can copy directly to another; None if torch does not report it."""
        answer = self._ask("can_device_access_peer", device, peer)
        return None if answer is None else bool(answer)

    def arithmetic(self, device: torch.device) -> Arithmetic:
        """Query torch for the device's compute properties."""
        answer = self._ask("is_bf16_supported")
        return Arithmetic(
            name=self.properties(device).name,
            in_software=self.in_software,
            capability=None,
            has_bf16=_multiplies(torch.bfloat16, device) if answer is None else bool(answer),
            has_scaled_products=has_scaled_products(),
            tf32_override=None,
            has_fp64=_multiplies(torch.float64, device),
        )

    def use_tf32(self, *, on: bool) -> None:
        """Allow or forbid TF32 in fp32 matmuls and convolutions; do nothing if the device has no TF32."""
        return

    def tf32_switch(self) -> Tf32Switch | None:
        """Return whether matmuls and convolutions may use TF32, as set in torch; None without TF32."""
        return None

    def choose_convolutions(self, *, deterministic: bool, timed: bool) -> None:
        """Let convolution algorithms be chosen by timing, or deterministically; no-op without a library."""
        return

    def process_group(self, backend: str) -> str:
        """Return the names of the backends of a process group; ranks agree over gloo on the CPU."""
        return f"cpu:gloo,{self.type}:{backend}"

    @contextmanager
    def kept_random_state(self, device: torch.device) -> Iterator[None]:
        """Restore the random state on exit, including the CPU's random state."""
        with torch.random.fork_rng(devices=[device], device_type=self.type):
            yield

    def library_versions(self) -> dict[str, str | int | None]:
        """Return the versions of the device's libraries."""
        return {}


def has_scaled_products() -> bool:
    """Return whether this torch multiplies fp8 matrices."""
    return hasattr(torch, "_scaled_mm") and hasattr(torch, "float8_e5m2")


def _multiplies(dtype: torch.dtype, device: torch.device) -> bool:
    """Determined by trying it, since torch does not report it for every device type."""
    try:
        ones = torch.ones(2, 2, dtype=dtype, device=device)
        return float((ones @ ones).sum()) == 8
    except (RuntimeError, TypeError):
        return False

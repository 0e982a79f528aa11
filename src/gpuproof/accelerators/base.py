"""What the worker asks of a type of device, and how torch answers it for most of them.

One object stands for a type (`cuda`, `xpu`, …). What a device lacks is answered with None, or with the reason
in words, which becomes the user's message. A package of anyone's may register a class of this protocol, made
without arguments, in the entry-point group `gpuproof.accelerators` under torch's name of the type. A class
that inherits from `Accelerator` has all that torch's conventions for a device's module (`torch.TYPE`) give.
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
"""What torch raises when a device has no room, whatever its type."""


class TimingEvent(Protocol):
    """A moment in the device's queue."""

    def record(self) -> None:
        """Put the event behind all that is queued."""

    def query(self) -> bool:
        """Say whether the device has come to it."""

    def synchronize(self) -> None:
        """Wait until the device has come to it."""

    def elapsed_time(self, end: Self) -> float:
        """Return the milliseconds from this event to `end`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceProperties:
    """What torch knows of one device; None where it does not."""

    name: str
    uuid: str | None = None
    """As its driver writes it."""
    memory_total_bytes: int | None = None
    compute_capability: tuple[int, int] | None = None
    """Major and minor, as NVIDIA counts; AMD's have another meaning."""
    multiprocessors: int | None = None
    cache_bytes: int | None = None
    """The last cache that torch tells of."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Arithmetic:
    """What decides which precisions a device can compute in."""

    name: str
    in_software: bool
    """The processor works out what it has no instructions for: right, and slow."""
    capability: tuple[int, int] | None
    """NVIDIA's compute capability; None where it has no such meaning (a processor, AMD)."""
    has_bf16: bool
    has_scaled_products: bool
    """torch has the product of fp8 matrices, and takes a scale for each."""
    tf32_override: str | None
    """The value of NVIDIA_TF32_OVERRIDE."""
    has_fp64: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceCommand:
    """A kernel, copy or collective that a device ran, on a clock of the device's or of its profiler's."""

    name: str
    """As the profiler calls it; a simulated one says `compute`, `copy` or `simccl`."""
    begin_s: float
    end_s: float

    @property
    def span(self) -> Span:
        """From its begin to its end."""
        return self.begin_s, self.end_s


class Accelerator(Protocol):
    """A type of device."""

    type: str
    """As torch names it in `torch.device`."""
    title: str
    """As a user knows it, in messages."""
    simulated: bool = False
    """No such hardware exists; what is measured on it says nothing of any, and `auto` never takes it."""
    asynchronous: bool = True
    """Work is queued, and the host goes on before it is done."""
    in_software: bool = False
    """Values are computed by the processor."""
    min_window_s: float = GPU_WINDOW_S
    """How long a window by steps lasts at least, unless the recipe says otherwise."""
    collectives: tuple[str, ...] = ()
    """Backends of torch.distributed that move its tensors, the usual one first; none is one rank only."""
    pins_memory: bool = True
    """Copies from memory that is pinned on the host are faster."""
    has_channels_last: bool = True
    """Convolutions may be faster on images laid out NHWC."""
    has_cudnn: bool = False
    visibility_variable: str | None = None
    """The variable that says which devices torch sees."""

    @property
    def declared_rates(self) -> Mapping[str, float]:
        """What is declared of a simulated device, in FLOP/s and bytes/s; empty of what exists."""
        return {}

    @property
    def module(self) -> Any:
        """Torch's module of this type."""
        return getattr(torch, self.type, None)

    def _ask(self, name: str, *arguments: Any) -> Any:
        """Call a function of the device's module, else of `torch.accelerator`; None without either."""
        function = getattr(self.module, name, None)
        if function is None and self._is_current():
            function = getattr(torch.accelerator, name, None)
        return None if function is None else function(*arguments)

    def _is_current(self) -> bool:
        """Say whether `torch.accelerator`, which knows one type in a process, speaks of this one."""
        generic = getattr(torch, "accelerator", None)
        current = None if generic is None else generic.current_accelerator()
        return current is not None and bool(current.type == self.type)

    def count(self) -> int:
        """Count the devices that torch sees."""
        return int(self._ask("device_count") or 0) if self._ask("is_available") else 0

    def set_device(self, device: torch.device) -> None:
        """Make this the device of the process where code names none."""
        self._ask("set_device", device)

    def synchronize(self, device: torch.device) -> None:
        """Wait until the device has done all that it was given."""
        self._ask("synchronize", device)

    def has_events(self) -> bool:
        """Say whether moments of its queue can be timed."""
        return hasattr(self.module, "Event")

    def make_event(self) -> TimingEvent:
        """Make a timed event of the current device."""
        event: TimingEvent = self.module.Event(enable_timing=True)
        return event

    def busy_s(self, device: torch.device) -> float | None:
        """Return for how long the device has worked, in seconds; None where it keeps no count."""
        return None

    def commands_during(self, run: Work, device: torch.device) -> list[DeviceCommand] | None:
        """Run, wait, and return what the device did; None, not having run, where it keeps no such list."""
        return None

    def why_no_graphs(self) -> str | None:
        """Say why a step cannot be captured and replayed; None where it can."""
        if hasattr(getattr(torch, "accelerator", None), "Graph") and self._is_current():
            return None
        return f"torch {torch.__version__} captures no graphs on {self.title} devices"

    def run_aside(self, run: Work) -> None:
        """Run on a side stream, between two waits."""
        here, side = self.module.current_stream(), self.module.Stream()
        side.wait_stream(here)
        with self.module.stream(side):
            run()
        here.wait_stream(side)

    def run_both(self, run: Work, other: Work, *, peer: torch.device | None = None) -> None:
        """Run two pieces of work on two streams at once; what is queued next waits for both.

        Work that copies to or from a `peer` waits for its stream too: `other` has another one there as well.
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
        """Record what `run` gives to the device, without running it; return what replays it."""
        graph = torch.accelerator.Graph()
        with self.module.stream(self.module.Stream()), graph:
            run()
        replay: Work = graph.replay
        return replay

    def allocated_bytes(self, device: torch.device) -> int | None:
        """Return what torch's allocator has given out by now; None where it keeps no count, or says 0."""
        return self._ask("memory_allocated", device) or None

    def peak_memory_bytes(self, device: torch.device) -> tuple[int | None, int | None]:
        """Return the peaks of allocated and of reserved memory; None where torch keeps none, or says 0."""
        allocated, reserved = (
            self._ask(name, device) for name in ("max_memory_allocated", "max_memory_reserved")
        )
        return allocated or None, reserved or None

    def reason_no_memory_limit(self) -> str | None:
        """Say why a process cannot be kept to a part of the device's memory; None where it can."""
        if hasattr(self.module, "set_per_process_memory_fraction"):
            return None
        return f"torch {torch.__version__} limits no process's memory on {self.title} devices"

    def limit_memory(self, limit_bytes: int, device: torch.device) -> None:
        """Have torch's allocator refuse more than so much, which must be no more than the device has.

        Raises:
            EnvironmentUnfitError: the device has less, or torch does not know how much it has.
        """
        total_bytes = self.properties(device).memory_total_bytes
        if total_bytes is None or limit_bytes > total_bytes:
            has = "an unknown amount" if total_bytes is None else f"{total_bytes:,}"
            raise EnvironmentUnfitError(
                f"a limit of {limit_bytes:,} bytes is asked for, and the device has {has}",
                place="distributed.memory_limit_bytes",
                next_step="Ask for no more than the device has, or for no limit (null)",
            )
        self._ask("set_per_process_memory_fraction", limit_bytes / total_bytes, device)

    def forget_peak_memory(self, device: torch.device) -> None:
        """Begin the peaks anew."""
        self._ask("reset_peak_memory_stats", device)

    def free_and_total_bytes(self, device: torch.device) -> tuple[int, int] | None:
        """Return the device's memory that nobody holds, and all of it; None where torch does not know."""
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
        """Say whether a device copies to another directly; None where torch does not tell."""
        answer = self._ask("can_device_access_peer", device, peer)
        return None if answer is None else bool(answer)

    def arithmetic(self, device: torch.device) -> Arithmetic:
        """Ask torch what the device computes with."""
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
        """Let products and convolutions of fp32 use TF32, or forbid it; nothing where there is no TF32."""
        return

    def tf32_switch(self) -> Tf32Switch | None:
        """Read back whether products and convolutions may use TF32; None where there is none."""
        return None

    def choose_convolutions(self, *, deterministic: bool, timed: bool) -> None:
        """Have the library of convolutions choose by timing, or the same always; nothing without such."""
        return

    def process_group(self, backend: str) -> str:
        """Name the backends of a process group: small decisions go over gloo on the CPU."""
        return f"cpu:gloo,{self.type}:{backend}"

    @contextmanager
    def kept_random_state(self, device: torch.device) -> Iterator[None]:
        """Put the state of random numbers back at the end, the processor's too."""
        with torch.random.fork_rng(devices=[device], device_type=self.type):
            yield

    def library_versions(self) -> dict[str, str | int | None]:
        """Return the versions of its libraries."""
        return {}


def has_scaled_products() -> bool:
    """Say whether this torch multiplies fp8 matrices."""
    return hasattr(torch, "_scaled_mm") and hasattr(torch, "float8_e5m2")


def _multiplies(dtype: torch.dtype, device: torch.device) -> bool:
    """Try it: torch does not tell of every type of device."""
    try:
        ones = torch.ones(2, 2, dtype=dtype, device=device)
        return float((ones @ ones).sum()) == 8
    except (RuntimeError, TypeError):
        return False

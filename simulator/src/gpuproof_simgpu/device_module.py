"""`torch.simgpu`: the functions that torch and its users look for in a device's own module."""

from __future__ import annotations

from dataclasses import dataclass
from types import ModuleType
from typing import Any

import torch

from gpuproof.devices.simulated import SimulatedDevices, uuid_of

_TYPE = "simgpu"
Place = torch.device | str | int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Properties:
    """What is declared of one device."""

    name: str
    uuid: str
    total_memory: int
    """Bytes."""
    multi_processor_count: int = 1
    gcnArchName: str = ""  # noqa: N815  # asked for by code that was written for AMD


@dataclass(slots=True)
class _Loaded:
    device: ModuleType
    declared: SimulatedDevices


_loaded: list[_Loaded] = []


def use(device: ModuleType, declared: SimulatedDevices) -> None:
    """Take the compiled part; called once."""
    _loaded.append(_Loaded(device, declared))


def declared_devices() -> SimulatedDevices:
    """Return what was declared of the devices."""
    return _loaded[0].declared


def _device() -> Any:
    return _loaded[0].device


def _index(place: Place) -> int:
    if place is None:
        return current_device()
    if isinstance(place, int):
        return place
    index = torch.device(place).index
    return current_device() if index is None else index


def _place(place: Place) -> torch.device:
    return torch.device(_TYPE, _index(place))


def Event(enable_timing: bool = False, **_other: Any) -> torch.Event:  # noqa: N802  # as torch has it
    """Make a moment in the queue of the current device."""
    return torch.Event(_TYPE, enable_timing=enable_timing)


def Stream(device: Place = None, priority: int = 0) -> torch.Stream:  # noqa: N802  # as torch has it
    """Make a queue of its own of a device; its priority has no effect."""
    return torch.Stream(_place(device), priority=priority)


def is_available() -> bool:
    """Say whether there is a device."""
    return device_count() > 0


def is_initialized() -> bool:
    """Say whether the devices can be used: always."""
    return True


def init() -> None:
    """Do nothing: there is nothing to wake."""


def _lazy_init() -> None:
    """Do nothing, as `init`."""


def _is_in_bad_fork() -> bool:
    return False


def device_count() -> int:
    """Count the devices."""
    return int(_device().num_devices())


def current_device() -> int:
    """Return the index of the calling thread's device."""
    return int(_device().current_device())


def set_device(device: Place) -> None:
    """Make it the calling thread's device."""
    _device().set_device(_index(device))


def synchronize(device: Place = None) -> None:
    """Wait until the device has run all that it was given."""
    _device().synchronize(_index(device))


def current_stream(device: Place = None) -> torch.Stream:
    """Return the stream that work goes to."""
    return torch.accelerator.current_stream(_place(device))


def default_stream(device: Place = None) -> torch.Stream:
    """Return the stream that work goes to at first."""
    return torch.Stream(stream_id=0, device_index=_index(device), device_type=_private_use())


def set_stream(stream: torch.Stream) -> None:
    """Have work go to this stream."""
    torch.accelerator.set_stream(stream)


def stream(chosen: torch.Stream) -> torch.Stream:
    """Return a context in which work goes to this stream."""
    return chosen


def _private_use() -> int:
    return int(torch.Stream(_TYPE).device_type)


class device:  # noqa: N801  # as torch has it
    """A context in which this is the current device."""

    def __init__(self, place: Place) -> None:
        self._place = place
        self._before = -1

    def __enter__(self) -> None:
        self._before = current_device()
        if self._place is not None:
            set_device(self._place)

    def __exit__(self, *_error: object) -> None:
        set_device(self._before)


def get_device_properties(device: Place = None) -> Properties:
    """Return what is declared of a device."""
    index = _index(device)
    declared = declared_devices()
    return Properties(
        name=declared.name, uuid=uuid_of(declared.first_card + index), total_memory=declared.memory_of(index)
    )


def get_device_name(device: Place = None) -> str:
    """Return the name of a device."""
    return get_device_properties(device).name


def is_bf16_supported(including_emulation: bool = True) -> bool:  # as torch has it
    """Say whether it computes in bf16."""
    return True


def get_amp_supported_dtype() -> list[torch.dtype]:
    """Return what autocast may choose."""
    return [torch.bfloat16, torch.float16]


def memory_allocated(device: Place = None) -> int:
    """Return the bytes in use."""
    return torch.accelerator.memory_allocated(_place(device))


def max_memory_allocated(device: Place = None) -> int:
    """Return the most bytes that were in use."""
    return torch.accelerator.max_memory_allocated(_place(device))


def memory_reserved(device: Place = None) -> int:
    """Return the bytes in use and those kept for reuse."""
    return torch.accelerator.memory_reserved(_place(device))


def max_memory_reserved(device: Place = None) -> int:
    """Return the most bytes that were in use or kept."""
    return torch.accelerator.max_memory_reserved(_place(device))


def memory_stats(device: Place = None) -> dict[str, Any]:
    """Return the allocator's counts."""
    return dict(torch.accelerator.memory_stats(_place(device)))


def reset_peak_memory_stats(device: Place = None) -> None:
    """Begin the peaks anew."""
    torch.accelerator.reset_peak_memory_stats(_place(device))


def mem_get_info(device: Place = None) -> tuple[int, int]:
    """Return the free bytes and all bytes."""
    free, total = torch.accelerator.get_memory_info(_place(device))
    return free, total


def empty_cache() -> None:
    """Keep nothing for reuse."""
    torch.accelerator.empty_cache()


def is_current_stream_capturing() -> bool:
    """Say whether a graph is being captured."""
    return bool(_device().is_capturing())


def default_generator(device: Place = None) -> torch.Generator:
    """Return the source of a device's random numbers where none is given."""
    made: torch.Generator = _device().default_generator(_index(device))
    return made


def manual_seed(seed: int) -> None:
    """Seed the current device's random numbers."""
    default_generator().manual_seed(seed)


def manual_seed_all(seed: int) -> None:
    """Seed every device's random numbers."""
    for index in range(device_count()):
        default_generator(index).manual_seed(seed)


def get_rng_state(device: Place = None) -> torch.Tensor:
    """Return the state of a device's random numbers."""
    return default_generator(device).get_state()


def set_rng_state(new_state: torch.Tensor, device: Place = None) -> None:
    """Put the state of a device's random numbers back."""
    default_generator(device).set_state(new_state)

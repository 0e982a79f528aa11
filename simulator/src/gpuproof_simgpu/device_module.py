"""`torch.simgpu`: the functions that torch and its users expect in a device module."""

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
    """The declared properties of one device."""

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
    """Set the compiled module; called once."""
    _loaded.append(_Loaded(device, declared))


def declared_devices() -> SimulatedDevices:
    """Return the declaration of the devices."""
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
    """Record an event in the queue of the current device."""
    return torch.Event(_TYPE, enable_timing=enable_timing)


def Stream(device: Place = None, priority: int = 0) -> torch.Stream:  # noqa: N802  # as torch has it
    """Create a separate stream on a device; its priority has no effect."""
    return torch.Stream(_place(device), priority=priority)


def is_available() -> bool:
    """Return whether there is a device."""
    return device_count() > 0


def is_initialized() -> bool:
    """Return whether the devices can be used, which is always the case."""
    return True


def init() -> None:
    """Do nothing: there is nothing to initialise."""


def _lazy_init() -> None:
    """Do nothing, like `init`."""


def _is_in_bad_fork() -> bool:
    return False


def device_count() -> int:
    """Count the devices."""
    return int(_device().num_devices())


def current_device() -> int:
    """Return the index of the calling thread's device."""
    return int(_device().current_device())


def set_device(device: Place) -> None:
    """Set the calling thread's device."""
    _device().set_device(_index(device))


def synchronize(device: Place = None) -> None:
    """Wait until the device has finished all its work."""
    _device().synchronize(_index(device))


def current_stream(device: Place = None) -> torch.Stream:
    """Return the current stream."""
    return torch.accelerator.current_stream(_place(device))


def default_stream(device: Place = None) -> torch.Stream:
    """Return the default stream."""
    return torch.Stream(stream_id=0, device_index=_index(device), device_type=_private_use())


def set_stream(stream: torch.Stream) -> None:
    """Set the current stream."""
    torch.accelerator.set_stream(stream)


def stream(chosen: torch.Stream) -> torch.Stream:
    """Return a context in which this is the current stream."""
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
    """Return the declared rate of a device."""
    index = _index(device)
    declared = declared_devices()
    return Properties(
        name=declared.name, uuid=uuid_of(declared.first_card + index), total_memory=declared.memory_of(index)
    )


def get_device_name(device: Place = None) -> str:
    """Return the name of a device."""
    return get_device_properties(device).name


def is_bf16_supported(including_emulation: bool = True) -> bool:  # as in torch
    """Return whether the device supports bf16."""
    return True


def get_amp_supported_dtype() -> list[torch.dtype]:
    """Return the data types that autocast may use."""
    return [torch.bfloat16, torch.float16]


def memory_allocated(device: Place = None) -> int:
    """Return the bytes in use."""
    return torch.accelerator.memory_allocated(_place(device))


def max_memory_allocated(device: Place = None) -> int:
    """Return the peak number of bytes in use."""
    return torch.accelerator.max_memory_allocated(_place(device))


def memory_reserved(device: Place = None) -> int:
    """Return the bytes in use and those cached for reuse."""
    return torch.accelerator.memory_reserved(_place(device))


def max_memory_reserved(device: Place = None) -> int:
    """Return the peak number of bytes in use or cached."""
    return torch.accelerator.max_memory_reserved(_place(device))


def memory_stats(device: Place = None) -> dict[str, Any]:
    """Return the allocator's statistics."""
    return dict(torch.accelerator.memory_stats(_place(device)))


def reset_peak_memory_stats(device: Place = None) -> None:
    """Reset the peaks."""
    torch.accelerator.reset_peak_memory_stats(_place(device))


def mem_get_info(device: Place = None) -> tuple[int, int]:
    """Return the free and total bytes."""
    free, total = torch.accelerator.get_memory_info(_place(device))
    return free, total


def empty_cache() -> None:
    """Release the cache."""
    torch.accelerator.empty_cache()


def is_current_stream_capturing() -> bool:
    """Return whether a graph is being captured."""
    return bool(_device().is_capturing())


def default_generator(device: Place = None) -> torch.Generator:
    """Return a device's default random number generator."""
    made: torch.Generator = _device().default_generator(_index(device))
    return made


def manual_seed(seed: int) -> None:
    """Seed the current device's random number generator."""
    default_generator().manual_seed(seed)


def manual_seed_all(seed: int) -> None:
    """Seed every device's random number generator."""
    for index in range(device_count()):
        default_generator(index).manual_seed(seed)


def get_rng_state(device: Place = None) -> torch.Tensor:
    """Return the state of a device's random number generator."""
    return default_generator(device).get_state()


def set_rng_state(new_state: torch.Tensor, device: Place = None) -> None:
    """Restore the state of a device's random number generator."""
    default_generator(device).set_state(new_state)

"""The only module that imports nvidia-ml-py: it opens NVML and translates its errors.

Returns the binding's module, typed as Any because it has no type information. Field ids, bits and enums are
our own constants in `fields`, since older bindings lack the newer names.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

from gpuproof.devices.base import (
    DeviceError,
    DeviceLostError,
    DriverMissingError,
    LibraryMissingError,
    NotSupportedError,
)
from gpuproof.devices.sources import too_old

T = TypeVar("T")

UNINITIALIZED = 1
INVALID_ARGUMENT = 2
NOT_SUPPORTED = 3
NO_PERMISSION = 4
NOT_FOUND = 6
DRIVER_NOT_LOADED = 9
TIMEOUT = 10
LIBRARY_NOT_FOUND = 12
FUNCTION_NOT_FOUND = 13
GPU_IS_LOST = 15
RESET_REQUIRED = 16
VERSION_MISMATCH = 18
ARGUMENT_VERSION_MISMATCH = 25
DEPRECATED = 26
GPU_NOT_FOUND = 28

DRIVER_CODES = {UNINITIALIZED, DRIVER_NOT_LOADED, VERSION_MISMATCH}
_LOST_CODES = {GPU_IS_LOST, RESET_REQUIRED, GPU_NOT_FOUND}
_NEVER_CODES = {NOT_SUPPORTED, FUNCTION_NOT_FOUND, DEPRECATED}

_CAUSES = {
    UNINITIALIZED: "NVML is not initialised; the driver was reloaded",
    NOT_SUPPORTED: "not supported by this device or its current mode",
    NO_PERMISSION: "this user may not read it",
    NOT_FOUND: "the driver does not know this device",
    DRIVER_NOT_LOADED: "the NVIDIA kernel driver is not loaded",
    LIBRARY_NOT_FOUND: "libnvidia-ml.so.1 is not installed",
    FUNCTION_NOT_FOUND: "not supported: this driver's NVML is too old",
    GPU_IS_LOST: "the GPU is lost: it fell off the bus or is unreachable",
    RESET_REQUIRED: "the GPU needs a reset before it can be used again",
    VERSION_MISMATCH: "the NVIDIA kernel driver and libnvidia-ml.so.1 have different versions; reboot",
    DEPRECATED: "not supported by this driver any longer",
    GPU_NOT_FOUND: "the driver no longer lists this GPU",
}


def load_binding() -> Any:
    """Import nvidia-ml-py.

    Raises:
        LibraryMissingError: nvidia-ml-py is not installed.
    """
    try:
        import pynvml
    except ImportError as error:
        raise LibraryMissingError(
            f"the Python package nvidia-ml-py is not installed ({error})",
            next_step="Install gpuproof[torch], or nvidia-ml-py alone",
        ) from error
    return pynvml


def initialise(nvml: Any) -> None:
    """Start NVML.

    Raises:
        LibraryMissingError: libnvidia-ml.so.1 is missing, or too old for the binding.
        DriverMissingError: the kernel driver is not loaded.
    """
    try:
        nvml.nvmlInit()
    except nvml.NVMLError as error:
        code = error_code(error)
        if code in (LIBRARY_NOT_FOUND, FUNCTION_NOT_FOUND):
            raise LibraryMissingError(_CAUSES[code]) from error
        raise DriverMissingError(cause(error)) from error


def shut_down(nvml: Any) -> None:
    """Shut down NVML; do nothing if the driver has already shut it down."""
    try:
        nvml.nvmlShutdown()
    except nvml.NVMLError as error:
        if error_code(error) != UNINITIALIZED:
            raise device_error(error) from error


def ask(nvml: Any, question: Callable[[], T]) -> T:
    """Query NVML through its Python binding.

    Raises:
        DeviceError: as for `device_error`.
    """
    try:
        return question()
    except nvml.NVMLError as error:
        raise device_error(error) from error
    except AttributeError as error:
        raise too_old("nvidia-ml-py", nvml, error) from error


def error_code(error: Any) -> int:
    """Return the NVML code of an error raised by the binding."""
    return int(error.value)


def explain(code: int) -> str:
    """Describe why NVML returned the error `code`."""
    return _CAUSES.get(code, f"NVML error {code}")


def cause(error: Any) -> str:
    """Describe why NVML raised `error`."""
    return _CAUSES.get(error_code(error)) or f"NVML: {error}"


def device_error(error: Any) -> DeviceError:
    """Convert an NVML error into this package's error with the matching scope.

    `DriverMissingError` affects every device, `DeviceLostError` the queried device, `NotSupportedError` one
    value permanently, and a plain `DeviceError` one value this time.
    """
    return coded_error(error_code(error), cause(error))


def coded_error(code: int, why: str | None = None) -> DeviceError:
    """Return this package's error for the NVML return code of one value or call."""
    why = why or explain(code)
    for codes, kind in (
        (DRIVER_CODES, DriverMissingError),
        (_LOST_CODES, DeviceLostError),
        (_NEVER_CODES, NotSupportedError),
    ):
        if code in codes:
            return kind(why)
    return DeviceError(why)

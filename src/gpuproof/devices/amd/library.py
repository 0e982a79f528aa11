"""The only module that imports `amdsmi`: AMD's library, cards by PCI address, our own errors.

`library_metrics` documents which call provides each metric, and why. If the package, the library or the
driver is missing, all readings come from the driver's files.

If a library call hangs, the card also loses its readings from the files, because `guard` applies its deadline
to the whole card; if opening the library hangs, all AMD cards lose theirs.

The package must come from the same ROCm release as the library (/opt/rocm/share/amd_smi), because it mirrors
C structs that change between releases. This module was not tested on AMD hardware, only with package 7.0.2
and a stand-in for libamd_smi.so.
"""

from __future__ import annotations

import contextlib
import io
from collections.abc import Callable
from functools import partial
from typing import Any, TypeVar

from gpuproof.devices.base import (
    DeviceError,
    DriverMissingError,
    LibraryMissingError,
    NotSupportedError,
)
from gpuproof.devices.sources import too_old

T = TypeVar("T")

NOT_SUPPORTED = 2
NOT_YET_IMPLEMENTED = 3
NOT_FOUND = 31
NOT_INITIALISED = 32
DRIVER_NOT_LOADED = 34
NO_DATA = 40

_NEVER_CODES = {NOT_SUPPORTED, NOT_YET_IMPLEMENTED}
_CAUSES = {
    NOT_SUPPORTED: "not supported by this card or driver",
    NOT_YET_IMPLEMENTED: "this release of the library does not implement it",
    8: "the library timed out",
    10: "this user may not read it",
    30: "the card is busy",
    NOT_FOUND: "the library does not know this card",
    NOT_INITIALISED: "the library is not initialised",
    DRIVER_NOT_LOADED: "the library finds no amdgpu driver",
    NO_DATA: "the library has no data for it",
    43: "the library found data in an unexpected format",
}


class SmiLibrary:
    """The opened library, with its cards by PCI address."""

    def __init__(self, amdsmi: Any) -> None:
        self.amdsmi = amdsmi
        self._open = True
        self.handles: dict[str, Any] = {}
        """PCI address, in the format of `VendorDevice`, → the library's handle."""
        for handle in self.ask(amdsmi.amdsmi_get_processor_handles):
            address = self.ask(partial(amdsmi.amdsmi_get_gpu_device_bdf, handle))
            self.handles[str(address).lower()] = handle

    def ask(self, question: Callable[[], T]) -> T:
        """Query the library through its Python binding.

        Raises:
            NotSupportedError: this card, driver or library release never provides the value.
            DeviceError: the value was not provided this time.
        """
        try:
            return question()
        except self.amdsmi.AmdSmiException as error:
            raise device_error(error) from error
        except AttributeError as error:
            raise too_old("amdsmi", self.amdsmi, error) from error
        except ValueError as error:
            raise DeviceError(f"the binding cannot interpret the answer ({error})") from error

    def close(self) -> None:
        """Release the library once.

        Raises:
            DeviceError: the library did not shut down.
        """
        if self._open:
            self._open = False
            self.ask(self.amdsmi.amdsmi_shut_down)


def open_library() -> SmiLibrary:
    """Import the binding, start the library and list its cards.

    Raises:
        LibraryMissingError: the Python package or libamd_smi.so is missing, or one of them is too old for the
            other.
        DriverMissingError: the library finds no driver.
        DeviceError: the library cannot be initialized, or does not list its cards.
    """
    amdsmi = _load_binding()
    try:
        amdsmi.amdsmi_init()
    except amdsmi.AmdSmiException as error:
        if _code(error) == DRIVER_NOT_LOADED:
            raise DriverMissingError(_cause(error)) from error
        raise device_error(error) from error
    try:
        return SmiLibrary(amdsmi)
    except DeviceError:
        amdsmi.amdsmi_shut_down()
        raise


def device_error(error: Any) -> DeviceError:
    """Convert a binding error to one of this package's: permanent (`NotSupportedError`) or temporary."""
    kind = NotSupportedError if _code(error) in _NEVER_CODES else DeviceError
    return kind(_cause(error))


def _load_binding() -> Any:
    """Import amdsmi; if the library is missing, that prints to standard output and raises a KeyError."""
    printed = io.StringIO()
    try:
        with contextlib.redirect_stdout(printed):
            import amdsmi
    except ImportError as error:
        raise LibraryMissingError(
            f"the Python package amdsmi is not installed ({error})",
            next_step="Install the package shipped with ROCm in /opt/rocm/share/amd_smi",
        ) from error
    except (KeyError, OSError) as error:
        why = printed.getvalue().partition("\n")[0] or str(error)
        raise LibraryMissingError(f"libamd_smi.so cannot be loaded ({why})") from error
    except AttributeError as error:
        raise LibraryMissingError(
            f"libamd_smi.so and the Python package are from different ROCm releases ({error})"
        ) from error
    return amdsmi


def _code(error: Any) -> int | None:
    """Return the library's number for an error; errors of the binding itself have none."""
    return getattr(error, "err_code", None)


def _cause(error: Any) -> str:
    code = _code(error)
    if code is None:
        return f"amdsmi: {error}"
    return _CAUSES.get(code) or f"error {code}, {error.get_error_info(detailed=False)}"

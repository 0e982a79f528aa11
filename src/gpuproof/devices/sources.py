"""Queries to a vendor's library: each provides several metrics; some metrics have two sources.

Input: the requested metrics. Output: for each, a value or the reason why there is none.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

from gpuproof.devices.base import DeviceError, DeviceLostError, DriverMissingError, NotSupportedError

T = TypeVar("T")

Answer = dict[str, Any]
"""Metric → value in our unit, or the `DeviceError` with the reason why there is none."""

WHOLE_DEVICE_ERRORS = (DriverMissingError, DeviceLostError)
"""Errors after which this reading stops querying the device."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Source:
    """One query, and the metrics that it provides."""

    metrics: tuple[str, ...]
    ask: Callable[[Any, Any], Answer]
    """Called with the library's binding and a device handle; raises the binding's errors."""


class SourceReader:
    """The sources for one device. Values that the device never reports are queried only once."""

    def __init__(self, sources: Sequence[Source], ask: Callable[[Source], Answer]) -> None:
        """Store the sources in order of preference; `ask` converts the binding's errors to ours."""
        self._sources = tuple(sources)
        self._ask = ask
        self._refused_for_good: dict[Source, DeviceError] = {}

    def give(self, wanted: Collection[str]) -> tuple[dict[str, Any], dict[str, str]]:
        """Query sources in order until one provides a metric; omit metrics that have no source.

        Raises:
            DeviceLostError: the device has disappeared.
            DriverMissingError: the driver is gone.
        """
        values: dict[str, Any] = {}
        refused: dict[str, str] = {}
        open_metrics = set(wanted)
        for source in self._sources:
            if missing := [metric for metric in source.metrics if metric in open_metrics]:
                answer = self._answer(source)
                answers = {metric: answer[metric] for metric in missing}
                refused |= {m: value.cause for m, value in answers.items() if isinstance(value, DeviceError)}
                values |= {m: value for m, value in answers.items() if not isinstance(value, DeviceError)}
                open_metrics -= values.keys()
        return values, {metric: why for metric, why in refused.items() if metric not in values}

    def _answer(self, source: Source) -> Answer:
        if source in self._refused_for_good:
            return dict.fromkeys(source.metrics, self._refused_for_good[source])
        try:
            return self._ask(source)
        except WHOLE_DEVICE_ERRORS:
            raise
        except DeviceError as error:
            if isinstance(error, NotSupportedError):
                self._refused_for_good[source] = error
            return dict.fromkeys(source.metrics, error)


def too_old(package: str, binding: Any, error: AttributeError) -> NotSupportedError:
    """Report that this version of a binding lacks a function; any other AttributeError is our bug."""
    if error.obj is not binding:
        raise error
    return NotSupportedError(f"this {package} is too old to provide {error.name}")


def collect(questions: Mapping[str, Callable[[], T]]) -> tuple[dict[str, T], dict[str, str]]:
    """Query each metric separately; an error becomes the reason for a missing metric.

    Raises:
        DeviceLostError: the device has disappeared.
        DriverMissingError: the driver is gone.
    """
    values: dict[str, T] = {}
    missing: dict[str, str] = {}
    for metric, ask in questions.items():
        try:
            values[metric] = ask()
        except WHOLE_DEVICE_ERRORS:  # noqa: PERF203  # each is asked whatever another refuses
            raise
        except DeviceError as error:
            missing[metric] = error.cause
    return values, missing

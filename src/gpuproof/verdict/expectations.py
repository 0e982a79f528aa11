"""Measurements by others: published values by key, and which of them apply to what was measured.

A value is a hint, not a threshold: it applies to the board, size, type, tool and fabric of its source.
Anything that a source omits is unknown and does not match anything, and nothing is guessed from a part of a
name. A rule may list conditions to ignore for the value, and the outcome repeats them. The values are in
`expectations.toml`.

>>> figure = load_expectations().find("all-reduce.8x-h200.8gib.azure")
>>> figure.value
479980000000.0
>>> reason_not_comparable(figure, {"quantity": "all_gather"}, ignoring=())
'the value is for all_reduce, but all_gather was measured'
"""

from __future__ import annotations

import difflib
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, fields
from functools import cache
from typing import Any, Literal

import tomllib

from gpuproof.base.errors import UsageError
from gpuproof.base.files import packaged_text
from gpuproof.base.units import significant

PUBLISHED = "published"
"""Used instead of a key: all results published for what was measured."""
COLLECTIVE = ("device", "num_devices", "size_bytes", "tool")
MATCHED: Mapping[str, tuple[str, ...]] = {
    "matrix multiply": ("device", "dtype", "shape", "tool"),
    "device memory": ("device", "operation", "tool"),
    "host link": ("device", "direction", "tool"),
    "device link": ("device", "tool"),
    "network card": ("fabric", "tool"),
    "training": ("device", "operation", "dtype", "num_devices", "tool"),
    "kernel launch": ("device", "tool"),
}
"""For each quantity, the conditions that its value depends on; for collectives, `COLLECTIVE`."""
CONDITIONS = (
    *("device", "operation", "direction", "dtype", "shape", "size_bytes"),
    *("num_devices", "num_hosts", "fabric", "tool"),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class PublishedValue:
    """A value with everything that its source says about it; None means not stated."""

    key: str
    quantity: str
    kind: Literal["measured", "target", "floor"]
    value: float
    unit: str
    board: str
    source: str
    date: str
    chip: str | None = None
    """The GPU family; only for comparison with what was published about it, never as an expectation."""
    devices: tuple[str, ...] = ()
    """Exact names as reported by the driver; empty if the source does not specify the board."""
    num_devices: int | None = None
    num_hosts: int | None = None
    fabric: str | None = None
    operation: str | None = None
    direction: str | None = None
    dtype: str | None = None
    shape: tuple[int, ...] | None = None
    data: str | None = None
    size_bytes: int | None = None
    tool: str | None = None
    how: str | None = None
    where: str | None = None
    note: str | None = None

    @property
    def provenance(self) -> str:
        """Describe the source the way reports do."""
        how = "".join(f", {part}" for part in (self.tool, self.how) if part)
        kind = "" if self.kind == "measured" else f" ({self.kind})"
        return f"{self.source}, {self.board}{how}{kind}, as of {self.date}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Expectations:
    """Published values by key, and how far healthy machines may differ from them."""

    figures: Mapping[str, PublishedValue]
    tolerance: float

    def find(self, key: str) -> PublishedValue:
        """Return the value for a key.

        Raises:
            UsageError: there is no such key.
        """
        if key in self.figures:
            return self.figures[key]
        close = difflib.get_close_matches(key, self.figures, n=1)
        hint = f"Did you mean {close[0]}? " if close else ""
        raise UsageError(f"no published value has the key {key!r}", next_step=f"{hint}See expectations.toml")


@cache
def load_expectations() -> Expectations:
    """Return the values that ship with gpuproof."""
    content = tomllib.loads(packaged_text("hardware/expectations.toml"))
    figures = [_value(entry) for entry in content["expectation"]]
    return Expectations(
        figures={figure.key: figure for figure in figures},
        tolerance=content["tolerance"]["share"],
    )


def _value(entry: Mapping[str, Any]) -> PublishedValue:
    names = {field.name for field in fields(PublishedValue)}
    assert entry.keys() <= names, entry.keys() - names
    values: dict[str, Any] = {k: tuple(v) if isinstance(v, list) else v for k, v in entry.items()}
    return PublishedValue(**values)


def reason_not_comparable(
    figure: PublishedValue, measured: Mapping[str, Any], *, ignoring: Collection[str]
) -> str | None:
    """Explain why a value does not apply to what was measured; None if all conditions match.

    `measured` contains `quantity` and the known conditions from `CONDITIONS`; `device` is the exact name from
    the driver.
    """
    if figure.quantity != measured.get("quantity"):
        return f"the value is for {figure.quantity}, but {measured.get('quantity')} was measured"
    wanted = MATCHED.get(figure.quantity, COLLECTIVE)
    if figure.quantity not in MATCHED and (figure.num_hosts, measured.get("num_hosts")) != (1, 1):
        wanted = (*wanted, "num_hosts", "fabric")
    reasons = (_mismatch(figure, name, measured.get(name)) for name in wanted if name not in ignoring)
    return "; ".join(reason for reason in reasons if reason) or None


def published_for(
    measured: Mapping[str, Any], figures: Iterable[PublishedValue], *, unit: str, ignoring: Collection[str]
) -> tuple[PublishedValue, ...]:
    """Return the published values for a measurement, lowest first, excluding vendors' targets.

    >>> known = {"quantity": "device memory", "device": "NVIDIA H200", "operation": "triad"}
    >>> figures = load_expectations().figures.values()
    >>> [figure.key for figure in published_for(known, figures, unit="B/s", ignoring=["tool"])]
    ['device-memory.triad.h200-sxm.azure']
    """
    quantity = measured.get("quantity")  # compared first, since each device goes through all values
    like = (f for f in figures if f.quantity == quantity and f.unit == unit and f.kind != "target")
    alike = [figure for figure in like if reason_not_comparable(figure, measured, ignoring=ignoring) is None]
    return tuple(sorted(alike, key=lambda figure: figure.value))


def _mismatch(figure: PublishedValue, name: str, measured: Any) -> str | None:
    published: Any = figure.devices if name == "device" else getattr(figure, name)
    if not published:
        board = f" (it states {figure.board})" if name == "device" else ""
        return f"the source does not give the {name}{board}"
    if measured is None:
        return f"the measured {name} is unknown"
    if measured in published if name == "device" else measured == published:
        return None
    shown = " or ".join(published) if name == "device" else shown_condition(published)
    return f"{name} is {shown_condition(measured)}, but {shown} in the source"


def shown_condition(value: Any) -> str:
    """Format a condition for human readers."""
    if isinstance(value, tuple):
        return "×".join(map(str, value))
    return significant(value) if isinstance(value, float) else str(value)

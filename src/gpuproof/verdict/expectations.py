"""What others measured: published figures by key, and which of them speak of the thing that was measured.

A figure is a lead, not a threshold: it holds for the board, size, type, tool and fabric of its source.
What a source leaves out is unknown and matches nothing, and nothing is guessed from a part of a name. A rule
may say which conditions it does not hold the figure to, and the outcome repeats them. The figures are in
`expectations.toml`.

>>> figure = load_expectations().find("all-reduce.8x-h200.8gib.azure")
>>> figure.value
479980000000.0
>>> reason_unlike(figure, {"quantity": "all_gather"}, ignoring=())
'the figure is of all_reduce, and all_gather was measured'
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
"""In place of a key: whatever was published of the thing that was measured."""
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
"""By quantity, the conditions that a figure holds under; of collectives, `COLLECTIVE`."""
CONDITIONS = (
    *("device", "operation", "direction", "dtype", "shape", "size_bytes"),
    *("num_devices", "num_hosts", "fabric", "tool"),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class PublishedValue:
    """A figure with all that its source says of it; None is not said."""

    key: str
    quantity: str
    kind: Literal["measured", "target", "floor"]
    value: float
    unit: str
    board: str
    source: str
    date: str
    chip: str | None = None
    """The family; for comparison with what was published of it, never to expect anything."""
    devices: tuple[str, ...] = ()
    """Exact names that the driver gives; none where the source leaves the board open."""
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
        """Name the source as a report does."""
        how = "".join(f", {part}" for part in (self.tool, self.how) if part)
        kind = "" if self.kind == "measured" else f" ({self.kind})"
        return f"{self.source}, {self.board}{how}{kind}, as of {self.date}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Expectations:
    """Published figures by their keys, and how far off healthy machines may be."""

    figures: Mapping[str, PublishedValue]
    tolerance: float

    def find(self, key: str) -> PublishedValue:
        """Return the figure of a key.

        Raises:
            UsageError: there is none of that key.
        """
        if key in self.figures:
            return self.figures[key]
        close = difflib.get_close_matches(key, self.figures, n=1)
        hint = f"Did you mean {close[0]}? " if close else ""
        raise UsageError(
            f"no published figure has the key {key!r}", next_step=f"{hint}expectations.toml lists them"
        )


@cache
def load_expectations() -> Expectations:
    """Return the figures that come with gpuproof."""
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
    """Say why a figure is not of what was measured; None where every condition is known and the same.

    `measured` has `quantity` and those of `CONDITIONS` that are known; `device` is the driver's exact name.
    """
    if figure.quantity != measured.get("quantity"):
        return f"the figure is of {figure.quantity}, and {measured.get('quantity')} was measured"
    wanted = MATCHED.get(figure.quantity, COLLECTIVE)
    if figure.quantity not in MATCHED and (figure.num_hosts, measured.get("num_hosts")) != (1, 1):
        wanted = (*wanted, "num_hosts", "fabric")
    reasons = (_mismatch(figure, name, measured.get(name)) for name in wanted if name not in ignoring)
    return "; ".join(reason for reason in reasons if reason) or None


def published_for(
    measured: Mapping[str, Any], figures: Iterable[PublishedValue], *, unit: str, ignoring: Collection[str]
) -> tuple[PublishedValue, ...]:
    """Return what was published of a thing that was measured, the lowest first; what a vendor aims at is not.

    >>> known = {"quantity": "device memory", "device": "NVIDIA H200", "operation": "triad"}
    >>> figures = load_expectations().figures.values()
    >>> [figure.key for figure in figures_of(known, figures, unit="B/s", ignoring=["tool"])]
    ['device-memory.triad.h200-sxm.azure']
    """
    quantity = measured.get("quantity")  # compared first: all figures are gone through for each device
    like = (f for f in figures if f.quantity == quantity and f.unit == unit and f.kind != "target")
    alike = [figure for figure in like if reason_not_comparable(figure, measured, ignoring=ignoring) is None]
    return tuple(sorted(alike, key=lambda figure: figure.value))


def _mismatch(figure: PublishedValue, name: str, measured: Any) -> str | None:
    published: Any = figure.devices if name == "device" else getattr(figure, name)
    if not published:
        board = f" (it writes {figure.board})" if name == "device" else ""
        return f"the source does not give the {name}{board}"
    if measured is None:
        return f"the {name} of what was measured is not known"
    if measured in published if name == "device" else measured == published:
        return None
    shown = " or ".join(published) if name == "device" else shown_condition(published)
    return f"{name} is {shown_condition(measured)}, and {shown} in the source"


def shown_condition(value: Any) -> str:
    """Write a condition as people read it."""
    if isinstance(value, tuple):
        return "×".join(map(str, value))
    return significant(value) if isinstance(value, float) else str(value)
